"""What came of something that each rank did for itself: known to all before any of them goes on or raises."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...errors import CheckpointError, TrainingError
from ..operations.transport import Collectives
from ..ranks.process_group import RankFacts

Value_co = TypeVar("Value_co", covariant=True)
Made = TypeVar("Made")


@dataclass(frozen=True)
class Outcome(Generic[Value_co]):
    """`value`, or else `error`."""

    value: Value_co | None
    error: Exception | None = None


@dataclass(frozen=True)
class RankReport(Generic[Value_co]):
    """What one rank tells the others."""

    rank: int
    host: str
    value: Value_co | None
    error: str
    """What was raised: our own sentence, or another error's class and text. Empty: nothing."""


def attempt(action: Callable[[], Made]) -> Outcome[Made]:
    """Any error is kept: the other ranks, which wait, must hear of it before it is raised."""
    try:
        return Outcome(action())
    except Exception as error:  # noqa: BLE001  raised by whoever reads this
        return Outcome(None, error)


def exchange(outcome: Outcome[Made], facts: RankFacts, collectives: Collectives) -> list[RankReport[Made]]:
    """Everybody's report, by rank. Every rank must call this."""
    error = outcome.error
    named = error if isinstance(error, TrainingError) else f"{type(error).__name__}: {error}"
    text = "" if error is None else str(named)
    own = RankReport(facts.process_index, platform.node(), outcome.value, text)
    return collectives.gather_object(own)  # type: ignore[return-value]  # objects travel untyped


def failures(reports: Sequence[RankReport[object]]) -> str:
    """Which ranks failed and how, one clause per different error; empty: none."""
    ranks: dict[str, list[int]] = {}
    for report in reports:
        if report.error:
            ranks.setdefault(report.error, []).append(report.rank)
    return "; ".join(f"{error} (rank {', '.join(map(str, those))})" for error, those in ranks.items())


def raise_together(outcome: Outcome[object], facts: RankFacts, collectives: Collectives, what: str) -> None:
    """Raise on all ranks if `outcome` is an error on one: there that error, on the others CheckpointError with `what`.

    Every rank must call this.
    """
    failed = failures(exchange(Outcome(None, outcome.error), facts, collectives))
    if outcome.error is not None:
        raise outcome.error
    if failed:
        raise CheckpointError(f"{what}: {failed}. Rank {facts.process_index} itself has met no error.")
