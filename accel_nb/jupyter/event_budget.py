"""What of a run's events is sent to a page: the newest of what replaces itself, and no more text than can be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from ..launch.views.flow_limit import BURST_BYTES, BYTES_PER_S, fair_shares
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
        wanted: Counter[int | None] = Counter()
        for event in events:
            if isinstance(event, LogLines):
                wanted[event.rank] += len(event.text) + 1
        shares = fair_shares(wanted, self._allowed)
        kept: list[RunEvent] = []
        for event in reversed(_without_replaced(events)):
            kept.extend(reversed(self._within(event, shares)) if isinstance(event, LogLines) else (event,))
        kept.reverse()
        return kept

    def _within(self, event: LogLines, shares: dict[int | None, float]) -> list[RunEvent]:
        """What of `event` its rank's share allows, and a note of what it does not."""
        lines = event.text.split("\n")
        first = len(lines)
        while first and len(lines[first - 1]) < shares[event.rank]:
            first -= 1
            shares[event.rank] -= len(lines[first]) + 1
            self._allowed -= len(lines[first]) + 1
        if not first:
            return [event]
        shares[event.rank] = 0.0  # what is older goes, too
        # Without a number of its own it is counted wherever the reader is.
        dropped = EventsDropped(rank=event.rank, time_s=event.time_s, lines=first)
        return [dropped, replace(event, text="\n".join(lines[first:]))] if first < len(lines) else [dropped]


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
