"""A run whose ranks stay from cell to cell, seen from the kernel: send a cell, follow it, free ranks that hang in it.

KeptRun.run_cell ──RunCell, payload──> ranks ──events, CellEnded, value──> one view per cell
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from ..errors import PlanError
from ..protocol.commands import CloseGroups, EndCells, RunCell
from ..protocol.events import CellEnded, Display, Notice, RankExited, RankFailed, RunEvent, RunStarted
from ..protocol.failure import RankFailure
from ..protocol.plan import LaunchRequest
from ..protocol.run_state import RankState, RunState, RunStatus, advance_all
from .engines.engine import Attempt
from .failures import cause_first, rank_ranges
from .payload.packing import pack, unpack_value
from .rank.kept_cells import serve_cells
from .run import News, Run, start_run
from .run_failed import RunFailed, RunInterrupted, stand_in
from .views.view import RunView

SETTLE_S = 0.5
"""After the first failure in a cell the other ranks get this long to end it, too."""
DEAF_S = 1.0
"""Who has not ended the cell so long after an interrupt does not hear it."""
_LOOK_S = 0.1
NAME = "%%accelerate --keep"


class KeptCell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell for ranks that are kept."""

    label: str
    """``Cell In[7]``."""
    function: Callable[[], object]
    ranks: tuple[int, ...]
    sends_value: bool = False
    """Whether the first of `ranks` gives back what the function returns."""
    pushed: tuple[str, ...] = ()
    """Variables of the notebook that replace the ranks' own."""


class KeptRun(Run):
    """Ranks that wait for cells. One cell at a time; `stop` may be called from any thread."""

    def __init__(self, attempt: Attempt, owned: contextlib.ExitStack, view: RunView) -> None:
        """`view` is shown nothing: each cell has its own."""
        self._cell: _CellWatch | None = None
        self._cells = 0
        self._busy = threading.Lock()
        self.owned: frozenset[str] = frozenset()
        """Variables that cells have set on any rank."""
        self._steps: dict[int, tuple[int, str]] = {}
        """By rank, `num_calls` and `lockstep` of its last cell."""
        super().__init__(attempt, owned, view)

    def run_cell(self, cell: KeptCell, view: RunView) -> object:
        """Run `cell` and show it in `view`; gives what its function gives, if that is wanted. Blocks; interruptible.

        Raises PlanError when a cell runs already, PayloadError; RunFailed, RunInterrupted: the ranks stay as they are;
        what `result` raises when the ranks have ended.
        """
        if not self._busy.acquire(blocking=False):
            raise PlanError("The kept ranks run a cell already: wait for its end, or stop it.")
        try:
            with pack(cell.function) as packed:
                self._cells += 1
                order = RunCell(cell=self._cells, pushed=cell.pushed)
                watch = _CellWatch(self, cell, view, self._cells)
                with self._listen(watch) as news:
                    self._cell = watch
                    for rank in cell.ranks:
                        first = rank == cell.ranks[0]
                        own = replace(order, is_first=first, sends_value=first and cell.sends_value)
                        self._supervisor.run_cell([rank], own, packed.fd)
                    watch.follow(news, packed.notices)
            return self._outcome(watch)
        finally:
            self._cell = None
            self._busy.release()

    def stop(self, grace_s: float | None = None, *, by: str = "handle") -> None:
        """While a cell runs: end the cell, however often it is asked. Between cells: end the ranks. With `grace_s`: end
        them in any case.
        """
        cell = self._cell
        if grace_s is not None:
            super().stop(grace_s, by=by)
        elif cell is not None:
            cell.end()
        else:
            self.let_go()

    @contextlib.contextmanager
    def _listen(self, watch: _CellWatch) -> Iterator[News]:
        """A queue of what happens; the first one has all from the beginning. `watch` notes it, too."""
        if self._cells == 1:
            news = self._news
        else:
            news = queue.SimpleQueue()
            self._listening.append(news)
        noting = _Noting(watch)  # after the queue: what a rank said before its cell ended is in there by then
        self._listening.append(noting)
        try:
            yield news
        finally:
            self._listening.remove(news)
            self._listening.remove(noting)

    # ---- for the watch of a cell

    def interrupt_ranks(self, ranks: Sequence[int]) -> None:
        self._supervisor.interrupt(ranks)

    def close_groups(self, ranks: Sequence[int]) -> None:
        self._supervisor.tell_ranks(ranks, CloseGroups(epoch=self._cells))

    def let_go(self) -> None:
        """The ranks leave, once they have ended their cell."""
        self._supervisor.tell_ranks(range(self.plan.num_ranks), EndCells())

    def end_now(self, by: str) -> None:
        super().stop(0.0, by=by)

    def state_for_cell(self, label: str) -> RunState:
        """As if nothing had been shown yet."""
        state = self.state
        plan = None if state.plan is None else replace(state.plan, function_name=label)
        ranks = {rank: RankState(status="running", pid=it.pid, device=it.device) for rank, it in state.ranks.items()}
        return RunState(status="running", plan=plan, log_dir=state.log_dir, ranks=ranks)

    # ---- the end of a cell

    def _outcome(self, watch: _CellWatch) -> object:
        # Also of a cell that has failed on another rank: the next one must not find it.
        fd = self._supervisor.take_value(watch.cell.ranks[0])
        try:
            self._raise_failure(watch)
            return unpack_value(fd) if fd is not None and watch.cell.sends_value else None
        finally:
            if fd is not None:
                os.close(fd)

    def _raise_failure(self, watch: _CellWatch) -> None:
        for rank, ended in watch.ended.items():
            self.owned |= set(ended.owned)
            self._steps[rank] = ended.num_calls, ended.lockstep
        if watch.closed:
            self._steps.clear()  # equal again, on all ranks
        failures = [ended.failure for ended in watch.ended.values() if ended.failure is not None]
        if (watch.waiting or watch.rank_lost) and not any(failure.kind == "raised" for failure in failures):
            self.wait()
            if watch.interrupts:
                what = (
                    f"{watch.cell.label} was interrupted after {watch.duration_s:.1f} s, and the kept ranks were ended"
                )
                raise RunInterrupted(f"{what}. Logs: {self.log_dir}")
            self.result()  # raises, unless the ranks were told to end
            raise RunInterrupted(f"{watch.cell.label}: the kept ranks were ended.")
        if failures:
            raise self._error(watch, failures)
        if watch.came_late:
            raise RunInterrupted(f"{watch.cell.label} had ended when the interrupt came; the ranks and variables stay.")

    def out_of_step(self, ended: dict[int, CellEnded]) -> bool:
        """Whether ranks have come to different places in a cell that has failed on some."""
        steps = {**self._steps, **{rank: (one.num_calls, one.lockstep) for rank, one in ended.items()}}
        return len(set(steps.values())) > 1

    def _error(self, watch: _CellWatch, failures: list[RankFailure]) -> RunFailed | RunInterrupted:
        real = [failure for failure in failures if failure.kind != "stopped"]
        label, num_ranks = watch.cell.label, self.plan.num_ranks
        if not real or watch.interrupts:
            stay = f"the {num_ranks} ranks and their variables stay"
            return RunInterrupted(f"{label} was interrupted after {watch.duration_s:.1f} s; {stay}.")
        ordered = cause_first(failures)
        plan = replace(self.plan, function_name=label)
        error = RunFailed(ordered, plan, str(self.log_dir))
        error.__cause__ = stand_in(ordered[0])
        return error


class _CellWatch:
    """One cell on its ranks. The cell's thread follows, the run's own notes; any thread may interrupt."""

    def __init__(self, run: KeptRun, cell: KeptCell, view: RunView, number: int) -> None:
        self.cell = cell
        self.ended: dict[int, CellEnded] = {}
        self.interrupts = 0
        self.duration_s = 0.0
        self.closed = False
        """The ranks' process group was closed."""
        self.came_late = False
        """The kernel's interrupt came when all ranks had ended the cell."""
        self.rank_lost = False
        """A rank has ended, and the others do."""
        self._run = run
        self._view = view
        self._number = number
        self._begun_s = time.monotonic()
        self._state = run.state_for_cell(cell.label)
        self._shown = True
        self._due_s = float("inf")
        """When whoever has not ended is to be dealt with more severely."""
        self._severity = 0

    @property
    def waiting(self) -> list[int]:
        """Ranks that have not ended the cell."""
        return [rank for rank in self.cell.ranks if rank not in self.ended]

    def end(self) -> None:
        """End the cell, if that has not begun; never the ranks: who asks may not see yet that somebody has."""
        if not self.interrupts:
            self.interrupt()

    def interrupt(self) -> None:
        """End the cell; the second time, the ranks. Of no effect on ranks that have ended it."""
        self.interrupts += 1
        if not self.waiting:
            return
        if self.interrupts > 1:
            self._run.end_now("interrupt")
        else:
            self._due_s = time.monotonic()

    def follow(self, news: News, notices: Sequence[str]) -> None:
        """Show the cell until all its ranks have ended it, or the run is over."""
        self._show([Notice(text=text) for text in notices])
        interrupts = 0
        while True:
            try:
                if interrupts > self.interrupts:
                    self.came_late = not self.waiting
                    self.interrupt()
                self._follow(news)
                self._part_if_out_of_step()
                break
            except KeyboardInterrupt:
                # Nothing but this here: the next interrupt may come at once.
                interrupts += 1
        self.duration_s = time.monotonic() - self._begun_s
        self._end_view()

    def _follow(self, news: News) -> None:
        while self.waiting and not (self._run.wait(0) and news.empty()):
            try:
                events, _ = news.get(timeout=_LOOK_S)
            except queue.Empty:
                events = []
            self._show(events)
            now = time.monotonic()
            if self._has_failed and not self._severity:
                self._due_s = min(self._due_s, now + SETTLE_S)
            if self.waiting and now >= self._due_s and not self.rank_lost:
                self._end_the_others(self.waiting, now)
        # What was said before the cell ended; a thread that it has left behind may write on.
        for _ in range(news.qsize()):
            self._show(news.get()[0])

    def note(self, event: RunEvent) -> None:
        match event:
            case CellEnded(rank=int(rank), cell=cell) if cell == self._number:
                self.ended = {**self.ended, rank: event}
            case RankFailed() | RankExited():
                if not self.rank_lost:
                    self._run.let_go()
                self.rank_lost = True
            case _:
                pass  # shown

    @property
    def _has_failed(self) -> bool:
        return any(ended.failure is not None for ended in self.ended.values())

    def _end_the_others(self, waiting: Sequence[int], now: float) -> None:
        """An interrupt first. Who does not hear it waits in native code for a rank: that one leaves the group. At last
        the ranks are ended.
        """
        self._severity += 1
        self._due_s = now + (DEAF_S if self._severity == 1 else self._run.plan.timeouts.stop_grace_s)
        match self._severity:
            case 1:
                self._run.interrupt_ranks(waiting)
            case 2:
                self._run.close_groups([rank for rank in range(self._run.plan.num_ranks) if rank not in waiting])
            case 3:
                self._run.interrupt_ranks(waiting)
            case _:
                who = f"rank{'s' if len(waiting) > 1 else ''} {rank_ranges(waiting)}"
                self._show([Notice(text=f"{who} cannot be interrupted in {self.cell.label}: the kept ranks are ended")])
                self._run.end_now("failure")

    def _part_if_out_of_step(self) -> None:
        """Close the ranks' process group then. Once; twice does no harm when an interrupt comes between."""
        out_of_step = self._severity > 1 or (self._has_failed and self._run.out_of_step(self.ended))
        if not out_of_step or self.rank_lost or self.closed:
            return
        self._run.close_groups(range(self._run.plan.num_ranks))
        self.closed = True
        text = (
            "the ranks were out of step, so their process group was closed: build a new Accelerator (or call "
            "init_process_group) and prepare again. Variables are as they were"
        )
        self._show([Notice(text=text)])

    def _show(self, events: Sequence[RunEvent]) -> None:
        events = [shown for event in events if (shown := self._of_cell(event)) is not None]
        self._state = advance_all(self._state, events)
        if self._shown:
            self._shown = self._run.shows(lambda: self._view.update(events, self._state))

    def _of_cell(self, event: RunEvent) -> RunEvent | None:
        """Of displays those of the cell's first rank, as if it were rank 0, whose displays views show."""
        match event:
            case Display():
                return replace(event, rank=0) if event.rank == self.cell.ranks[0] else None
            case RunStarted():
                return replace(event, plan=replace(event.plan, function_name=self.cell.label))
            case _:
                return event

    def _end_view(self) -> None:
        status: RunStatus = "finished"
        if self.waiting or self._has_failed:
            status = "stopped" if self.interrupts else "failed"
        ranks = {rank: self._ended_rank(rank, known) for rank, known in self._state.ranks.items()}
        state = replace(self._state, status=status, duration_s=self.duration_s, ranks=ranks)
        if self._shown:
            self._run.shows(lambda: self._view.close(state))

    def _ended_rank(self, rank: int, known: RankState) -> RankState:
        ended = self.ended.get(rank)
        if ended is None:
            return known
        return replace(known, status="failed" if ended.failure else "finished", failure=ended.failure)


class _Noting(News):
    """Tells a watch what happens, in the run's own thread: an interrupt may lose what the cell's thread just takes."""

    def __init__(self, watch: _CellWatch) -> None:
        self._watch = watch

    def put(self, item: tuple[list[RunEvent], RunState], block: bool = True, timeout: float | None = None) -> None:  # noqa: ARG002  the queue's
        for event in item[0]:
            self._watch.note(event)


class _Unseen:
    """The view of a run whose cells have views of their own."""

    def update(self, events: Sequence[RunEvent], state: RunState) -> None:
        pass

    def close(self, state: RunState) -> None:
        pass


def start_kept(request: LaunchRequest) -> KeptRun:
    """Start ranks that wait for cells. Raises as `start_run`."""
    if request.backend not in ("auto", "local"):
        raise PlanError(
            f"{NAME} is not possible with backend={request.backend!r}: ranks are kept on the kernel's own machine. "
            "Leave one of the two out."
        )
    run = start_run(replace(request, function_name=NAME), serve_cells, (), {}, _Unseen(), kind=KeptRun)
    assert isinstance(run, KeptRun)
    return run
