"""One run out of the events of several keepers: what is passed on, when the others are stopped, how it ends. Pure, but
for the clock's values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from ....protocol.batch_sizes import SearchHistory
from ....protocol.events import (
    RankFailed,
    RankFinished,
    Restarting,
    RunEnded,
    RunEvent,
    RunStarted,
    Stalled,
    StallEnded,
    StepTimes,
    StopRequested,
    Straggler,
)
from ....protocol.failure import RankFailure
from ...keeper.stopping import SETTLE_S
from ..engine import Attempt


class Merging:
    """Of one attempt."""

    def __init__(self, attempt: Attempt, *, watches: bool) -> None:
        """`watches`: who waits and who is slow is found here, and keepers only take it up."""
        self.settle_until_s: float | None = None
        """When the ranks of all keepers are to be stopped, since one has failed; None: none has."""
        self._log_dir = attempt.log_dir
        self._attempt = attempt.number
        self._max_restarts = attempt.plan.max_restarts
        self._searches = attempt.searches
        self._watches = watches
        self._cannot_restart = False
        self._open = set(range(attempt.plan.num_ranks))
        """Ranks that have neither returned nor failed."""
        self._failed = False
        self._ends: list[RunEnded | Restarting] = []
        self._stops: set[str] = set()
        self.outcomes: dict[int, RankFinished | RankFailed] = {}
        """How ranks have ended."""

    def take(self, events: Iterable[RunEvent], now: float, to_local: Callable[[float], float]) -> list[RunEvent]:
        """What of one keeper's events is of the run. `to_local`: its monotonic clock's time -> this machine's."""
        return [passed for event in events if (passed := self._taken(event, now, to_local)) is not None]

    def lose(self, ranks: Iterable[int], sentence: str, now: float, *, is_replaced: bool) -> list[RunEvent]:
        """The keeper of `ranks` is gone. `is_replaced`: another attempt would have a new one."""
        if not is_replaced:
            self._cannot_restart = True
            if self._max_restarts:
                sentence = (
                    f"{sentence} Nobody takes its place in a run that has begun, so the ranks do not start again."
                )
        silent = sorted(self._open.intersection(ranks))
        consequence = self._failed
        failures = [
            RankFailure(rank=rank, kind="died", message=sentence, time_s=now, consequence=consequence)
            for rank in silent
        ]
        return [self._noted(RankFailed(rank=failure.rank, failure=failure), now) for failure in failures]

    @property
    def is_ending(self) -> bool:
        """Whether ranks are being ended, or will be."""
        return self._failed or bool(self._stops)

    @property
    def failures(self) -> list[RankFailure]:
        return [end.failure for end in self.outcomes.values() if isinstance(end, RankFailed)]

    def explain(self, failures: Iterable[RankFailure]) -> list[RunEvent]:
        """Ranks have failed for these reasons, and not for those that they gave."""
        explained = {failure.rank: RankFailed(rank=failure.rank, failure=failure) for failure in failures}
        self.outcomes |= explained
        return list(explained.values())

    def end(self, duration_s: float) -> RunEnded | Restarting:
        """All keepers have said how their part ended, or are gone."""
        again = [end for end in self._ends if isinstance(end, Restarting)]
        ended = [end for end in self._ends if isinstance(end, RunEnded)]
        by_user = bool(self._stops - {"failure"})
        may_restart = self._attempt - self._searches.restarts < self._max_restarts
        if by_user or self._cannot_restart or not (self._failed and (again or may_restart)):
            return RunEnded(duration_s=duration_s, leftovers=sum(end.leftovers for end in ended))
        return Restarting(
            attempt=self._attempt + 1,
            reason=next((end.reason for end in again if end.reason), ""),
            searches=_joined([self._searches, *(end.searches for end in again)]),
        )

    def _taken(self, event: RunEvent, now: float, to_local: Callable[[float], float]) -> RunEvent | None:
        match event:
            case RunStarted():
                return None
            case Stalled() | StallEnded() | StepTimes() | Straggler() if self._watches:
                return None
            case RunEnded() | Restarting():
                self._ends.append(event)
                self._failed = self._failed or isinstance(event, Restarting)
                return None
            case StopRequested():
                if event.by in self._stops:
                    return None
                self._stops.add(event.by)
            case RankFinished():
                self._open.discard(event.rank or 0)
                self.outcomes[event.rank or 0] = event
            case RankFailed():
                event = replace(event, failure=self._localised(event.failure, to_local))
        # Numbered anew.
        return replace(self._noted(event, now), sequence=0)

    def _noted(self, event: RunEvent, now: float) -> RunEvent:
        if isinstance(event, RankFailed):
            self._failed = True
            self._open.discard(event.failure.rank)
            self.outcomes.setdefault(event.failure.rank, event)
            if self.settle_until_s is None:
                self.settle_until_s = now + SETTLE_S * (2 if event.failure.consequence else 1)
        return event

    def _localised(self, failure: RankFailure, to_local: Callable[[float], float]) -> RankFailure:
        memory = failure.memory
        if memory is not None and memory.file:
            memory = replace(memory, file=str(self._log_dir / Path(memory.file).name))
        return replace(failure, time_s=to_local(failure.time_s), memory=memory)


def _joined(histories: Iterable[SearchHistory]) -> SearchHistory:
    """What any of them has learned."""
    failed: dict[str, tuple[int, ...]] = {}
    died: dict[str, None] = {}
    restarts = 0
    for history in histories:
        restarts = max(restarts, history.restarts)
        died |= dict.fromkeys(history.died)
        for name, sizes in history.failed.items():
            known = failed.get(name, ())
            failed[name] = (*known, *(size for size in sizes if size not in known))
    return SearchHistory(failed=failed, died=tuple(died), restarts=restarts)
