"""How ranks make sure, through the ledger, that they are about to do the same: before an operation, without sending.

    note the call -> wait until every peer's number has reached it -> compare signatures -> carry it out, or raise

Ranks of one run on one host. Whoever raises leaves its note in place for those who still have to read it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..errors import AnotherRankFailed, DistributedOperationException
from .ledger import ENDED, FAILED, GENERATION_BITS, Call, LedgerPage, RankLedger
from .mismatch import mismatch
from .places import place_text

_SPIN_S = 200e-6
"""Peers that come within this are met without a sleep, which the system makes at least 50 microseconds long; only where
each rank can have a CPU, since elsewhere it keeps the others from coming.
"""
_SHORTEST_PAUSE_S = 25e-6
_LONGEST_PAUSE_S = 1e-3
"""In a wait of up to `_LONG_S`; then a `_PAUSE_SHARE` of it."""
_PAUSE_SHARE = 1 / 200
_LONGEST_PAUSE_OF_LONG_S = 20e-3
_SECOND_LOOK_S = 1e-3
_ALL_COME_S = 5.0
"""So long a rank that has found a difference waits for the others, to tell what they call."""
_LONG_S = 1.0
"""In a wait longer than this the time-out is looked up."""


class _Paused(threading.local):
    depth = 0


_paused = _Paused()
_questions: list[Callable[[], None]] = []


@contextmanager
def unchecked() -> Iterator[None]:
    """Within the block the operations of the calling thread are carried out at once: ranks compare nothing. To be used
    on all ranks at the same point. Inside a launch the calls are noted all the same.
    """
    _paused.depth += 1
    try:
        yield
    finally:
        _paused.depth -= 1


def is_unchecked() -> bool:
    return _paused.depth > 0


def ask_while_waiting(question: Callable[[], None]) -> None:
    """Call `question` again and again in every wait of this process; what it raises ends the wait, and the call counts
    as not made.
    """
    if question not in _questions:
        _questions.append(question)


def agree(
    own: RankLedger,
    number: int,
    *,
    timeout_s: Callable[[], float | None],
    at_most_s: float | None = None,
) -> str:
    """Return when every rank has noted a call `number` like this rank's, which it has noted. Gives why the operation
    can only fail all the same, since a rank has closed the process group; usually empty.

    `timeout_s`: gives how long to wait until it is an error, None for ever; only asked in a long wait. `at_most_s`:
    after so long return all the same, to compare with those that have come; None: do not.

    Raises DistributedOperationException on every rank when calls differ, or when a rank can never come or does not in
    time; AnotherRankFailed when one that is waited for has failed. Nothing is compared where this rank, or a peer, does
    not compare; peers are waited for all the same. Ranks whose numbers are not aligned neither wait nor compare.
    """
    peers = [rank for rank in range(own.page.num_ranks) if rank != own.rank]
    late = _late(own.page, peers, number)
    if late:
        _wait(own, number, late, timeout_s=timeout_s, at_most_s=at_most_s)
    _compare(own, number, peers, waited=True)
    left = _left(own.page, number, peers)
    return _left_text(own, number, left) if left and _is_aligned(own, number) else ""


def look(own: RankLedger, number: int) -> None:
    """Compare call `number`, which this rank has noted, with those of the ranks that have come to it already.

    DistributedOperationException when one differs, on the ranks that find out.
    """
    _compare(own, number, [rank for rank in range(own.page.num_ranks) if rank != own.rank], waited=False)


def _is_aligned(own: RankLedger, number: int) -> bool:
    return own.page.are_aligned(number >> GENERATION_BITS)


def _belong(own: RankLedger, rank: int, number: int) -> bool:
    """Whether `rank`'s call of that number is the one that this rank's belongs to."""
    page = own.page
    return _is_aligned(own, number) and page.elsewhere_at(rank, number) == page.elsewhere_at(own.rank, number)


def _late(page: LedgerPage, ranks: Sequence[int], number: int) -> list[int]:
    return [rank for rank in ranks if page.number(rank) < number]


def _wait(
    own: RankLedger,
    number: int,
    late: list[int],
    *,
    timeout_s: Callable[[], float | None],
    at_most_s: float | None,
) -> None:
    started = time.monotonic()
    limit_s: float | None = None
    crowded = own.page.num_ranks > len(os.sched_getaffinity(0))
    spin_s = 0.0 if crowded else _SPIN_S
    while late:
        waited_s = time.monotonic() - started
        if not _is_aligned(own, number):
            return
        _refuse_hopeless(own, number, late)
        try:
            for question in _questions:
                question()
        except BaseException:
            own.withdraw(number)
            raise
        if waited_s < spin_s:
            os.sched_yield()
        else:
            time.sleep(_pause_s(waited_s, crowded=crowded))
        if at_most_s is not None and waited_s > at_most_s:
            return
        if waited_s > _LONG_S:
            limit_s = timeout_s() if limit_s is None else limit_s
            if limit_s is not None and waited_s > limit_s:
                raise DistributedOperationException(_timeout_text(own, number, late, limit_s))
        late = _late(own.page, late, number)


def _pause_s(waited_s: float, *, crowded: bool) -> float:
    """How long to sleep before the next look, so that both the delay and the cost stay small beside the wait.

    `crowded`: there are more ranks than CPUs, and each look keeps from its work the one that is waited for.
    """
    if waited_s < _LONG_S:
        return max(_SHORTEST_PAUSE_S, min(waited_s / (3 if crowded else 8), _LONGEST_PAUSE_S))
    return min(waited_s * _PAUSE_SHARE, _LONGEST_PAUSE_OF_LONG_S)


def _refuse_hopeless(own: RankLedger, number: int, late: Sequence[int]) -> None:
    """Raise when a rank of `late` will never call operation `number`."""
    page = own.page
    for rank in late:
        life = page.life(rank)
        # Its last call was noted before its end was.
        if life not in (ENDED, FAILED) or page.number(rank) >= number:
            continue
        operation, where = _own_call(own, number)
        if life == FAILED:
            raise AnotherRankFailed(f"rank {rank} has failed; {operation}{where} cannot go on without it.")
        raise DistributedOperationException(
            f"rank {rank} has returned from the function without calling {operation}, in which the others wait for it"
            f"{where}.{_steps_text(page)} Every rank has to call it, and equally often: take it out of an `if` that "
            "not all ranks enter, and let loops around it have as many turns on all ranks."
        )


def _compare(own: RankLedger, number: int, peers: Sequence[int], *, waited: bool) -> None:
    page = own.page
    signature = page.signature(own.rank, number)
    if not signature:
        return
    for rank in peers:
        # None: it is further than the ledger reaches back, or has not come; 0: it does not compare.
        if page.signature(rank, number) in (signature, None, 0) or not _belong(own, rank, number):
            continue
        # A note may be met half written, if not on x86.
        time.sleep(_SECOND_LOOK_S)
        if page.signature(rank, number) not in (signature, None, 0) and _belong(own, rank, number):
            raise _difference(own, number, waited=waited)


def _left(page: LedgerPage, number: int, peers: Sequence[int]) -> list[int]:
    """Those of `peers` that have closed the process group before they came to call `number`."""
    generation = number >> GENERATION_BITS
    gone = [rank for rank in peers if page.number(rank) >> GENERATION_BITS > generation]
    return [rank for rank in gone if page.number_before(rank) < number]


def _left_text(own: RankLedger, number: int, left: Sequence[int]) -> str:
    operation, where = _own_call(own, number)
    ranks = " and ".join(f"rank {rank}" for rank in left)
    return (
        f"{ranks} closed the process group without calling {operation}, in which the others wait{where}. Every rank "
        "has to call the same operations before the group is closed."
    )


def _difference(own: RankLedger, number: int, *, waited: bool) -> DistributedOperationException:
    """`waited`: all ranks compare like this, so that one of them can be the one that reports it."""
    page = own.page
    everyone = range(page.num_ranks)
    end = time.monotonic() + (_ALL_COME_S if waited else 0.0)
    while time.monotonic() < end:
        awaited = [rank for rank in _late(page, everyone, number) if page.life(rank) not in (ENDED, FAILED)]
        if not awaited:
            break
        time.sleep(_LONGEST_PAUSE_S)
    calls = [page.call(rank, number) for rank in everyone]
    first = next(rank for rank, call in enumerate(calls) if call is not None)
    return mismatch(
        [call.operation if call else "" for call in calls],
        [call.given if call else "" for call in calls],
        [place_text(call.file, call.line) if call else "" for call in calls],
        reports=own.rank == first if waited else own.is_first_to_report(number),
    )


def _own_call(own: RankLedger, number: int) -> tuple[str, str]:
    """The operation's name, and the user's line in brackets if it is known."""
    call = own.page.call(own.rank, number)
    assert call is not None
    return call.operation, _where(call)


def _where(call: Call) -> str:
    place = place_text(call.file, call.line)
    return f" ({place})" if place else ""


def _steps_text(page: LedgerPage) -> str:
    steps = [page.notes(rank).num_steps for rank in range(page.num_ranks)]
    if not any(steps):
        return ""
    counted = ", ".join(f"rank {rank} {number}" for rank, number in enumerate(steps))
    return f" Optimizer steps so far: {counted}."


def _timeout_text(own: RankLedger, number: int, late: Sequence[int], limit_s: float) -> str:
    operation, where = _own_call(own, number)
    ranks = " and ".join(f"rank {rank}" for rank in late)
    return (
        f"rank {own.rank} of {own.page.num_ranks} waited {limit_s:g} s in {operation}{where} for {ranks}. "
        f"{' '.join(_doing(own.page, rank) for rank in late)} Every rank has to call it, in the same order."
    )


def _doing(page: LedgerPage, rank: int) -> str:
    notes = page.notes(rank)
    if notes.activity:
        place = place_text(notes.activity_file, notes.activity_line)
        return f"rank {rank} is in {notes.activity}{f' ({place})' if place else ''}."
    if notes.call is None:
        return f"rank {rank} has called no operation yet."
    state = "has come out of" if notes.call.ended_ns else "is still in"
    return f"rank {rank} {state} {notes.call.operation}{_where(notes.call)}."
