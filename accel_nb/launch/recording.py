"""The recording of a run, ``run.jsonl``: read back, so that a run can be seen again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..protocol.events import RunEvent
from ..protocol.wire import Skipped, event_from_line

HEAD_BYTES = 256 << 10
"""How a run began: its plan, its notices."""
TAIL_BYTES = 8 << 20
"""How it went on lately. A view shows no more lines of it anyway."""


def recorded_events(log_dir: Path) -> list[RunEvent]:
    """The events of the run in their order; of a very long one the first and the newest. Empty when it has none yet.

    What this version does not know, and a line that is still being written, is left out.
    """
    file = log_dir / "run.jsonl"
    return list(_events(file)) if file.exists() else []


def _events(file: Path) -> Iterator[RunEvent]:
    size = file.stat().st_size
    with file.open("rb") as lines:
        for line in lines:
            if (event := _event(line)) is not None:
                yield event
            if HEAD_BYTES <= lines.tell() < size - TAIL_BYTES:
                lines.seek(size - TAIL_BYTES)
                lines.readline()


def _event(line: bytes) -> RunEvent | None:
    if not line.endswith(b"\n"):
        return None
    event = event_from_line(line)
    return None if isinstance(event, Skipped) else event
