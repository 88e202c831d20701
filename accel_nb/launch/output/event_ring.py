"""The bounded queue between a run's keeper and the kernel, which may not listen for minutes.

What may leave when it gets too long: the oldest log lines (their file has them), outdated states of progress bars,
step times and usage, and every second point of the metrics.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from ...protocol.events import (
    Display,
    EventsDropped,
    LogLines,
    MetricsLogged,
    ProgressRow,
    RankUsage,
    RunEvent,
    StepTimes,
)

DEFAULT_LOG_BYTES = 1 << 20
"""Log text that waits for the kernel, all ranks together."""

MAX_DISPLAY_BYTES = 64 << 20
"""Of displays that wait for the kernel; of further ones, only the text."""

DEFAULT_NUM_METRICS = 10_000
"""Metrics that wait for the kernel, all ranks together."""

_AnyEvent = TypeVar("_AnyEvent", bound=RunEvent)
_AnyDisplay = TypeVar("_AnyDisplay", bound=Display)
_encode = msgspec.msgpack.Encoder().encode
_Row = ProgressRow | StepTimes | RankUsage
_RowKey = tuple[int | None, str, int]


class EventRing:
    """Numbers the events of a run and holds them until `take`. One thread.

    `take` gives strictly increasing sequence numbers. A number that never appears belongs to a progress state that a
    newer one replaced, or to metrics that were thinned; lost log lines are told by an `EventsDropped` in their place.
    """

    def __init__(
        self, log_bytes: int = DEFAULT_LOG_BYTES, *, num_metrics: int = DEFAULT_NUM_METRICS, first_sequence: int = 1
    ) -> None:
        """`first_sequence`: number of the first event, higher when an earlier attempt has used some."""
        self._log_limit_bytes = log_bytes
        self._metric_limit = num_metrics
        self._next_sequence = first_sequence
        self._queue: OrderedDict[int, RunEvent] = OrderedDict()
        self._log_bytes = 0
        self._logs: deque[int] = deque()
        """Sequence numbers of the queued LogLines, oldest first."""
        self._gaps: dict[int | None, int] = {}
        """Rank -> sequence number of its queued EventsDropped."""
        self._steady_rows: dict[_RowKey, int] = {}
        """Bar, or rank's step times or usage -> its queued state that keeps its place: what never rests is seen too."""
        self._newest_rows: dict[_RowKey, int] = {}
        """Likewise -> its queued state after that one, which the next state replaces."""
        self._metrics: deque[int] = deque()
        """Sequence numbers of the queued MetricsLogged, oldest first."""
        self._num_urgent = 0
        self._display_bytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def urgent(self) -> bool:
        """Whether something waits that the kernel should see at once: not lines, bars, measurements and metrics."""
        return self._num_urgent > 0

    def add(self, event: _AnyEvent) -> _AnyEvent:
        """Queue `event`; returns it with its number."""
        if isinstance(event, Display):
            event = self._within_limit(event)
        numbered = replace(event, sequence=self._next_sequence)
        self._next_sequence += 1
        if isinstance(numbered, _Row):
            self._place_row(numbered)
        self._queue[numbered.sequence] = numbered
        if isinstance(numbered, LogLines):
            self._logs.append(numbered.sequence)
            self._log_bytes += _text_bytes(numbered)
            while self._log_bytes > self._log_limit_bytes:
                self._drop_oldest_lines()
        elif isinstance(numbered, MetricsLogged):
            self._metrics.append(numbered.sequence)
            if len(self._metrics) > self._metric_limit:
                self._thin_metrics()
        elif _is_urgent(numbered):
            self._num_urgent += 1
        return numbered

    def take(self, max_bytes: int) -> list[RunEvent]:
        """The oldest events, at least one when there are any, then as many as fit into `max_bytes` (encoded, about)."""
        taken: list[RunEvent] = []
        size_bytes = 0
        while self._queue:
            event = next(iter(self._queue.values()))
            size_bytes += _text_bytes(event) if isinstance(event, LogLines) else len(_encode(event))
            if taken and size_bytes > max_bytes:
                break
            del self._queue[event.sequence]
            self._forget(event)
            taken.append(event)
        return taken

    def _place_row(self, row: _Row) -> None:
        key = _key(row)
        if key not in self._steady_rows:
            self._steady_rows[key] = row.sequence
            return
        if (replaced := self._newest_rows.get(key)) is not None:
            del self._queue[replaced]
        self._newest_rows[key] = row.sequence

    def _within_limit(self, display: _AnyDisplay) -> _AnyDisplay:
        """The whole of it, or its text when too many wait."""
        if self._display_bytes + _display_bytes(display) > MAX_DISPLAY_BYTES:
            text = display.data.get("text/plain", "")
            display = replace(display, data={"text/plain": f"{text}\n(not shown otherwise: too many wait)".lstrip()})
        self._display_bytes += _display_bytes(display)
        return display

    def _drop_oldest_lines(self) -> None:
        """Put a gap where the oldest lines were. A rank's earlier gap is adjacent to it and moves into it."""
        sequence = self._logs.popleft()
        event = self._queue[sequence]
        assert isinstance(event, LogLines)
        self._log_bytes -= _text_bytes(event)
        lines = event.text.count("\n") + 1
        if (earlier := self._gaps.get(event.rank)) is not None:
            gap = self._queue.pop(earlier)
            assert isinstance(gap, EventsDropped)
            lines += gap.lines
        self._gaps[event.rank] = sequence
        self._queue[sequence] = EventsDropped(rank=event.rank, sequence=sequence, time_s=event.time_s, lines=lines)

    def _thin_metrics(self) -> None:
        """Let every second event go of those with the same names, so that what is logged rarely stays beside what is
        not. The newest stay.
        """
        kept: deque[int] = deque()
        seen: dict[tuple[object, ...], int] = {}
        for sequence in reversed(self._metrics):
            event = self._queue[sequence]
            assert isinstance(event, MetricsLogged)
            names = (event.rank, *event.values, *event.texts)
            number = seen[names] = seen.get(names, -1) + 1
            if number % 2 == 0:
                kept.appendleft(sequence)
            else:
                del self._queue[sequence]
        for sequence in [kept.popleft() for _ in range(len(kept) - self._metric_limit * 3 // 4)]:
            del self._queue[sequence]
        self._metrics = kept

    def _forget(self, event: RunEvent) -> None:
        """Update what is known of the queue after its first event left."""
        if isinstance(event, LogLines):
            self._logs.popleft()
            self._log_bytes -= _text_bytes(event)
        elif isinstance(event, EventsDropped):
            if self._gaps.get(event.rank) == event.sequence:
                del self._gaps[event.rank]
        elif isinstance(event, _Row):
            key = _key(event)
            del self._steady_rows[key]
            if (newest := self._newest_rows.pop(key, None)) is not None:
                self._steady_rows[key] = newest
        elif isinstance(event, MetricsLogged):
            self._metrics.popleft()
        else:
            self._num_urgent -= 1
            if isinstance(event, Display):
                self._display_bytes -= _display_bytes(event)


def _key(row: _Row) -> _RowKey:
    return (row.rank, type(row).__name__, row.bar if isinstance(row, ProgressRow) else 0)


def _is_urgent(event: RunEvent) -> bool:
    return not isinstance(event, LogLines | _Row | MetricsLogged | EventsDropped)


def _display_bytes(event: Display) -> int:
    return sum(map(len, event.data.values()))


def _text_bytes(event: LogLines) -> int:
    return len(event.text) if event.text.isascii() else len(event.text.encode())
