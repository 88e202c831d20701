"""Who waits for whom, and whether that can end: decided from what the ranks have noted, and a clock. Pure.

A rank that waits for long is told, and goes on waiting: silence alone never ends a run. What ends it is a *dead end*: a
rank waits in an operation that another one will provably never come to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...protocol.ledger import ENDED, GENERATION_BITS, RETURNED, RUNNING, Call, RankNotes

RETURNED_SETTLE_S = 1.0
"""A rank that waits for one which has returned gets this long to notice it by itself, when its connection closes: its
own traceback says more.
"""
DIFFERENT_SETTLE_S = 2.0
"""Ranks that compare what they call raise by themselves within a few milliseconds, unless they are starved."""
BUSY_OTHERS = 4
"""While other ranks note this and that, a wait must be so many times as long before it is told: they come further."""
ENDED_BY_ITSELF = 1.5
"""A wait that was told and then ended by itself is usual in this run: from then on one so many times as long is."""

_BACKWARD = "backward"
_NS = 1_000_000_000


class Wait(NamedTuple):
    """One rank inside of something that does not end."""

    rank: int
    what: str
    begun_ns: int
    elsewhere: bool = False
    """Another thread than the function's is."""


class TellStall(NamedTuple):
    """Somebody should look."""

    wait: Wait
    waits_s: float


class TellEnd(NamedTuple):
    """The wait that was told is over."""

    wait: Wait
    waited_s: float


class DeadEnd(NamedTuple):
    """`waiting` ranks wait for ever: for `absent` ranks, which have returned, or for each other."""

    waiting: tuple[int, ...]
    absent: tuple[int, ...]
    """Empty: the waiting ranks are in different operations."""


Decision = TellStall | TellEnd | DeadEnd | None


class HangWatch:
    """One attempt of one run. `look` is to be called several times a second."""

    def __init__(self, stalled_s: float, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._patience_s = stalled_s
        self._changed_ns: dict[int, int] = {}
        self._seen: dict[int, RankNotes] = {}
        self._told: Wait | None = None
        self._told_ns = 0
        self._next_s = stalled_s
        self._dead_end: DeadEnd | None = None
        self._dead_since_ns = 0

    def look(self, notes: Sequence[RankNotes], now_ns: int) -> Decision:
        """What to do now. `notes`: of each rank, in their order; `now_ns`: by the clock that they are noted by."""
        for one in notes:
            if (seen := self._seen.get(one.rank)) is not one and seen != one:
                self._seen[one.rank] = one
                self._changed_ns[one.rank] = now_ns
        if (dead_end := self._settled(dead_end_of(notes), now_ns)) is not None:
            return dead_end
        elsewhere, waits = _waits_elsewhere(notes), _waits(notes, self._num_ranks)
        if self._told is not None and self._told not in (*waits, *elsewhere):
            return self._over(self._told, now_ns)
        waits = waits or elsewhere
        if (wait := self._told or min(waits, key=lambda each: each.begun_ns, default=None)) is None:
            return None
        waits_s = (now_ns - wait.begun_ns) / _NS
        if not self._is_due(wait, waits_s, now_ns):
            return None
        self._told, self._told_ns, self._next_s = wait, now_ns, 2 * waits_s
        return TellStall(wait, waits_s)

    def lasts(self, found: TellStall | DeadEnd, notes: Sequence[RankNotes]) -> bool:
        """Whether `notes`, taken later, still show what `look` has found."""
        if isinstance(found, DeadEnd):
            return dead_end_of(notes) == found
        return found.wait in (*_waits(notes, self._num_ranks), *_waits_elsewhere(notes))

    def _is_due(self, wait: Wait, waits_s: float, now_ns: int) -> bool:
        changed_ns = max(self._changed_ns.values())
        quiet_s = (now_ns - changed_ns) / _NS
        if wait.elsewhere and quiet_s < self._patience_s:
            return False  # it may wait for what comes rarely, while the function goes on
        if self._told is not None and changed_ns > self._told_ns and quiet_s >= self._patience_s:
            return True  # the picture has changed
        return waits_s >= self._next_s * (1 if quiet_s >= self._patience_s else BUSY_OTHERS)

    def _over(self, wait: Wait, now_ns: int) -> TellEnd:
        waited_s = (now_ns - wait.begun_ns) / _NS
        self._told = None
        self._next_s = self._patience_s = max(self._patience_s, waited_s * ENDED_BY_ITSELF)
        return TellEnd(wait, waited_s)

    def _settled(self, dead_end: DeadEnd | None, now_ns: int) -> DeadEnd | None:
        """`dead_end` when it has been the same for long enough."""
        if dead_end != self._dead_end:
            self._dead_end, self._dead_since_ns = dead_end, now_ns
        if dead_end is None:
            return None
        settle_s = RETURNED_SETTLE_S if dead_end.absent else DIFFERENT_SETTLE_S
        return dead_end if now_ns - self._dead_since_ns >= settle_s * _NS else None


def open_call(notes: RankNotes) -> Call | None:
    """The operation of all ranks that the rank is inside of."""
    call = notes.call
    return call if notes.life == RUNNING and call is not None and not call.ended_ns else None


def dead_end_of(notes: Sequence[RankNotes]) -> DeadEnd | None:
    """Which ranks can never go on, as it looks now."""
    opened = {one.rank: call for one in notes if (call := open_call(one)) is not None}
    calls = {rank: call for rank, call in opened.items() if _are_aligned(notes, call.number)}
    ended = [one for one in notes if one.life == ENDED]
    # The n-th operation of one rank belongs to the n-th of another, and who has ended makes no more of them.
    absent = {rank: [other.rank for other in ended if not _came_to(other, call.number)] for rank, call in calls.items()}
    if any(absent.values()):
        waiting = tuple(rank for rank, others in absent.items() if others)
        return DeadEnd(waiting, tuple(sorted(set().union(*absent.values()))))
    by_number: dict[tuple[int, int], dict[int, set[int]]] = {}
    for rank, call in calls.items():
        if call.signature:
            by_number.setdefault((call.number, call.num_elsewhere), {}).setdefault(call.signature, set()).add(rank)
    for ranks_by_signature in by_number.values():
        if len(ranks_by_signature) > 1:
            return DeadEnd(tuple(sorted(set().union(*ranks_by_signature.values()))), ())
    return None


def all_in_one_call(notes: Sequence[RankNotes]) -> Call | None:
    """The operation that every rank waits in; None when they are not all in the same."""
    calls = [open_call(one) for one in notes]
    first = calls[0] if calls else None
    if first is None or not _are_aligned(notes, first.number):
        return None
    # Also how many operations other threads had begun by then.
    same = (first.number, first.signature, first.num_elsewhere)
    return first if all(call and (call.number, call.signature, call.num_elsewhere) == same for call in calls) else None


def number_in_group(number: int) -> int:
    """Of a call, within its process group, from 1."""
    return number & ((1 << GENERATION_BITS) - 1)


def _are_aligned(notes: Sequence[RankNotes], number: int) -> bool:
    """As `LedgerPage.are_aligned`."""
    generation = number >> GENERATION_BITS
    counts = (one.num_elsewhere for one in notes)
    return len({count if count >> GENERATION_BITS == generation else 0 for count in counts}) <= 1


def _came_to(notes: RankNotes, number: int) -> bool:
    """Whether the rank has begun the call `number`, in a process group that it may have closed since."""
    is_past_group = notes.number >> GENERATION_BITS > number >> GENERATION_BITS
    return (notes.number_before if is_past_group else notes.number) >= number


def _waits(notes: Sequence[RankNotes], num_ranks: int) -> list[Wait]:
    waits = [wait for one in notes if (wait := _wait_of(one, num_ranks)) is not None]
    if not waits:
        waits = _parted(notes)
    return waits


def _waits_elsewhere(notes: Sequence[RankNotes]) -> list[Wait]:
    """Other threads than the functions', in operations of all ranks."""
    return [
        Wait(one.rank, f"{one.elsewhere} {one.num_elsewhere}", one.elsewhere_since_ns, elsewhere=True)
        for one in notes
        if one.elsewhere and one.life in (RUNNING, RETURNED)
    ]


def _wait_of(notes: RankNotes, num_ranks: int) -> Wait | None:
    if (call := open_call(notes)) is not None:
        return Wait(notes.rank, f"call {call.number}", call.begun_ns)
    if notes.life != RUNNING or not notes.activity:
        return None
    if notes.activity == _BACKWARD and num_ranks == 1:
        return None  # its own computation: there is nobody to wait for
    return Wait(notes.rank, notes.activity, notes.activity_since_ns)


def _parted(notes: Sequence[RankNotes]) -> list[Wait]:
    """Nobody is inside of an operation, but a rank has begun one that others have not come to: on GPUs the wait is
    where the result is first used.
    """
    begun = [one for one in notes if one.call is not None and one.life == RUNNING]
    first = max(begun, key=lambda one: one.number, default=None)
    if first is None or first.call is None or all(_came_to(other, first.number) for other in notes):
        return []
    if not _are_aligned(notes, first.number):
        return []
    return [Wait(first.rank, f"after call {first.number}", first.call.ended_ns or first.call.begun_ns)]
