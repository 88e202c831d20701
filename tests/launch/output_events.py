"""Runs a real program on a pipe, as a keeper would, and gives the events of its output."""

from __future__ import annotations

import functools
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable

from accel_nb.launch.output.rank_output import RankOutput
from accel_nb.protocol.events import LogLines, ProgressRow, RunEvent

FLUSH_S = 0.1


@functools.cache
def _writes_of(code: str) -> tuple[tuple[float, bytes], ...]:
    """What ``python -c code`` wrote and when, its stdout and stderr being one pipe. Nothing every `FLUSH_S`."""
    read_fd, write_fd = os.pipe()
    writes: list[tuple[float, bytes]] = []
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=write_fd, stderr=write_fd
    ) as process:
        os.close(write_fd)
        while True:
            waits = bool(select.select([read_fd], [], [], FLUSH_S)[0])
            data = os.read(read_fd, 1 << 16) if waits else b""
            writes.append((time.monotonic(), data))
            if waits and not data:
                break
    os.close(read_fd)
    assert process.returncode == 0, writes
    return tuple(writes)


def events_of(code: str, *, read_bytes: int = 1 << 16) -> list[RunEvent]:
    """The events of the output of ``python -c code``, read `read_bytes` at a time."""
    output = RankOutput(0)
    events: list[RunEvent] = []
    for now, data in _writes_of(code):
        for start in range(0, len(data), read_bytes):
            events += output.feed(data[start : start + read_bytes], now)
        events += output.flush_partial(now)
    return [*events, *output.finish(now)]


def lines_of(events: Iterable[RunEvent]) -> list[str]:
    return [line for event in events if isinstance(event, LogLines) for line in event.text.split("\n")]


def rows_of(events: Iterable[RunEvent]) -> list[ProgressRow]:
    return [event for event in events if isinstance(event, ProgressRow)]


def final_rows_of(events: Iterable[RunEvent]) -> list[ProgressRow]:
    """What is left of the bars: those that ended and were not erased."""
    return [row for row in rows_of(events) if row.done and row.text]
