"""One try: calls the function with a batch size, and makes of its end an `Outcome` that holds nothing of the try."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...devices import nccl_groups
from ...protocol import lockstep, sink
from ...protocol.events import BatchSizeBegun, RanOutOfMemory
from ..ranks import placement
from . import regroup
from .agreement import Ranks
from .held import Held
from .outcomes import Outcome
from .recognition import first_line, should_reduce_batch_size

_DETAILS_CHARS = 1000


@dataclass(frozen=True)
class Try:
    """Of one function, on this rank. `ranks`: None when it is alone."""

    name: str
    size: int
    number: int
    ranks: Ranks | None
    held: Held

    def call(self, function: Callable[[], Any]) -> tuple[Outcome, Any]:
        """How it has ended, and what `function` returned where it fits. The other ranks know it by then.

        Any error that has nothing to do with memory that ran out, here or on another rank, is raised.
        """
        sink.emit(BatchSizeBegun(function=self.name, batch_size=self.size))
        value = None
        try:
            with self._watched():
                value = function()
            outcome = Outcome(kind="fits", progress=_progress())
        except Exception as error:
            known = self._known(error, _progress())
            if known is None:
                self._report(Outcome(kind="failed", reason=first_line(error)))
                raise
            outcome = known
            _let_go_of_frames(error)
        except BaseException as error:
            self._report(Outcome(kind="failed", reason=first_line(error)))
            raise
        self._report(outcome)
        return outcome, value

    def _watched(self) -> contextlib.AbstractContextManager[None]:
        if self.ranks is None:
            return contextlib.nullcontext()
        return self.ranks.trying(self.number, _abort)

    def _known(self, error: Exception, progress: str) -> Outcome | None:
        """What `error` means for the search; None: nothing, it is the user's."""
        if should_reduce_batch_size(error):
            return Outcome(
                kind="ran_out",
                reason=first_line(error),
                details=f"{str(error).strip()[:_DETAILS_CHARS]} ({placement.memory_figures()})",
                num_updates=self.held.num_updates_since(),
                progress=progress,
            )
        # Whatever a rank meets after another has run out follows from that: told before any connection is closed.
        if self.ranks is not None and self.ranks.has_run_out(self.number):
            return Outcome(kind="left", reason=first_line(error), progress=progress)
        return None

    def _report(self, outcome: Outcome) -> None:
        if self.ranks is None:
            return
        if outcome.kind == "ran_out":
            sink.emit(RanOutOfMemory(function=self.name, batch_size=self.size))
        self.ranks.report(self.number, outcome)


def _progress() -> str:
    """How far this rank has come: those that say the same can go on with the groups they have."""
    return f"{regroup.progress_of_groups()}; {lockstep.counted()}"


def _abort() -> None:
    """Called in a watching thread: this rank may wait in an operation of a group which another has left."""
    if regroup.frees_by_abort():
        nccl_groups.abort()


def _let_go_of_frames(error: BaseException) -> None:
    """Clear what the frames of the try hold, whoever keeps `error`."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
