"""The runs that this kernel has launched: to find the one that somebody wants to stop or to see again."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from pathlib import Path
from typing import NamedTuple

from ..errors import InvalidArgument
from ..launch.run import Run

KEPT_RUNS = 50
"""As many folders as `accel_nb.launch.run_files` keeps."""


class KnownRun(NamedTuple):
    run_id: str
    function_name: str
    log_dir: Path


class KnownRuns:
    """Any thread may use it. Holds no run that has ended: its values are the user's alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: deque[KnownRun] = deque(maxlen=KEPT_RUNS)
        self._runs: weakref.WeakValueDictionary[str, Run] = weakref.WeakValueDictionary()
        """A run that is under way is held by its own thread."""

    def add(self, run: Run) -> None:
        plan = run.plan
        with self._lock:
            self._known.append(KnownRun(plan.run_id, plan.function_name, run.log_dir))
            self._runs[plan.run_id] = run

    def all(self) -> list[KnownRun]:
        """The newest last."""
        with self._lock:
            return list(self._known)

    def running(self) -> list[Run]:
        """Those that are not over, the newest last."""
        with self._lock:
            runs = [self._runs.get(known.run_id) for known in self._known]
        return [run for run in runs if run is not None and not run.wait(0)]

    def handle(self, known: KnownRun) -> Run | None:
        """None: it is over, and nobody holds it."""
        return self._runs.get(known.run_id)

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


KNOWN = KnownRuns()
"""One per kernel."""
