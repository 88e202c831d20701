"""What of a run's events is sent to a page: the newest of what replaces itself, and no more text than can be shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from ..launch.views.flow_limit import BURST_BYTES, BYTES_PER_S, newest_within
from ..protocol.events import EventsDropped, LogLines, ProgressRow, RunEvent, StepTimes

_Replaced = tuple[str, int | None, int]


class EventBudget:
    """Thins events to `BYTES_PER_S` of text, after a quiet second or at the end `BURST_BYTES` at once."""

    def __init__(self) -> None:
        self._allowed = float(BURST_BYTES)
        self._since_s: float | None = None

    def thinned(self, events: Sequence[RunEvent], now: float, *, are_last: bool = False) -> list[RunEvent]:
        """`events` without what later ones replace; of too much text the newest lines of each rank. In order.

        `now`: monotonic. `are_last`: none will follow.
        """
        if are_last:
            self._allowed = float(BURST_BYTES)
        elif self._since_s is not None:
            self._allowed = min(BURST_BYTES, self._allowed + BYTES_PER_S * (now - self._since_s))
        self._since_s = now
        events = _without_replaced(events)
        texts = [event for event in events if isinstance(event, LogLines)]
        size = sum(len(event.text) + 1 for event in texts)
        if size <= self._allowed:
            self._allowed -= size
            return events
        lines = {id(event): event.text.split("\n") for event in texts}
        sizes: defaultdict[int | None, list[int]] = defaultdict(list)
        for text in reversed(texts):
            sizes[text.rank] += [len(line) + 1 for line in reversed(lines[id(text)])]
        counts = newest_within(sizes, self._allowed)
        self._allowed -= sum(sum(sizes[rank][:count]) for rank, count in counts.items())
        kept: list[RunEvent] = []
        for event in reversed(events):
            if not isinstance(event, LogLines):
                kept.append(event)
                continue
            shown = min(counts[event.rank], len(lines[id(event)]))
            counts[event.rank] -= shown
            kept.extend(reversed(_newest(event, lines[id(event)], shown)))
        kept.reverse()
        return kept


def _newest(event: LogLines, lines: Sequence[str], count: int) -> list[RunEvent]:
    """`event` with so many of its `lines`, and a note of the others."""
    if count == len(lines):
        return [event]
    # Without a number of its own it is counted wherever the reader is.
    dropped = EventsDropped(rank=event.rank, time_s=event.time_s, lines=len(lines) - count)
    return [dropped, replace(event, text="\n".join(lines[len(lines) - count :]))] if count else [dropped]


def _without_replaced(events: Sequence[RunEvent]) -> list[RunEvent]:
    kept: list[RunEvent] = []
    seen: set[_Replaced] = set()
    for event in reversed(events):
        name = _replaces(event)
        if name is None or name not in seen:
            kept.append(event)
        if name is not None:
            seen.add(name)
    kept.reverse()
    return kept


def _replaces(event: RunEvent) -> _Replaced | None:
    """A name for all events of which only the newest counts; None: each counts."""
    match event:
        case ProgressRow():
            return "bar", event.rank, event.bar
        case StepTimes():
            return "step times", event.rank, 0
        case _:
            return None
