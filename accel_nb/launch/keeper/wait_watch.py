"""Tell of ranks that wait and of stragglers, and end those that wait for ever: on behalf of all ranks of a run.

    notes ──▶ look ──▶ hang watch ──found──▶ ask for places ──▶ answer ──▶ events, failures

Where the ranks are held by one keeper it does this; where several keepers hold them, their kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...protocol.events import RunEvent, Stalled, StallEnded, Whereabouts
from ...protocol.failure import RankFailure
from ...protocol.ledger import RankNotes
from ...protocol.plan import LaunchPlan
from .dead_ends import dead_end_failures
from .hang_watch import DeadEnd, HangWatch, TellEnd, TellStall, all_in_one_call, number_in_group
from .interconnect import interconnect_hint
from .straggling import StragglerWatch
from .whereabouts import duration_text, sentence

LOOK_EVERY_S = 0.25

Tell = Callable[[RunEvent], None]
EndWith = Callable[[Sequence[RankFailure]], None]


class WaitWatch:
    """Of one attempt. Used by one thread."""

    def __init__(self, plan: LaunchPlan, *, ask: Callable[[], None], tell: Tell, end_with: EndWith) -> None:
        """`ask` has `answer` called later, with where all ranks are. `tell` gets events, `end_with` the failures that
        end the run.
        """
        self._plan = plan
        self._ask = ask
        self._tell = tell
        self._end_with = end_with
        self._hangs = HangWatch(plan.timeouts.stalled_s, plan.num_ranks)
        self._stragglers = StragglerWatch([rank.device_label for rank in plan.ranks])
        self._found: TellStall | DeadEnd | None = None
        """What is to be told once it is known where the ranks are."""
        self._stall_told = False

    @property
    def is_asking(self) -> bool:
        return self._found is not None

    def look(self, notes: Sequence[RankNotes], now_ns: int) -> None:
        """To be called several times a second, unless it is asking. `notes`: of each rank, in their order; `now_ns`: by
        the clock that they are noted by.
        """
        match self._hangs.look(notes, now_ns):
            case TellStall() | DeadEnd() as found:
                self._found = found
                self._ask()
            case TellEnd(wait, waited_s) if self._stall_told:
                self._stall_told = False
                text = f"the ranks go on: rank {wait.rank} waited for {duration_text(waited_s)}"
                self._tell(StallEnded(text=text, waited_s=waited_s))
            case _:
                pass
        for event in self._stragglers.look(notes, now_ns):
            self._tell(event)

    def answer(self, notes: Sequence[RankNotes], places: Sequence[Whereabouts]) -> None:
        """Of all ranks, taken after `ask` was called: a rank may have come on since."""
        found, self._found = self._found, None
        if found is None or not self._hangs.lasts(found, notes):
            return
        if isinstance(found, DeadEnd):
            self._end_with(dead_end_failures(found, notes, {one.rank: one for one in places}))
            return
        text = sentence(places)
        if (call := all_in_one_call(notes)) is not None:
            first = number_in_group(call.number) == 1
            text = f"{text}. {interconnect_hint(self._plan, first=first)}"
        self._stall_told = True
        self._tell(Stalled(text=text, waits_s=found.waits_s, ranks=tuple(places)))
