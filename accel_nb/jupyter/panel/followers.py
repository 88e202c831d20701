"""The runs that pages follow: those under way by their handle, those that are over by their recording."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

from ...errors import PlanError
from ...launch.recording import recorded_events
from ...launch.run import Run
from ...launch.run_files import folder_of
from ...protocol.panel import PanelNews, Refused, RunNews
from ..known_runs import KnownRuns
from ..run_feed import SEND_INTERVAL_S, whole_of_events
from .followed import FollowedRun
from .pages import Answer

ENDS_S = 5.0
"""A thread that follows a run looks this often, many times over, whether it is still wanted."""
_RUN_ID = re.compile(r"[\w-]+")


class Followers:
    """Any thread may call."""

    def __init__(
        self, known_runs: KnownRuns, send: Callable[[PanelNews], None], somebody_listens: Callable[[], bool]
    ) -> None:
        self._known = known_runs
        self._send = send
        self._somebody_listens = somebody_listens
        self._lock = threading.Lock()
        self._followed: dict[str, FollowedRun] = {}
        self._threads: dict[str, threading.Thread] = {}

    def follow(self, run_id: str, answer: Answer) -> None:
        """Answer with the whole run, and send to all pages what happens until it is over."""
        known = self._known.named(run_id)
        run = None if known is None else self._known.handle(known)
        with self._lock:
            followed = self._followed.get(run_id)
            if followed is None and run is not None and not run.wait(0):
                followed = self._begin(run)
        if followed is not None:
            followed.tell(answer)
        else:
            folder = _recorded(run_id) if known is None else known.log_dir
            arguments = (run_id, folder, answer)
            threading.Thread(target=_tell_recorded, args=arguments, name="accel_nb recording", daemon=True).start()

    def close(self) -> None:
        """Wait for the threads, which nobody wants any more."""
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(ENDS_S)

    def _begin(self, run: Run) -> FollowedRun:
        run_id = run.plan.run_id
        followed = FollowedRun(run.plan, self._send, self._interval_s)
        thread = threading.Thread(target=self._draw, args=(run, followed), name=f"accel_nb panel {run_id}", daemon=True)
        self._followed[run_id], self._threads[run_id] = followed, thread
        thread.start()
        return followed

    def _draw(self, run: Run, followed: FollowedRun) -> None:
        run_id = run.plan.run_id
        try:
            run.draw_again(followed, lambda: self._is_wanted(run_id))
        finally:
            with self._lock:
                # There may be a newer one by now: of a page that came when nobody had listened any more.
                if self._followed.get(run_id) is followed:
                    del self._followed[run_id]
                if self._threads.get(run_id) is threading.current_thread():
                    del self._threads[run_id]

    def _is_wanted(self, run_id: str) -> bool:
        with self._lock:
            wanted = self._somebody_listens()
            if not wanted:
                # Who comes from now on is told by a new one.
                self._followed.pop(run_id, None)
            return wanted

    def _interval_s(self) -> float:
        """All runs together are sent at the rate of one."""
        return SEND_INTERVAL_S * max(1, len(self._followed))


def _recorded(run_id: str) -> Path | None:
    """The folder of a run of an earlier kernel, as a page remembers it after a restart; None without such a folder."""
    if _RUN_ID.fullmatch(run_id) is None:
        return None
    try:
        folder = folder_of(run_id)
    except PlanError:
        return None
    return folder if folder.is_dir() else None


def _tell_recorded(run_id: str, folder: Path | None, answer: Answer) -> None:
    events = [] if folder is None else recorded_events(folder)
    if events:
        answer(RunNews(run_id=run_id, message=whole_of_events(events)))
    elif folder is None:
        answer(Refused(problem=f"There is no run {run_id}: this kernel has not launched it, and it has no recording."))
    else:
        answer(Refused(problem=f"Of the run {run_id} there is no recording in {folder}."))
