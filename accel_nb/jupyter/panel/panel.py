"""The kernel's half of the panel: what it answers to a page's requests, and what it tells all pages.

request ─▶ Panel.take ─┬─▶ Reporter (one thread while somebody listens): hardware, runs ──┐
                       ├─▶ Followers (a thread per run that is followed): its events ─────┼─▶ Pages.send
                       └─▶ threads for one plan, one look at stacks, one old recording ───┘
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...launch.run import Run
from ...protocol.front_end import StackTexts
from ...protocol.panel import (
    LISTENS_S,
    Accepted,
    AskPlan,
    AskStacksOf,
    FollowRun,
    Hello,
    PanelNews,
    PanelRequest,
    Refused,
    RunNews,
    StopNamedRun,
)
from ..known_runs import KNOWN, KnownRuns
from .followers import Followers
from .pages import Answer, ControlledKernel, Pages
from .planning import Planning
from .reporter import Reporter


class Panel:
    """Of one kernel, from ``%load_ext`` to ``%unload_ext``. No thread of it stays while no page listens."""

    def __init__(
        self, kernel: ControlledKernel, known_runs: KnownRuns = KNOWN, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Opens the comm: in the thread of a cell."""
        self._known = known_runs
        self._clock = clock
        self._listens_until_s = float("-inf")
        self._is_closed = False
        self._pages = Pages(kernel, self._take)
        self._reporter = Reporter(known_runs, self._pages.comm_id, self._send, self._somebody_listens, self._tell)
        self._followers = Followers(known_runs, self._send, self._somebody_listens)
        self._planning = Planning(self._send)
        known_runs.call_on_change(self._reporter.tell_runs)
        self._pages.open()

    def close(self) -> None:
        """Tell the pages, and end the threads."""
        self._known.call_no_more(self._reporter.tell_runs)
        self._is_closed = True  # a request that comes meanwhile wakes nobody
        self._pages.close()
        self._reporter.close()
        self._followers.close()

    def _somebody_listens(self) -> bool:
        return not self._is_closed and self._clock() < self._listens_until_s

    def _send(self, news: PanelNews) -> None:
        if self._somebody_listens():
            self._pages.send(news)

    def _tell(self, news: PanelNews) -> None:
        if not self._is_closed:
            self._pages.send(news)

    # ---- the kernel's thread for control messages

    def _take(self, request: PanelRequest, page: str, answer: Answer) -> None:
        self._listens_until_s = self._clock() + LISTENS_S
        match request:
            case Hello():
                self._reporter.tell_facts(answer)
            case FollowRun():
                self._followers.follow(request.run_id, answer)
            case AskPlan():
                answer(Accepted())
                self._planning.ask(request, page)
            case StopNamedRun():
                self._with_run(request.run_id, answer, lambda run: run.stop(0.0 if request.now else None, by="panel"))
            case AskStacksOf():
                self._with_run(request.run_id, answer, self._find_stacks)

    def _with_run(self, run_id: str, answer: Answer, act: Callable[[Run], None]) -> None:
        known = self._known.named(run_id)
        run = None if known is None else self._known.handle(known)
        if known is None:
            answer(Refused(problem=f"This kernel has launched no run {run_id}."))
        elif run is None or run.wait(0):
            answer(Refused(problem=f"{known.function_name} ({run_id}) is over."))
        else:
            act(run)
            answer(Accepted())

    def _find_stacks(self, run: Run) -> None:
        threading.Thread(target=self._tell_stacks, args=(run,), name="accel_nb stacks", daemon=True).start()

    def _tell_stacks(self, run: Run) -> None:
        try:
            found = run.stacks()
            texts = StackTexts(text_by_rank=found, problem="" if found else "No rank runs now.")
        except TimeoutError as error:
            texts = StackTexts(problem=str(error))
        self._send(RunNews(run_id=run.plan.run_id, message=texts))
