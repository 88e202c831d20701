"""Look after the ranks of a run while they work: who waits in vain, who is slow, whether memory runs out.

    ledger, stacks, control groups ──> run watch ──> events; the failures of a dead end

What to make of it is decided in `hang_watch`, `straggling` and `host_memory`; here is what has to be read for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from ...protocol.events import RunEvent, Stalled, StallEnded, Whereabouts
from ...protocol.failure import RankFailure
from ...protocol.ledger import ENDED, RETURNED, LedgerPage, RankNotes
from ...protocol.plan import LaunchPlan
from .. import processes
from .dead_ends import dead_end_failures, lost_peer_failures
from .hang_watch import DeadEnd, HangWatch, TellEnd, TellStall, all_in_one_call, number_in_group
from .host_memory import EVERY_S as MEMORY_EVERY_S
from .host_memory import HostMemoryWatch, low_memory, rank_bytes, read_usage
from .interconnect import interconnect_hint
from .rank_process import RankProcess
from .stacks import RankStacks, StackDesk
from .straggling import StragglerWatch
from .usage import watch_usage
from .whereabouts import duration_text, sentence, whereabouts

LOOK_EVERY_S = 0.25
_NO_STACKS = RankStacks("", {})

Tell = Callable[[RunEvent], None]
EndWith = Callable[[Sequence[RankFailure]], None]


class RunWatch:
    """One attempt of one run, in the keeper's thread."""

    def __init__(
        self,
        plan: LaunchPlan,
        page: LedgerPage,
        ranks: Sequence[RankProcess],
        desk: StackDesk,
        *,
        cells: Mapping[str, str],
        tell: Tell,
        end_with: EndWith,
    ) -> None:
        """`cells`: name of a cell's file -> its text. `tell` gets events, `end_with` the failures that end the run."""
        self._plan = plan
        self._page = page
        self._ranks = ranks
        self._by_number = {rank.rank: rank for rank in ranks}
        self._desk = desk
        self._cells = cells
        self._tell = tell
        self._end_with = end_with
        self._hangs = HangWatch(plan.timeouts.stalled_s, plan.num_ranks)
        self._stragglers = StragglerWatch([rank.device_label for rank in plan.ranks])
        self._memory = HostMemoryWatch()
        self._usage = watch_usage(plan)
        self._next_look_s = 0.0
        self._next_memory_s = 0.0
        self._fingerprints: dict[int, bytes] = {}
        self._notes: dict[int, RankNotes] = {}
        self._asking = False
        """The stacks for what was decided are on their way."""
        self._stall_told = False

    def look(self, now: float) -> None:
        """To be called as often as one likes, until the ranks are being ended. Costs some microseconds per rank, unless
        there is something to tell.
        """
        if now < self._next_look_s:
            return
        self._look_at_usage(now)
        if self._asking:
            return
        self._next_look_s = now + LOOK_EVERY_S
        notes, now_ns = self.notes(), time.monotonic_ns()
        match self._hangs.look(notes, now_ns):
            case TellStall() as stall:
                self._ask(partial(self._tell_stall, stall))
            case TellEnd(wait, waited_s) if self._stall_told:
                self._stall_told = False
                text = f"the ranks go on: rank {wait.rank} waited for {duration_text(waited_s)}"
                self._tell(StallEnded(text=text, waited_s=waited_s))
            case DeadEnd() as dead_end:
                self._ask(partial(self._end_dead, dead_end))
            case _:
                pass
        for event in self._stragglers.look(notes, now_ns):
            self._tell(event)
        if now >= self._next_memory_s:
            self._next_memory_s = now + MEMORY_EVERY_S
            self._look_at_memory()

    def notes(self) -> list[RankNotes]:
        """What each rank of this keeper has noted, in their order."""
        for rank in self._ranks:
            number = rank.rank
            fingerprint = self._page.fingerprint(number)
            if self._fingerprints.get(number) != fingerprint:
                self._fingerprints[number] = fingerprint
                self._notes[number] = self._page.notes(number)
        return [self._known(self._notes[rank.rank], rank) for rank in self._ranks]

    @staticmethod
    def _known(notes: RankNotes, rank: RankProcess) -> RankNotes:
        """A process that is gone can have left without saying so: by os._exit, or killed after it had returned."""
        return replace(notes, life=ENDED) if rank.gone and notes.life == RETURNED else notes

    def lost_peers(self) -> list[RankFailure]:
        """The failures of ranks that lost a peer which had returned, with that as their cause; see `dead_ends`."""
        failures = [failure for rank in self._ranks if (failure := rank.failure) is not None]
        return lost_peer_failures(failures, self.notes())

    def _ask(self, then: Callable[[dict[int, RankStacks]], None]) -> None:
        self._asking = True
        self._desk.ask(self._ranks, then)

    def _tell_stall(self, stall: TellStall, stacks: dict[int, RankStacks]) -> None:
        self._asking = False
        notes = self.notes()
        if not self._hangs.lasts(stall, notes):
            return
        places = self._places(stacks)
        text = sentence(places)
        if self._page.is_whole and (call := all_in_one_call(notes)) is not None:
            first = number_in_group(call.number) == 1
            text = f"{text}. {interconnect_hint(self._plan, first=first)}"
        self._stall_told = True
        self._tell(Stalled(text=text, waits_s=stall.waits_s, ranks=tuple(places)))

    def _end_dead(self, dead_end: DeadEnd, stacks: dict[int, RankStacks]) -> None:
        self._asking = False
        notes = self.notes()
        # While the stacks came, a rank may have come on, or said more about it by itself.
        if self._hangs.lasts(dead_end, notes) and not any(self._by_number[rank].outcome for rank in dead_end.waiting):
            self._end_with(dead_end_failures(dead_end, notes, {one.rank: one for one in self._places(stacks)}))

    def _places(self, stacks: dict[int, RankStacks]) -> list[Whereabouts]:
        now_ns = time.monotonic_ns()
        return [
            self._place(self._by_number[notes.rank], notes, stacks.get(notes.rank, _NO_STACKS), now_ns)
            for notes in self.notes()
        ]

    def _place(self, rank: RankProcess, notes: RankNotes, stacks: RankStacks, now_ns: int) -> Whereabouts:
        place = whereabouts(notes, stacks, now_ns=now_ns, cells=self._cells)
        if place.state == "runs" and rank.gone:
            return replace(place, state="gone")
        if not stacks.own and not rank.gone:
            # Stopped by a signal, or held by the system.
            said = f"its process does not answer, state {processes.state_of(rank.pid)}"
            return replace(place, details=(*place.details, said))
        return place

    def _look_at_usage(self, now: float) -> None:
        for usage in self._usage.look(now, {rank.rank: rank.pid for rank in self._ranks if not rank.gone}):
            self._tell(usage)

    def _look_at_memory(self) -> None:
        usage = read_usage()
        if self._memory.is_due(usage):
            held = {rank.rank: rank_bytes(rank.pid) for rank in self._ranks if not rank.gone}
            if held:
                self._tell(low_memory(usage, held))
