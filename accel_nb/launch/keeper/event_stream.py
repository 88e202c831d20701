"""A run's events on their way from the keeper to the kernel: numbered, recorded, handed over when the kernel asks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from ...protocol.commands import EventBatch, RunOrder
from ...protocol.events import RankUsage, RunEvent
from ...protocol.wire import event_line
from ..output.event_ring import EventRing
from ..output.log_file import LogFile
from .usage import UsageRecord

MAX_BATCH_BYTES = 64 << 10


class Outlet(Protocol):
    """The way to the kernel: of a `Channel` what is needed here."""

    @property
    def wants_to_write(self) -> bool: ...

    def flush(self) -> None: ...

    def send(self, message: msgspec.Struct) -> None: ...


class EventStream:
    """Of one keeper, used by its one thread. Never blocks: what the kernel does not ask for waits in a bounded ring."""

    def __init__(self, channel: Outlet) -> None:
        self._channel = channel
        self._ring = EventRing()
        self._record: LogFile | None = None
        self._interval_s = 0.1
        self._asked = False
        self._sent_s = 0.0
        self._usage = UsageRecord(time.time())

    def begin(self, order: RunOrder) -> None:
        """Number and record from now on as `order` says."""
        self._ring = EventRing(first_sequence=order.first_sequence)
        self._record = LogFile(Path(order.log_dir) / "run.jsonl")
        self._interval_s = order.plan.monitor_interval

    def add(self, event: RunEvent) -> None:
        self._ring.add(event if event.time_s else replace(event, time_s=time.time()))

    def add_all(self, events: Iterable[RunEvent]) -> None:
        for event in events:
            self.add(event)

    def ask(self) -> None:
        """The kernel is ready for one more batch."""
        self._asked = True

    def send_due(self, now: float) -> None:
        """One batch when the kernel has asked: at once for what changes the run, else at the drawing rate."""
        if self._channel.wants_to_write:
            self._channel.flush()
        if not self._asked or not self._ring or self._record is None:
            return
        if not self._ring.urgent and now < self._sent_s + self._interval_s:
            return
        events = self._ring.take(MAX_BATCH_BYTES)
        self._write_down(self._record, events)
        self._asked = False
        self._sent_s = now
        self._channel.send(EventBatch(events=tuple(events)))

    def due_in_s(self, now: float) -> float:
        """Until `send_due` has something to do; infinity when that depends on others."""
        return self._sent_s + self._interval_s - now if self._asked and self._ring else float("inf")

    def close(self) -> None:
        """Record what the kernel has not asked for."""
        if self._record is not None:
            self._write_down(self._record, self._ring.take(1 << 30))
            self._record.close()

    def _write_down(self, record: LogFile, events: Sequence[RunEvent]) -> None:
        kept = [event for event in events if not isinstance(event, RankUsage) or self._usage.keeps(event)]
        record.write(b"".join(map(event_line, kept)))
