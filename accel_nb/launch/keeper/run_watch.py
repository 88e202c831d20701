"""Look after the ranks of a run while they work: who waits in vain, who is slow, whether memory runs out.

    ledger, stacks, control groups ──> run watch ──> events; the failures of a dead end

What to make of it is decided in `hang_watch`, `straggling` and `host_memory`; here is what has to be read for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from ...protocol.commands import DescribeRanks, FailRanks, PartCommand, PullNotes, TakeUp
from ...protocol.events import Notice, Whereabouts
from ...protocol.failure import RankFailure
from ...protocol.ledger import ENDED, RETURNED, LedgerPage, RankNotes
from ...protocol.plan import LaunchPlan
from .. import processes
from .dead_ends import lost_peer_failures
from .host_memory import EVERY_S as MEMORY_EVERY_S
from .host_memory import HostMemoryWatch, low_memory, rank_bytes, read_usage
from .notes_report import NotesReport, Send
from .rank_process import RankProcess
from .stacks import NO_STACKS, RankStacks, StackDesk
from .telling import tell_opened_group
from .usage import watch_usage
from .wait_watch import LOOK_EVERY_S, EndWith, Tell, WaitWatch
from .whereabouts import what_lingers, whereabouts

OnPlaces = Callable[[Sequence[RankNotes], Sequence[Whereabouts]], None]


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
        send: Send,
    ) -> None:
        """`cells`: name of a cell's file -> its text. `tell` gets events, `end_with` the failures that end the run.
        `send`: to the kernel, which looks after the ranks' waits where they are not all here.
        """
        self._page = page
        self._ranks = ranks
        self._by_number = {rank.rank: rank for rank in ranks}
        self._desk = desk
        self._cells = cells
        self._tell = tell
        self._end_with = end_with
        self._send = send
        self._report = NotesReport(send)
        self._waits = WaitWatch(plan, ask=self._ask, tell=tell, end_with=self._end)
        self._memory = HostMemoryWatch()
        self._usage = watch_usage(plan)
        self._next_look_s = 0.0
        self._next_memory_s = 0.0
        self._fingerprints: dict[int, bytes] = {}
        self._notes: dict[int, RankNotes] = {}

    def look(self, now: float) -> None:
        """To be called as often as one likes, until the ranks are being ended. Costs some microseconds per rank, unless
        there is something to tell.
        """
        if now < self._next_look_s:
            return
        self._look_at_usage(now)
        if self._waits.is_asking:
            return
        self._next_look_s = now + LOOK_EVERY_S
        if self._page.is_whole:
            self._waits.look(self.notes(), time.monotonic_ns())
        else:
            self._report.look(self.notes(), now)
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
        if not self._page.is_whole:
            # The kernel, which knows of all ranks, explains it.
            self.tell_notes()
            return []
        failures = [failure for rank in self._ranks if (failure := rank.failure) is not None]
        return lost_peer_failures(failures, self.notes())

    def obey(self, command: PartCommand) -> None:
        """What the kernel wants that looks after the waits of all ranks."""
        match command:
            case PullNotes():
                self._report.ask()
            case DescribeRanks():
                self._describe(self._report.describe)
            case FailRanks():
                self._end([replace(failure, time_s=time.monotonic()) for failure in command.failures])
            case TakeUp():
                for event in command.events:
                    self._tell(event)

    def tell_notes(self) -> None:
        """What is new in them, at once, to the kernel that looks after the waits of all ranks, if one does: a rank has
        failed, or all have ended.
        """
        if not self._page.is_whole:
            self._report.tell_now(self.notes())

    def tell_lingering(self, rank: RankProcess) -> None:
        """`rank` has returned and does not end: say so, and what keeps it, within about two seconds."""

        def tell(stacks: dict[int, RankStacks]) -> None:
            if not rank.gone:
                what = what_lingers(stacks.get(rank.rank, NO_STACKS), self._cells)
                self._tell(Notice(text=f"rank {rank.rank} has returned, but its process goes on: {what}."))

        self._desk.ask(self._ranks, tell)

    def close(self) -> None:
        """All ranks have ended: what the kernel is to know of their notes."""
        tell_opened_group(self._page, self._send)
        self.tell_notes()

    def _end(self, failures: Sequence[RankFailure]) -> None:
        # A rank may have said more about it by itself.
        if not any(self._by_number[failure.rank].outcome for failure in failures):
            self._end_with(failures)

    def _ask(self) -> None:
        self._describe(self._waits.answer)

    def _describe(self, then: OnPlaces) -> None:
        """Have `then` called with the notes of the ranks and where they are, within about two seconds."""
        self._desk.ask(self._ranks, lambda stacks: then(self.notes(), self._places(stacks)))

    def _places(self, stacks: dict[int, RankStacks]) -> list[Whereabouts]:
        now_ns = time.monotonic_ns()
        return [
            self._place(self._by_number[notes.rank], notes, stacks.get(notes.rank, NO_STACKS), now_ns)
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
