"""What of one run is sent to pages: its events at a bearable rate, and the whole of it for a page that comes late."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from ..protocol.events import (
    Display,
    EventsDropped,
    HostMemoryLow,
    LogLines,
    Notice,
    Restarting,
    RunEvent,
    RunStarted,
    Stalled,
    StallEnded,
    Straggler,
)
from ..protocol.front_end import LoggedLine, NewEvents, WholeRun
from ..protocol.plan import LaunchPlan
from ..protocol.run_state import RunState, advance_all
from .event_budget import EventBudget

SEND_INTERVAL_S = 0.1
"""Between two messages with events: at most 10 per second."""
KEPT_LINES = 5000
"""Of the ranks' output, for a page that comes late; MAX_LINES of labextension/src/run/log.ts."""


class RunFeed:
    """Of one run; one thread at a time."""

    def __init__(self) -> None:
        self._budget = EventBudget()
        self._waiting: list[RunEvent] = []
        self._lines: deque[LoggedLine] = deque(maxlen=KEPT_LINES)
        self._left_out: dict[int, int] = {}
        """Lines of each rank that the budget has left out: the run's state does not know of them."""
        self._started_s = 0.0

    def begin(self, events: Sequence[RunEvent]) -> None:
        """With what was before the first page: it is part of the whole, and not sent."""
        self._started_s = _started_s(events)
        self._keep(events)

    def add(self, events: Sequence[RunEvent]) -> None:
        """To be sent with the next message. What ranks display belongs to their cell."""
        self._waiting += [event for event in events if not isinstance(event, Display)]
        self._started_s = self._started_s or _started_s(events)

    def take(self, now: float, *, is_last: bool = False) -> NewEvents | None:
        """What has come since the last time; None when nothing has. `now` is monotonic."""
        events = self._budget.thinned(self._waiting, now, are_last=is_last)
        self._waiting.clear()
        self._keep(events)
        return NewEvents(events=tuple(events), now_s=time.time()) if events else None

    def whole(self, state: RunState, plan: LaunchPlan | None, *, can_hear: bool) -> WholeRun:
        """The run in `state`, with the lines that have been taken so far. `plan`, where it is known, is shown before
        the ranks are there: a cold start takes seconds.
        """
        ranks = {
            rank: replace(known, log_tail=(), dropped_lines=known.dropped_lines + self._left_out.get(rank, 0))
            for rank, known in state.ranks.items()
        }
        return WholeRun(
            state=replace(state, ranks=ranks, plan=state.plan or (plan and plan.without_values())),
            lines=tuple(self._lines),
            started_s=self._started_s,
            now_s=time.time(),
            can_hear=can_hear,
        )

    def _keep(self, events: Sequence[RunEvent]) -> None:
        for event in events:
            self._lines.extend(_lines_of(event))
            match event:
                case EventsDropped(sequence=0, rank=int(rank)):
                    self._left_out[rank] = self._left_out.get(rank, 0) + event.lines
                case RunStarted() | Restarting():
                    self._left_out.clear()  # as their ranks' states begin anew
                case _:
                    pass


def whole_of_events(events: Sequence[RunEvent]) -> WholeRun:
    """A run of which there will be no more than `events`."""
    state = advance_all(RunState(), events)
    ranks = {rank: replace(known, log_tail=()) for rank, known in state.ranks.items()}
    lines = deque((line for event in events for line in _lines_of(event)), maxlen=KEPT_LINES)
    return WholeRun(
        state=replace(state, ranks=ranks), lines=tuple(lines), started_s=_started_s(events), now_s=time.time()
    )


def _started_s(events: Sequence[RunEvent]) -> float:
    """0 without events. A cell of kept ranks, but for the first, begins with its own first event."""
    first_s = events[0].time_s if events else 0.0
    return next((event.time_s for event in events if isinstance(event, RunStarted)), first_s)


def _lines_of(event: RunEvent) -> list[LoggedLine]:
    """The same as linesOf of labextension/src/run/log.ts."""
    match event:
        case LogLines():
            return [LoggedLine(rank=event.rank, text=line, time_s=event.time_s) for line in event.text.split("\n")]
        case Notice() | Stalled() | StallEnded() | Straggler() | HostMemoryLow():
            return [LoggedLine(rank=None, text=event.text, time_s=event.time_s)]
        case _:
            return []
