"""The runs that this kernel has launched: to find the one that somebody wants to stop or to see again."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..errors import InvalidArgument
from ..launch.run import Run
from ..protocol.run_state import RunStatus
from .running_cell import RunningCell, running_cell

KEPT_RUNS = 50
"""As many folders as `accel_nb.launch.run_files` keeps."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a run that is over."""

    status: RunStatus
    duration_s: float
    headline: str = ""
    """Of its failure, one line; empty when it has none."""


class KnownRun(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    function_name: str
    log_dir: Path
    num_ranks: int
    device_kind: str
    started_s: float
    """Seconds since the epoch."""
    cell: RunningCell
    """That which launched it."""


class KnownRuns:
    """Any thread may use it. Holds no run that has ended: its values are the user's alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: list[KnownRun] = []
        self._runs: weakref.WeakValueDictionary[str, Run] = weakref.WeakValueDictionary()
        """A run that is under way is held by its own thread."""
        self._outcomes: dict[str, Outcome] = {}
        self._on_change: list[Callable[[], None]] = []

    def add(self, run: Run) -> None:
        """Of the cell that runs now, in its thread."""
        plan = run.plan
        known = KnownRun(
            run_id=plan.run_id,
            function_name=plan.function_name,
            log_dir=run.log_dir,
            num_ranks=plan.num_ranks,
            device_kind=plan.device_kind,
            started_s=time.time(),
            cell=running_cell(),
        )
        with self._lock:
            over = [one for one in self._known if one.run_id in self._outcomes]
            for one in over[: max(0, len(self._known) + 1 - KEPT_RUNS)]:
                self._known.remove(one)
                del self._outcomes[one.run_id]
            self._known.append(known)
            self._runs[plan.run_id] = run
        self._changed()
        run.when_over(self._note_end)

    def call_on_change(self, act: Callable[[], None]) -> None:
        """`act` is called when a run has begun or ended, in any thread; it must not raise."""
        self._on_change.append(act)

    def call_no_more(self, act: Callable[[], None]) -> None:
        self._on_change.remove(act)

    def all(self) -> list[KnownRun]:
        """The newest last."""
        with self._lock:
            return list(self._known)

    def outcome(self, run_id: str) -> Outcome | None:
        """None: it goes on, or is not known."""
        return self._outcomes.get(run_id)

    def running(self) -> list[Run]:
        """Those that are not over, the newest last."""
        with self._lock:
            runs = [self._runs.get(known.run_id) for known in self._known]
        return [run for run in runs if run is not None and not run.wait(0)]

    def handle(self, known: KnownRun) -> Run | None:
        """None: it is over, and nobody holds it."""
        return self._runs.get(known.run_id)

    def named(self, run_id: str) -> KnownRun | None:
        """By its whole id; None: this kernel knows no such run."""
        return next((known for known in self.all() if known.run_id == run_id), None)

    def find(self, name: str) -> KnownRun:
        """The run whose id begins, or ends, with `name`, or the newest of the function of that name.

        Raises InvalidArgument when there is none, or more than one id.
        """
        known = self.all()
        by_id = [run for run in known if run.run_id.startswith(name) or run.run_id.endswith(name)]
        if len(by_id) == 1:
            return by_id[0]
        by_function = [run for run in known if run.function_name == name]
        if by_function and not by_id:
            return by_function[-1]
        shown = ", ".join(f"{run.run_id} ({run.function_name})" for run in known[-5:]) or "none"
        problem = "fits several runs" if by_id else "is no run of this kernel"
        raise InvalidArgument(f"{name!r} {problem}; the newest are: {shown}.")

    def _note_end(self, run: Run) -> None:
        duration_s = run.state.duration_s or time.time() - self._started_s(run.plan.run_id)
        outcome = Outcome(status=run.status, duration_s=duration_s, headline=run.problem)
        with self._lock:
            self._outcomes[run.plan.run_id] = outcome
        self._changed()

    def _started_s(self, run_id: str) -> float:
        known = self.named(run_id)
        return time.time() if known is None else known.started_s

    def _changed(self) -> None:
        for act in list(self._on_change):
            act()


KNOWN = KnownRuns()
"""One per kernel."""
