"""The end of ranks that wait for ever, as failures that name the cause and what to do."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ...protocol.events import Whereabouts
from ...protocol.failure import RankFailure
from ...protocol.ledger import ENDED, RETURNED, Call, RankNotes
from .hang_watch import DeadEnd
from .whereabouts import after_steps, operation_name, rank_names

_CALL_ALIKE = (
    "Every rank has to call the operations of all ranks, equally often and in the same order: keep them out of what "
    "only some ranks run (`if accelerator.is_main_process:`)"
)
_EQUALLY_MANY = (
    ", and give all ranks equally many batches (prepared loaders do, unless even_batches=False) or wrap the loop into "
    "`with accelerator.join_uneven_inputs([model], even_batches=False)`"
)


def dead_end_failures(
    dead_end: DeadEnd, notes: Sequence[RankNotes], places: Mapping[int, Whereabouts]
) -> list[RankFailure]:
    """One for each rank that waits. `places`: by rank."""
    by_rank = {one.rank: one for one in notes}
    waiting = [by_rank[rank] for rank in dead_end.waiting]
    if dead_end.absent:
        why = _returned_text([by_rank[rank] for rank in dead_end.absent], waiting)
    else:
        calls = [f"rank {one.rank} in {_call_text(one.call)}{_in(places[one.rank])}" for one in waiting if one.call]
        why = f"the ranks are in operations that do not fit together: {', '.join(calls)}. {_CALL_ALIKE}."
    return [
        RankFailure(
            rank=one.rank,
            kind="dead_end",
            message=f"waits for ever{_operation(one.call)}{_in(places[one.rank])}: {why}",
            location=places[one.rank].place,
            stack=places[one.rank].stack,
            time_s=time.monotonic(),
        )
        for one in waiting
    ]


def lost_peer_failures(failures: Sequence[RankFailure], notes: Sequence[RankNotes]) -> list[RankFailure]:
    """Those of `failures` that say no more than that a peer is gone, with the cause: ranks that had returned by then.

    Empty when another rank has failed of its own, whose end explains theirs, or when none had returned.
    """
    returned = [one for one in notes if one.life in (RETURNED, ENDED)]
    lost = [failure for failure in failures if failure.kind == "raised" and failure.consequence]
    own = [failure for failure in failures if not failure.consequence and failure.kind != "stopped"]
    if not returned or not lost or own:
        return []
    waiting = [one for one in notes if one.rank in {failure.rank for failure in lost}]
    why = _returned_text(returned, waiting)
    return [
        replace(failure, kind="dead_end", message=f"{_lost(failure)}: {why}", consequence=False, explanation=None)
        for failure in lost
    ]


def _returned_text(returned: Sequence[RankNotes], waiting: Sequence[RankNotes]) -> str:
    by_steps: dict[int, list[int]] = {}
    for one in returned:
        by_steps.setdefault(one.num_steps, []).append(one.rank)
    parts = [
        f"{rank_names(ranks)} {'have' if len(ranks) > 1 else 'has'} returned{after_steps(num_steps)}"
        for num_steps, ranks in by_steps.items()
    ]
    most = max(one.num_steps for one in waiting)
    remedy = _CALL_ALIKE
    if most or any(by_steps):
        ranks = [one.rank for one in waiting if one.num_steps == most]
        parts.append(f"{rank_names(ranks)} {'are' if len(ranks) > 1 else 'is'} in step {most + 1}")
        remedy += _EQUALLY_MANY
    return f"{', '.join(parts)}. {remedy}."


def _lost(failure: RankFailure) -> str:
    place = f" ({failure.location})" if failure.location else ""
    return f"waited for a rank that had ended{place}"


def _operation(call: Call | None) -> str:
    return f" in {operation_name(call.operation)}" if call is not None else ""


def _call_text(call: Call) -> str:
    return f"{operation_name(call.operation)}({call.given})"


def _in(place: Whereabouts) -> str:
    return f" ({place.place})" if place.place else ""
