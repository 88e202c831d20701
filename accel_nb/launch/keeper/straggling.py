"""Which rank makes the others wait: decided from how long the ranks' own parts of their steps take. Pure.

Each rank notes, step by step, how long it neither waited in an operation of all ranks nor was in its backward pass, at
whose end the ranks wait for each other; and which part of that it spent waiting for batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from ...protocol.events import StepTimes, Straggler
from ...protocol.ledger import RankNotes

EVERY_S = 2.0
"""At first; a run that goes on for long is measured less often, so that its record stays small."""
SLOWEST_EVERY_S = 10.0
_SLOWER_AFTER = 30
"""Measured as often as every 30th of the time it has run."""
MIN_STEPS = 10
"""A straggler is judged over at least so many steps of every rank, two times in a row: a first epoch's start, a pause
for a checkpoint on one rank, are none.
"""
MOST_AHEAD = 0.1
"""By more than so large a part of its steps no rank of several that wait for each other gets ahead (and by one step),
in the same time. Ranks that do are independent, as in a sweep over settings: a slow one is nobody's loss.
"""
MIN_FACTOR = 1.3
"""Upwards of which a rank counts as slower than the median of the others ..."""
MIN_EXCESS_S = 0.02
"""... and by so much per step at least: of short steps a third more is noise, and nobody's loss."""

_NS = 1_000_000_000


class StragglerWatch:
    """One attempt of one run."""

    def __init__(self, labels: Sequence[str]) -> None:
        """`labels`: the ranks' devices, for people."""
        self._labels = labels
        self._begun_ns = 0
        self._next_ns = 0
        self._told_of: dict[int, RankNotes] = {}
        """Notes of the ranks when their step times were told last."""
        self._judged_at: dict[int, RankNotes] = {}
        """Notes of all ranks when they were compared last."""
        self._suspect: int | None = None
        self._accused: set[int] = set()

    def look(self, notes: Sequence[RankNotes], now_ns: int) -> list[StepTimes | Straggler]:
        """What to tell now. `notes`: of each rank, in their order; `now_ns`: by the clock that they are noted by."""
        if now_ns < self._next_ns or not any(one.num_steps for one in notes):
            return []
        self._begun_ns = self._begun_ns or now_ns
        every_s = max(EVERY_S, min(SLOWEST_EVERY_S, (now_ns - self._begun_ns) / _NS / _SLOWER_AFTER))
        self._next_ns = now_ns + round(every_s * _NS)
        told: list[StepTimes | Straggler] = []
        for one in notes:
            before = self._told_of.get(one.rank)
            if before is None or one.num_steps < before.num_steps:
                self._told_of[one.rank] = one
            elif one.num_steps > before.num_steps and before.num_steps:
                told.append(_step_times(before, one))
                self._told_of[one.rank] = one
            elif not before.num_steps:
                self._told_of[one.rank] = one
        return [*told, *self._judged(notes)]

    def _judged(self, notes: Sequence[RankNotes]) -> list[Straggler]:
        if not self._judged_at:
            if all(one.num_steps for one in notes):
                self._judged_at = {one.rank: one for one in notes}
            return []
        times = [_step_times(self._judged_at[one.rank], one) for one in notes]
        made = [one.num_steps - self._judged_at[one.rank].num_steps for one in notes]
        if min(made) < MIN_STEPS:
            return []
        self._judged_at = {one.rank: one for one in notes}
        # The notes of several keepers are of different moments: what counts is how far each comes in the same time.
        fastest_s, slowest_s = min(one.step_s for one in times), max(one.step_s for one in times)
        together = min(made) * (slowest_s - fastest_s) <= max(1, MOST_AHEAD * min(made)) * fastest_s
        straggler = straggler_of(times, self._labels) if together else None
        before, self._suspect = self._suspect, None if straggler is None else straggler.rank
        if straggler is None or before is None or straggler.rank != before or before in self._accused:
            return []
        self._accused.add(before)
        return [straggler]


def straggler_of(times: Sequence[StepTimes], labels: Sequence[str]) -> Straggler | None:
    """The slowest of the ranks, when it is one; None when they keep pace."""
    if len(times) < 2:  # noqa: PLR2004  a rank alone has nobody to wait for it
        return None
    slowest = max(times, key=lambda one: one.own_s)
    others = [one for one in times if one is not slowest]
    others_s = median(one.own_s for one in others)
    excess_s = slowest.own_s - others_s
    if excess_s < MIN_EXCESS_S or slowest.own_s < MIN_FACTOR * others_s:
        return None
    input_excess_s = slowest.input_s - median(one.input_s for one in others)
    by: Literal["computation", "input"] = "input" if input_excess_s > excess_s / 2 else "computation"
    rank = slowest.rank or 0
    what = (
        "it waits for its batches: give its DataLoader more workers, and look at where its data lies"
        if by == "input"
        else "in computation: look at what else uses its device or its CPUs, whether its batches are larger, and what "
        "it alone does between steps"
    )
    whose = "the other rank" if len(others) == 1 else "the others"
    text = (
        f"rank {rank} ({labels[rank]}) holds the others up by {excess_s:.2f} s in each step: its own part takes "
        f"{slowest.own_s:.2f} s, that of {whose} {others_s:.2f} s; {what}."
    )
    return Straggler(
        rank=rank, text=text, factor=slowest.own_s / max(others_s, 1e-9), by=by, own_s=slowest.own_s, others_s=others_s
    )


def _step_times(before: RankNotes, now: RankNotes) -> StepTimes:
    num_steps = max(1, now.num_steps - before.num_steps)
    return StepTimes(
        rank=now.rank,
        num_steps=now.num_steps,
        step_s=(now.step_ended_ns - before.step_ended_ns) / _NS / num_steps,
        own_s=(now.own_ns - before.own_ns) / _NS / num_steps,
        input_s=(now.input_ns - before.input_ns) / _NS / num_steps,
    )
