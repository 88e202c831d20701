"""The searches for a batch size that the ranks of one attempt do: when they cannot go on, the ranks start again.

Two things end an attempt here: a rank's process dies in a try, and the ranks do not get out of a try in which memory
has run out. Either counts as "does not fit"; the next attempt begins below that size. Ranks that are kept from cell to
cell do not start again, as nobody would give them the cell: their run ends. Pure, but for the clock.
"""

from __future__ import annotations

import time

from msgspec.structs import replace

from ...protocol.batch_sizes import SearchHistory
from ...protocol.events import (
    BatchSizeBegun,
    BatchSizeTried,
    CellEnded,
    RankFailed,
    RanOutOfMemory,
    Restarting,
    RunEvent,
)
from ...protocol.failure import RankFailure

LEFT_S = 10.0
"""So long the ranks have to leave a try in which memory has run out, and to be able to work together again."""


_NOTHING = SearchHistory()


class SearchWatch:
    """Of one attempt. `history`: of those before."""

    def __init__(self, num_ranks: int, history: SearchHistory = _NOTHING) -> None:
        self.reason = ""
        """Why the ranks must start again, as a sentence; empty: they need not."""
        self.are_kept = False
        """Whether the ranks run cells."""
        self._history = history
        self._died_before = frozenset(history.died)
        self._num_ranks = num_ranks
        self._tries: dict[int, list[BatchSizeBegun]] = {}
        """What each rank tries now; a search within a try of another comes after that."""
        self._leaving: RanOutOfMemory | None = None
        self._out_rank = 0
        """Whose memory ran out in the try that is left."""
        self._left: set[int] = set()
        self._leave_until_s = float("inf")

    def note(self, rank: int, event: RunEvent, now: float) -> None:
        """Take in what a rank reports."""
        match event:
            case BatchSizeBegun():
                self._tries.setdefault(rank, []).append(event)
            case RanOutOfMemory():
                if self._leaving is None:
                    self._leaving, self._left, self._leave_until_s = event, set(), now + LEFT_S
                    self._out_rank = rank
            case BatchSizeTried():
                self._end_try(rank, event.function)
                if not event.fits:
                    self._remember(event.function, event.batch_size)
                # A search within the try that is left may have come to an end just before.
                if self._leaving is not None and (event.function == self._leaving.function or not event.fits):
                    self._left.add(rank)
                if len(self._left) == self._num_ranks:
                    self._stop_waiting()
            case CellEnded():
                # The kernel sees to the ranks that have not ended it.
                self._tries.pop(rank, None)
                self._stop_waiting()
            case RankFailed():
                # That ends the attempt anyway.
                self._stop_waiting()
            case _:
                pass

    def is_overdue(self, now: float) -> bool:
        """Whether the ranks have not left a try in time; true once, and `reason` says it."""
        if self._leaving is None or now < self._leave_until_s:
            return False
        event = self._leaving
        self._stop_waiting()
        self._remember(event.function, event.batch_size)
        self._restart(
            f"{event.function}: batch size {event.batch_size} does not fit, and the ranks could not go on within "
            f"{LEFT_S:g} s: a rank waits, or computes, without noticing"
        )
        return True

    def dead_end(self) -> RankFailure | None:
        """After `is_overdue`: the failure that ends kept ranks; None: the ranks start again."""
        if not self.are_kept:
            return None
        text = f"{self.reason}. Kept ranks end then: run the cells again, and begin with a smaller starting_batch_size."
        return RankFailure(rank=self._out_rank, kind="dead_end", message=text, time_s=time.monotonic())

    def rank_died(self, failure: RankFailure) -> RankFailure:
        """A rank's process has ended by itself. The failure to tell: it says when this was the second time."""
        tries = self._tries.get(failure.rank)
        if not tries or failure.signal is None:
            return failure
        begun = tries[-1]
        name, size = begun.function, begun.batch_size
        if name in self._died_before:
            sizes = ", ".join(map(str, self._history.failed.get(name, ())))
            text = (
                f"{failure.message} It was trying batch size {size} in the search of {name}, in which a rank had died "
                f"before ({sizes} did not fit). Begin with a much smaller starting_batch_size."
            )
            return replace(failure, message=text)
        if self.reason:
            return failure
        self._remember(name, size)
        self._history = replace(self._history, died=(*self._history.died, name))
        self._restart(
            f"{name}: batch size {size} does not fit: rank {failure.rank} was ended by {failure.signal} while trying it"
        )
        return failure

    def restart_after(self, attempt: int, max_restarts: int) -> Restarting | None:
        """All ranks are gone, and not all have returned: the next attempt; None when there is none.

        `max_restarts`: the user's, beside which the searches' own count.
        """
        if self.are_kept or (not self.reason and attempt - self._history.restarts >= max_restarts):
            return None
        return Restarting(attempt=attempt + 1, reason=self.reason, searches=self._history)

    def _end_try(self, rank: int, name: str) -> None:
        """Of the search `name`, and with it those of searches within."""
        tries = self._tries.get(rank, [])
        numbers = [number for number, one in enumerate(tries) if one.function == name]
        if numbers:
            del tries[numbers[-1] :]

    def _remember(self, name: str, size: int) -> None:
        known = self._history.failed.get(name, ())
        if size not in known:
            failed = {**self._history.failed, name: (*known, size)}
            self._history = replace(self._history, failed=failed)

    def _restart(self, reason: str) -> None:
        self.reason = reason
        self._history = replace(self._history, restarts=self._history.restarts + 1)

    def _stop_waiting(self) -> None:
        self._leaving, self._leave_until_s = None, float("inf")
