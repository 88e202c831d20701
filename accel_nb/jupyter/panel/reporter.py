"""What all pages are told in any case: who this kernel is, how busy its machine is, which runs there are."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from ...launch.cuda_origin import WATCH
from ...launch.planning.hardware import probe_node
from ...launch.planning.hardware_now import HardwareMeter
from ...protocol.panel import HardwareNow, KernelFacts, PanelNews, Refused, RunsNow, RunSummary
from ...protocol.version import __version__
from ..known_runs import KnownRuns
from .pages import Answer
from .planning import settings_file
from .summaries import rank_names, summaries

EVERY_S = 2.0
"""Between two looks at the hardware."""
AT_MOST_BUSY = 0.1
"""Part of the time in which the drivers are asked: some take long to answer."""
FRESH_S = 1.0
"""Of a look that is younger no new one is made for a page that comes."""
ENDS_S = 5.0
"""A driver that does not answer must not keep ``%unload_ext``."""


class Reporter:
    """Any thread may call. Its own thread lives while somebody listens."""

    def __init__(
        self,
        known_runs: KnownRuns,
        comm_id: str,
        send: Callable[[PanelNews], None],
        somebody_listens: Callable[[], bool],
        tell: Callable[[PanelNews], None],
    ) -> None:
        """`send` is for news that count while somebody listens, `tell` for those that a page waits for in any case."""
        self._known = known_runs
        self._comm_id = comm_id
        self._send = send
        self._somebody_listens = somebody_listens
        self._tell = tell
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # ---- its thread's
        self._meter = HardwareMeter()
        self._now: HardwareNow | None = None
        self._measured_s = float("-inf")
        self._due_s = float("-inf")
        self._told: tuple[RunSummary, ...] = ()

    def tell_facts(self, answer: Answer) -> None:
        self._do(lambda: self._tell_facts(answer))

    def tell_runs(self) -> None:
        """A run has begun or ended. Told to pages that have not asked for long, too: they may wait for it."""
        self._do(self._tell_runs)

    def close(self) -> None:
        """Nobody listens any more: wait until the thread is over."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            self._do(lambda: None)
            thread.join(ENDS_S)

    def _do(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.put(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="accel_nb panel", daemon=True)
                self._thread.start()

    # ---- its thread

    def _work(self) -> None:
        try:
            while not self._is_over():
                try:
                    job = self._jobs.get(timeout=max(0.0, min(EVERY_S, self._due_s - time.monotonic())))
                except queue.Empty:
                    self._look()
                else:
                    job()
        finally:
            # Where a driver's library has raised, too, so that the next page has a thread again.
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _is_over(self) -> bool:
        with self._lock:
            over = self._jobs.empty() and not self._somebody_listens()
            if over:
                self._thread = None
            return over

    def _look(self) -> None:
        if time.monotonic() >= self._due_s:
            self._send_measured()
        if summaries(self._known) != self._told:
            self._tell_runs()

    def _send_measured(self) -> None:
        try:
            now = self._measured()
        except Exception:  # noqa: BLE001  libraries of drivers raise anything; the next page that asks is told what
            self._due_s = float("inf")
        else:
            self._send(now)

    def _measured(self) -> HardwareNow:
        began_s = time.monotonic()
        if self._now is not None and began_s - self._measured_s < FRESH_S:
            return self._now
        self._now = self._meter.measure(rank_names(self._known))
        self._measured_s = time.monotonic()
        self._due_s = self._measured_s + max(EVERY_S, (self._measured_s - began_s) / AT_MOST_BUSY)
        return self._now

    def _tell_runs(self) -> None:
        self._told = summaries(self._known)
        self._tell(RunsNow(runs=self._told))

    def _tell_facts(self, answer: Answer) -> None:
        try:
            facts = self._facts()
        except Exception as error:  # noqa: BLE001  libraries of drivers raise anything; the page is told
            answer(Refused(problem=f"This kernel could not look at its machine: {error!r}."))
            return
        answer(facts)

    def _facts(self) -> KernelFacts:
        origin = WATCH.look()
        self._told = summaries(self._known)
        return KernelFacts(
            version=__version__,
            comm_id=self._comm_id,
            pid=os.getpid(),
            hardware=replace(probe_node(), kernel_cuda_origin="" if origin is None else origin.place),
            now=self._measured(),
            runs=self._told,
            settings=settings_file(),
        )
