"""From a try that did not fit to the next one: all ranks leave it, agree what it was, and are able to work together.

ran out ─┐                     ┌─ nothing is owed: the groups stay ─┐
left    ─┼─ reports ─ let go ──┤                                    ├─ ready ─ next try
fits    ─┘                     └─ close ─ ... all ready ─ reopen ───┘
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

from ...errors import AnotherRankFailed
from ...protocol import lockstep
from ..checkpoints import meeting
from ..ranks.state import existing_facts
from . import regroup
from .agreement import Ranks
from .held import Held
from .outcomes import Outcome, Readiness, owe_each_other_nothing
from .release import clear_device_cache

SETTLE_S = 0.3
"""Ranks that run out of memory at the same point report within this time, and need not close their groups."""


class Departure:
    """This rank's way out of the try `number`."""

    def __init__(self, ranks: Ranks, number: int, recipe_before: regroup.Recipe | None) -> None:
        """`recipe_before`: of the group that was open when the try began."""
        self._ranks = ranks
        self._number = number
        recipe = regroup.recipe_of_group() or recipe_before
        # One that a function opens without a state of ours, it opens again.
        self._recipe = recipe if recipe_before is not None or existing_facts() is not None else None
        self._has_closed = False

    def leave(self, held: Held) -> list[Outcome]:
        """Let go of what the try made and of other ranks; how it has ended on each.

        AnotherRankFailed when one has failed otherwise.
        """
        held.let_go_of_the_rest()
        # What was prepared holds the groups: gone before they are. The device's cache must wait, since giving that back
        # waits for all operations of the device, also for one that never ends.
        gc.collect()
        soon = self._ranks.outcomes_soon(self._number, SETTLE_S)
        if soon is None or not owe_each_other_nothing(soon):
            self._close()
        clear_device_cache()
        outcomes = self._ranks.outcomes(self._number)
        check_failed(outcomes, self._ranks.rank)
        return outcomes

    def come_back(self, size: int) -> int:
        """Meet the others with `size` as this rank's next; gives that of all, 0 when nothing is left."""
        own = Readiness(
            size=size,
            has_closed=self._has_closed,
            backend="" if self._recipe is None else self._recipe.backend,
            counted=meeting.counted(),
        )
        everyones = self._ranks.begin(self._number + 1, own)
        meeting.go_on_after([one.counted for one in everyones])
        if any(one.has_closed for one in everyones):
            lockstep.count_anew()  # by the store of the new group
            self._close()
            self._reopen(everyones)
        return smallest(everyones)

    def _close(self) -> None:
        if not self._has_closed:
            regroup.close()
        self._has_closed = True

    def _reopen(self, everyones: Sequence[Readiness]) -> None:
        backends = [one.backend for one in everyones if one.backend]
        if not backends:
            return
        recipe = self._recipe or regroup.Recipe(backend=backends[0], timeout=None, device=None)
        prefix = self._ranks.group_prefix(self._number + 1)
        regroup.reopen(recipe, self._ranks.store, prefix, self._ranks.rank, self._ranks.num_ranks)


def smallest(everyones: Sequence[Readiness]) -> int:
    """The batch size of all ranks."""
    return min(one.size for one in everyones)


def check_failed(outcomes: Sequence[Outcome], rank: int) -> None:
    """AnotherRankFailed when a rank has failed otherwise than by memory."""
    for other, outcome in enumerate(outcomes):
        if outcome.kind == "failed" and other != rank:
            raise AnotherRankFailed(f"rank {other} failed in the same try of the batch size: {outcome.reason}")
