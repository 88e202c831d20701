"""Who waits for whom among ranks that several keepers hold, each with a ledger of its own: put together here.

keeper ──RanksNoted──▶ notes of all ranks ──▶ WaitWatch ──▶ events, taken up beside other kernels; FailRanks
keeper ──RanksDescribed──▶ where they are ────────┘
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace

from ....protocol.commands import DescribeRanks, FailRanks, PullNotes, RanksDescribed, RanksNoted, TakeUp
from ....protocol.events import RunEvent, Whereabouts
from ....protocol.failure import RankFailure
from ....protocol.ledger import RankNotes
from ....protocol.plan import LaunchPlan
from ...keeper.dead_ends import lost_peer_failures
from ...keeper.event_stream import EventStream
from ...keeper.stacks import NO_STACKS
from ...keeper.wait_watch import LOOK_EVERY_S, WaitWatch
from ...keeper.whereabouts import whereabouts
from .merging import Merging
from .seat import Seat

ALL_COME_S = 4.0
"""A keeper that has not said by then where its ranks are is left out."""


class JoinedWatch:
    """Of one attempt. Used by the thread that joins the keepers."""

    def __init__(self, plan: LaunchPlan, seats: Sequence[Seat], merging: Merging, events: EventStream) -> None:
        """What is found goes into `events`, too, this kernel's own."""
        self._seats = seats
        self._merging = merging
        self._events = events
        self._waits = self._watch_of(plan)
        self._notes = {rank.rank: _nothing_of(rank.rank) for rank in plan.ranks}
        """By this machine's clock."""
        self._places: dict[int, Whereabouts] = {}
        self._awaited: set[int] = set()
        """Seats that have been asked where their ranks are."""
        self._until_s = 0.0
        self._next_look_s = 0.0

    def begin(self, plan: LaunchPlan) -> None:
        """The keepers have the run. `plan`: with the machines and devices that its ranks have turned out to have."""
        self._waits = self._watch_of(plan)
        for seat in self._seats:
            seat.send(PullNotes())

    def take(self, seat: Seat, message: RanksNoted | RanksDescribed) -> None:
        match message:
            case RanksNoted():
                self._note(seat, message.notes)
                seat.send(PullNotes())
            case RanksDescribed():
                self._note(seat, message.notes)
                self._places |= {one.rank: one for one in message.places if one.rank in seat.ranks}
                self._awaited.discard(seat.number)

    def look(self, now: float) -> None:
        """To be called as often as one likes. Nothing is looked for once ranks are being ended."""
        if self._merging.is_ending:
            return
        if self._waits.is_asking:
            if not self._awaited or now >= self._until_s:
                self._waits.answer(self._all_notes(), self._all_places())
        elif now >= self._next_look_s:
            self._next_look_s = now + LOOK_EVERY_S
            self._waits.look(self._all_notes(), time.monotonic_ns())

    def explain_lost_peers(self) -> None:
        """Before the ranks of the others are ended, or when all have: who has only lost a rank that had returned is
        told so; see `dead_ends`.
        """
        failures = lost_peer_failures(self._merging.failures, self._all_notes())
        self._events.add_all(self._merging.explain(failures))

    def _watch_of(self, plan: LaunchPlan) -> WaitWatch:
        return WaitWatch(plan, ask=self._ask, tell=self._tell, end_with=self._end_with)

    def _note(self, seat: Seat, notes: Sequence[RankNotes]) -> None:
        self._notes |= {one.rank: by_clock(one, seat.ahead_ns) for one in notes if one.rank in seat.ranks}

    def _all_notes(self) -> list[RankNotes]:
        return list(self._notes.values())

    def _all_places(self) -> list[Whereabouts]:
        now_ns = time.monotonic_ns()
        return [
            self._places.get(one.rank) or whereabouts(one, NO_STACKS, now_ns=now_ns, cells={})
            for one in self._all_notes()
        ]

    def _ask(self) -> None:
        self._places.clear()
        self._until_s = time.monotonic() + ALL_COME_S
        asked = [seat for seat in self._seats if seat.is_there and not seat.run_ended]
        self._awaited = {seat.number for seat in asked}
        for seat in asked:
            seat.send(DescribeRanks())

    def _tell(self, event: RunEvent) -> None:
        self._events.add(event)
        for seat in self._seats:
            # A stall holds the stacks of all ranks: they are not sent to each of them where nobody looks, as under MPI.
            if seat.has_kernel and (event.rank is None or event.rank in seat.ranks):
                seat.send(TakeUp(events=(event,)))

    def _end_with(self, failures: Sequence[RankFailure]) -> None:
        for seat in self._seats:
            own = tuple(failure for failure in failures if failure.rank in seat.ranks)
            if own:
                seat.send(FailRanks(failures=own))


def _nothing_of(rank: int) -> RankNotes:
    return RankNotes(
        rank=rank, life=0, number=0, call=None, activity="", activity_file="", activity_line=0, activity_since_ns=0,
        num_steps=0, step_ended_ns=0, own_ns=0, input_ns=0, batch_size=0,
    )  # fmt: skip


def by_clock(notes: RankNotes, ahead_ns: int) -> RankNotes:
    """`notes` by a clock that is `ahead_ns` ahead of theirs. 0 is no time, and stays so."""

    def moved(time_ns: int) -> int:
        return max(1, time_ns + ahead_ns) if time_ns else 0

    call = notes.call
    if call is not None:
        call = replace(call, begun_ns=moved(call.begun_ns), ended_ns=moved(call.ended_ns))
    # The others, such as `own_ns`, say how long something took.
    names = [name for name in RankNotes.__struct_fields__ if name.endswith(("_since_ns", "_ended_ns"))]
    return replace(notes, call=call, **{name: moved(getattr(notes, name)) for name in names})
