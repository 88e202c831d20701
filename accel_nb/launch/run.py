"""Start one run and hold it: planning, packing, supervision, the handle, the result.

request, function -> check -> pack -> count, plan -> engine -> supervisor thread -> view -> values or one exception
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ..errors import PlanError, ResultError, RunStopped
from ..protocol import environment, sink
from ..protocol.events import EventsDropped, LogLines, RunEvent
from ..protocol.failure import RankFailure
from ..protocol.plan import LaunchPlan, LaunchRequest
from ..protocol.run_state import RunState, RunStatus
from .dry_run.result import DryRun
from .engines import find_engine
from .engines.engine import Attempt
from .failures import cause_first, headline
from .payload.packing import pack, unpack_value
from .planning import planner
from .planning.dry_runs import make_dry_run_plan
from .planning.nodes import engine_name, meeting_point
from .planning.ports import bind_loopback
from .rank import surroundings
from .recording import recorded_events
from .result import RunResult
from .run_failed import RunFailed, RunInterrupted, stand_in
from .run_files import new_run_id, prune, run_dir
from .servers.counting import counted_hardware
from .servers.standby import STANDBY
from .supervisor import Supervisor
from .views.view import RunView

News = queue.SimpleQueue[tuple[list[RunEvent], RunState]]
"""What a run tells one view."""

_DRAW_S = 0.1
STACKS_TIMEOUT_S = 3.0
MAX_WAITING_BATCHES = 50
"""Of up to 64 KiB each."""


class Run:
    """A run under way or over. Any thread may use it; it never blocks but in `wait`, `result` and `stacks`."""

    def __init__(self, attempt: Attempt, owned: contextlib.ExitStack, view: RunView) -> None:
        """`owned` holds what the attempt has borrowed; it is closed when the run is over."""
        self._plan = attempt.plan
        self._log_dir = attempt.log_dir
        self._owned = owned
        self._view = view
        self._news: News = queue.SimpleQueue()
        self._listening: list[News] = [self._news]
        """One queue per view; the first is the one that the run was started with."""
        self._supervisor = Supervisor(find_engine(self._plan.engine), attempt, partial(_put_all, self._listening))
        self._over = threading.Event()
        self._when_over: list[Callable[[Run], None]] = []
        self._when_over_lock = threading.Lock()
        self._values: RunResult[object] | None = None
        self._unloadable: ResultError | None = None
        self._values_lock = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, name=f"accel_nb {self._plan.run_id}", daemon=True)
        # Values that nobody asks for. A fork of this process must not close its own descriptors of these numbers.
        weakref.finalize(self, _close_values, self._supervisor.value_fds).atexit = False
        try:
            self._thread.start()
        except BaseException:
            # An interrupt while the thread came up: nobody will hold this run.
            self.stop(0.0, by="interrupt")
            raise

    @property
    def plan(self) -> LaunchPlan:
        return self._plan

    @property
    def state(self) -> RunState:
        """All that is known now."""
        return self._supervisor.state

    @property
    def status(self) -> RunStatus:
        """One of "starting", "running", "stopping", "finished", "failed", "stopped"."""
        return "failed" if self._supervisor.error is not None else self.state.status

    @property
    def log_dir(self) -> Path:
        """Holds ``rank_N.log`` (every byte the rank and its children wrote) and ``run.jsonl``, whatever the outcome."""
        return self._log_dir

    def logs(self, rank: int = 0) -> str:
        """All that rank has written so far. Raises KeyError for a rank this run does not have."""
        if rank not in range(self._plan.num_ranks):
            raise KeyError(f"This run has ranks 0 to {self._plan.num_ranks - 1}, not {rank!r}.")
        file = self._log_dir / f"rank_{rank}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def stacks(self) -> dict[int, str]:
        """Python stacks of all running ranks, also of those blocked in native code; by rank. Empty while none runs.

        Raises TimeoutError when they have not come within 3 s.
        """
        if self._over.is_set() or not any(rank.pid for rank in self.state.ranks.values()):
            return {}
        texts = self._supervisor.ask_for_stacks(STACKS_TIMEOUT_S)
        if texts is None:
            raise TimeoutError(f"The ranks' stacks did not come within {STACKS_TIMEOUT_S:g} s.")
        return texts

    def stop(self, grace_s: float | None = None, *, by: str = "handle") -> None:
        """End the ranks: SIGINT, after `grace_s` (None: the plan's) SIGTERM, a second later SIGKILL. Does not wait."""
        self._supervisor.stop(by, self._plan.timeouts.stop_grace_s if grace_s is None else grace_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the run is over and nothing of it is left; False when it is not after `timeout_s`."""
        return self._over.wait(timeout_s)

    def when_over(self, act: Callable[[Run], None]) -> None:
        """Call `act` once nothing of the run is left, in the run's own thread; now, when that is so already."""
        with self._when_over_lock:
            if not self._over.is_set():
                self._when_over.append(act)
                return
        act(self)

    @property
    def problem(self) -> str:
        """One line: why it failed; empty when it has not."""
        if self._supervisor.error is not None:
            return str(self._supervisor.error).partition("\n")[0]
        failures = cause_first(self.state.failures)
        return headline(failures[0]) if failures and self.state.status == "failed" else ""

    def result(self, timeout_s: float | None = None) -> RunResult[object]:
        """Wait, then the ranks' values; of a dry run a `DryRun`.

        Raises RunFailed (chained to a stand-in for the rank's exception), RunStopped after a stop, StartError when the
        ranks never came up, ResultError when a value cannot be loaded here, TimeoutError after `timeout_s`.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(f"{self._plan.function_name} is {self.status} after {timeout_s:g} s.")
        if self._supervisor.error is not None:
            raise self._supervisor.error
        if self.state.status == "stopped":
            raise RunStopped(f"{self._plan.function_name} was stopped. Logs: {self._log_dir}")
        failures = cause_first(self.state.failures)
        if self.state.status == "failed" and self._plan.on_failure == "raise":
            raise RunFailed(failures, self._plan, str(self._log_dir), self.state.attempt + 1) from stand_in(failures[0])
        with self._values_lock:
            if self._values is None and self._unloadable is None:
                try:
                    self._values = self._loaded_result(failures)
                except ResultError as error:
                    self._unloadable = error
            if self._values is None:
                assert self._unloadable is not None
                raise self._unloadable
            return self._values

    def draw(self) -> None:
        """Show the run in its view until it is over. One thread: the cell's, or the background drawer."""
        self._draw(self._news, self._view, 0)

    def draw_again(self, view: RunView, wanted: Callable[[], bool] = lambda: True) -> None:
        """Show the run in one more view, from its beginning until it is over, or `view` not `wanted`. Any thread.

        An interrupt ends the drawing, not the run.
        """
        news: News = queue.SimpleQueue()
        self._listening.append(news)
        try:
            # What happens from now on waits in the queue; the recording has what was before, and some of that.
            state = self.state
            events = [event for event in recorded_events(self._log_dir) if event.sequence <= state.sequence]
            if self.shows(partial(view.update, events, state)):
                self._draw(news, view, state.sequence, wanted)
        finally:
            self._listening.remove(news)

    def _draw(self, news: News, view: RunView, seen: int, wanted: Callable[[], bool] = lambda: True) -> None:
        """Until the run is over, or not `wanted`; `seen` is the number of the last event that the view knows.

        A front end that fails must not cost a training: it is told once, and the run goes on unseen.
        """
        shown = True
        while not (self._over.is_set() and news.empty()):
            if not wanted():
                return
            try:
                events, state = news.get(timeout=_DRAW_S)
            except queue.Empty:
                events, state = [], self.state
            fresh = [event for event in events if not event.sequence or event.sequence > seen]
            shown = shown and self.shows(partial(view.update, fresh, state))
        if shown:
            self.shows(partial(view.close, self.state))

    def shows(self, act: Callable[[], None]) -> bool:
        """Whether `act`, of a view, worked. What it raised is told as a warning."""
        try:
            act()
        except Exception as error:  # noqa: BLE001  a view talks to libraries and sockets of all kinds
            what = f"The display of {self._plan.function_name} failed, the run goes on"
            text = f"{what}: {error!r}. Logs: {self._log_dir}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return False
        return True

    def draw_interruptibly(self) -> None:
        """`draw` in the cell's own thread: an interrupt stops the run, a second one at once.

        Raises RunInterrupted when the run was stopped by that, or had just ended well: no interrupt is lost. A function
        that catches its KeyboardInterrupt and returns on every rank has obeyed: its values come back.
        """
        interrupts = 0
        while True:
            try:
                if interrupts:
                    self.stop(None if interrupts == 1 else 0.0, by="interrupt")
                self.draw()
                break
            except KeyboardInterrupt:
                # Nothing but this here: the next interrupt may come at once.
                interrupts += 1
        status = self.state.status
        if interrupts and (status == "stopped" or (status == "finished" and not self._supervisor.stopped_midway)):
            raise RunInterrupted(self._interruption()) from None

    def __repr__(self) -> str:
        return f"<Run {self._plan.run_id}: {self._plan.function_name} on {self._plan.num_ranks} ranks, {self.status}>"

    def _supervise(self) -> None:
        self._supervisor.run()
        self._owned.close()
        if self.status == "stopped" or (self.status == "failed" and self._plan.on_failure == "raise"):
            _close_values(self._supervisor.value_fds)
        with self._when_over_lock:
            self._over.set()
            acts, self._when_over = self._when_over, []
        # Wakes whoever draws.
        for news in list(self._listening):
            news.put(([], self.state))
        for act in acts:
            act(self)
        with contextlib.suppress(OSError):
            prune()

    def _loaded_result(self, failures: tuple[RankFailure, ...]) -> RunResult[object]:
        state = self.state
        if self._plan.dry_run is None:
            return RunResult(self._loaded_values(), state.duration_s, failures)
        _close_values(self._supervisor.value_fds)
        reports = {rank: known.dry_run for rank, known in state.ranks.items() if known.dry_run is not None}
        return DryRun(self._plan, reports, state.duration_s, failures)

    def _loaded_values(self) -> list[object]:
        values: list[object] = []
        fds = self._supervisor.value_fds
        for rank in range(self._plan.num_ranks if self._plan.returns == "all" else 1):
            try:
                values.append(unpack_value(fds[rank]) if rank in fds else None)
            except ResultError as error:
                raise ResultError(f"Rank {rank}: {error}") from error
        _close_values(fds)
        return values

    def _interruption(self) -> str:
        state = self.state
        if state.status == "finished":
            return f"{self._plan.function_name} was interrupted when all its ranks had returned. Logs: {self._log_dir}"
        if not any(rank.pid for rank in state.ranks.values()):
            return f"{self._plan.function_name} was interrupted while its ranks were started; nothing of it is left."
        what = f"{self._plan.function_name} was interrupted after {state.duration_s:.1f} s"
        lines = [f"{what}; {self._plan.num_ranks} ranks and {state.leftovers} processes of theirs were stopped."]
        for rank, known in sorted(state.ranks.items())[:8]:
            rows = [row.text.strip() for row in known.progress.values()]
            last = rows[-1:] or [line for line in known.log_tail if line.strip()][-1:]
            if last:
                lines.append(f"  rank {rank}: {last[0][:160]}")
        return "\n".join([*lines, f"Logs: {self._log_dir}"])


def start_run(
    request: LaunchRequest,
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    view: RunView,
    *,
    kind: type[Run] = Run,
) -> Run:
    """Plan, pack and start; gives the run as soon as it is under way. Any thread may call; several at once may run.

    Raises PlanError, PayloadError before anything of the run has started, RunInterrupted when it was interrupted then.
    """
    try:
        attempt, owned = _prepare(request, function, args, kwargs)
        return kind(attempt, owned, view)
    except KeyboardInterrupt:
        what = f"{request.function_name} was interrupted before it began; nothing of it runs."
        raise RunInterrupted(what) from None


def _prepare(
    request: LaunchRequest, function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[Attempt, contextlib.ExitStack]:
    """The run's first attempt, and what it has borrowed: to be closed when the run is over."""
    if sink.is_open():
        raise PlanError("This process is a rank of a run: a rank cannot launch ranks. Launch from the kernel.")
    if not callable(function):
        raise PlanError(f"notebook_launcher needs a function to run on every rank, not {function!r}.")
    _check(request)
    with contextlib.ExitStack() as undo:
        packed = undo.enter_context(pack(function, tuple(args), dict(kwargs)))
        variables = environment.current()
        plan = _planned(request, variables)
        port = plan.rendezvous_port
        listener = None if port is None else undo.enter_context(bind_loopback(port))
        attempt = Attempt(
            plan=plan,
            payload_fd=packed.fd,
            store_fd=None if listener is None else listener.fileno(),
            surroundings=surroundings.of_this_process(variables),
            log_dir=undo.enter_context(run_dir(plan.run_id)),
            notices=packed.notices,
            meeting=meeting_point(request) if request.num_nodes > 1 else None,
        )
        return attempt, undo.pop_all()


def plan_for(request: LaunchRequest) -> LaunchPlan:
    """What a launch with these arguments would do now. Starts no rank; the warm server, to count devices.

    Raises PlanError, ServerFailed.
    """
    _check(request)
    return _planned(request, environment.current())


def _check(request: LaunchRequest) -> None:
    """Raises PlanError for what cannot be carried out, whatever is launched."""
    planner.check(request)
    find_engine(engine_name(request)).check(request)


def _planned(request: LaunchRequest, variables: dict[str, str]) -> LaunchPlan:
    make = make_dry_run_plan if request.dry_run else planner.make_plan
    engine = find_engine(engine_name(request))
    hardware = engine.hardware(request, counted_hardware(request, variables))
    plan = make(request, hardware, kernel_env=variables, run_id=new_run_id())
    engine.check_plan(plan)
    return STANDBY.with_reasons(plan, variables)


def draw_in_background(run: Run, draw: Callable[[], None] | None = None) -> threading.Thread:
    """Show `run` from a thread of its own, by `draw`; None: in the view that it was started with."""
    thread = threading.Thread(target=draw or run.draw, name=f"accel_nb view {run.plan.run_id}", daemon=True)
    thread.start()
    return thread


def _put_all(listening: Sequence[News], events: list[RunEvent], state: RunState) -> None:
    """For the views. One that does not keep up (an unread terminal) gets no more lines: the files have them."""
    for news in list(listening):
        late = news.qsize() >= MAX_WAITING_BATCHES
        news.put(([_without_text(event) for event in events] if late else events, state))


def _without_text(event: RunEvent) -> RunEvent:
    if not isinstance(event, LogLines):
        return event
    lines = event.text.count("\n") + 1
    return EventsDropped(rank=event.rank, sequence=event.sequence, time_s=event.time_s, lines=lines)


def _close_values(fds: dict[int, int]) -> None:
    while fds:
        os.close(fds.popitem()[1])
