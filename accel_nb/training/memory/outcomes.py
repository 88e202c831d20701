"""How one try with a batch size ended on each rank, and what that means for all: pure values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ..checkpoints.meeting import Counted


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Of one rank."""

    kind: Literal["fits", "ran_out", "left", "failed"]
    """left: this rank gave the try up, since another had run out of memory. failed: any other error."""
    reason: str = ""
    """First line of the error."""
    details: str = ""
    """Of memory that ran out: more of the error, and what memory there was."""
    num_updates: int = 0
    """Optimizer steps that the try had made."""
    progress: str = ""
    """How far the rank had come at the end of the try; equal for ranks in step."""


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """One rank is about to begin the next try."""

    size: int
    """What it would try; 0: nothing is left."""
    has_closed: bool = False
    """It has left the process group that it had."""
    backend: str = ""
    """Of the group that the next try begins with; empty: the function opens it, if anybody does."""
    counted: Counted = Counted()
    """For the checkpoints of the next try."""


def ranks_out_of_memory(outcomes: Sequence[Outcome]) -> tuple[int, ...]:
    return tuple(rank for rank, outcome in enumerate(outcomes) if outcome.kind == "ran_out")


def owe_each_other_nothing(outcomes: Sequence[Outcome]) -> bool:
    """Whether the ranks may go on with the groups they have: none left in the middle of something, and what each has
    begun, all have begun, so that it will end.
    """
    return all(outcome.kind != "left" for outcome in outcomes) and len({one.progress for one in outcomes}) == 1
