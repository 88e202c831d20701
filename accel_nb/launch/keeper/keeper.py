"""The keeper: one small process per run that holds what must outlive a slow, stopped or dead kernel.

    kernel ══run channel══ keeper ──order──▶ rank 0..n     (children of the keeper)
                             │ ◀─pipe, events── rank
                             ├─ rank_N.log, run.jsonl
                             └─ the store of torch.distributed

It never blocks on the kernel: events wait in a bounded ring until the kernel pulls. It is the subreaper of its ranks,
so whatever they leave behind becomes its child and is ended with the run. It watches the kernel by pidfd.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ...protocol.commands import (
    DumpStacks,
    InterruptRanks,
    KeeperHello,
    Pull,
    Release,
    RunCommand,
    RunOrder,
    Stop,
    StoreAddress,
    ToRanks,
    Value,
)
from ...protocol.events import (
    CellEnded,
    Notice,
    RankFailed,
    RankFinished,
    RankStarted,
    RunEnded,
    RunEvent,
    RunStarted,
    StopRequested,
)
from ...protocol.failure import RankFailure
from ...protocol.ledger import LedgerPage
from ...protocol.wire import Skipped
from .. import processes
from ..channel import Channel
from ..payload.memory_file import read_header
from .event_stream import EventStream
from .orders import rank_order
from .rank_process import PARTIAL_LINE_S, RankProcess
from .run_store import RunStore
from .run_watch import RunWatch
from .searches import SearchWatch
from .stacks import StackDesk
from .stopping import Ending
from .telling import tell_ranks, tell_stacks

LEFTOVER_GRACE_S = 0.5
"""What a successful run leaves behind gets SIGTERM and this long."""


class Keeper:
    """One run's loop. One thread, in the keeper process."""

    def __init__(
        self,
        channel: Channel[RunCommand],
        ranks: list[RankProcess],
        page: LedgerPage,
        store: RunStore | None,
        kernel_fd: int,
    ) -> None:
        """`ranks`: of the run, those that are this keeper's. `store`: None where the order says where it is."""
        self._channel = channel
        self._ranks = ranks
        self._by_number = {rank.rank: rank for rank in ranks}
        self._page = page
        self._store = store
        self._selector = selectors.DefaultSelector()
        self._events = EventStream(channel)
        self._order: RunOrder | None = None
        self._ending = Ending()
        self._stacks = StackDesk()
        self._run_watch: RunWatch | None = None
        self._searches = SearchWatch(len(ranks))
        self._started_s = time.monotonic()
        self._ended = self._released = False
        self._held: set[int] = set()
        """Pids that SIGKILL does not end."""
        self._oom_kills = processes.oom_kills()
        self._watch(kernel_fd, self._kernel_died)
        self._watch(channel.fileno(), self._read_commands)

    def run(self) -> None:
        """Until the kernel has released the run, or is gone; then nothing of the run is left."""
        self._channel.send(KeeperHello(pid=os.getpid()), [own := os.pidfd_open(os.getpid())])
        os.close(own)
        while not self._released:
            for key, _ in self._selector.select(self._timeout_s()):
                key.data()
            self._tick(time.monotonic())
        self._end_all()

    # ---- what the kernel says

    def _read_commands(self) -> None:
        commands, closed = self._channel.receive()
        # Where the kernel gave up before the run began, nothing of it may start.
        for command in () if closed and self._order is None else commands:
            self._obey(command)
        if closed:
            self._released = True

    def _obey(self, command: RunCommand | Skipped) -> None:
        match command:
            case RunOrder():
                self._begin(command)
            case Pull():
                self._events.ask()
            case Stop():
                self._stop(command.by, command.grace_s)
            case DumpStacks():
                self._stacks.ask(self._ranks, partial(tell_stacks, self._channel))
            case ToRanks() | InterruptRanks():
                self._searches.are_kept = True
                tell_ranks(command, self._ranks, self._channel)
            case Release():
                self._released = True
            case Skipped() if self._order is None:
                raise ValueError(f"the run's order cannot be read: {command.reason}")
            case Skipped():
                self._events.add(Notice(text=f"the keeper skipped a command it does not know: {command.reason}"))
            case _ if self._run_watch is not None:
                self._run_watch.obey(command)

    def _begin(self, order: RunOrder) -> None:
        self._order = order
        self._searches = SearchWatch(len(self._ranks), order.searches)
        self._started_s = time.monotonic()
        payload = self._channel.take_fd()
        if order.port_given:
            self._store = RunStore(self._channel.take_fd())
            for rank in self._ranks:
                rank.channel.send(StoreAddress(host=self._store.host, port=self._store.port))
        port = order.store_port if self._store is None else self._store.port
        self._events.begin(order)
        if order.attempt == 0:
            self._events.add(RunStarted(plan=order.plan.without_values(), log_dir=order.log_dir))
            self._events.add_all([Notice(text=text) for text in order.notices])
        for rank in self._ranks:
            rank.open_log(Path(order.log_dir))
            rank.channel.send(rank_order(order, rank.rank, store_port=port), [payload])
            self._watch(rank.output_fd, partial(self._read_output, rank))
            self._watch(rank.channel.fileno(), partial(self._read_events, rank))
            self._watch(rank.pidfd, partial(self._rank_exited, rank))
        # Now that the ranks have what they wait for.
        cells = read_header(payload).sources
        os.close(payload)
        self._run_watch = RunWatch(
            order.plan, self._page, self._ranks, self._stacks,
            cells=cells, tell=self._events.add, end_with=self._end_with, send=self._channel.send,
        )  # fmt: skip

    # ---- what the ranks say and do

    def _read_output(self, rank: RankProcess) -> None:
        self._events.add_all(rank.read_output(time.monotonic()))
        if rank.output_ended:
            # Readable for ever from now on.
            self._unwatch(rank.output_fd)

    def _read_events(self, rank: RankProcess) -> None:
        events, closed = rank.receive()
        for event in events:
            # What the rank printed before it reported comes before the report.
            self._events.add_all(rank.output_before(event, time.monotonic()))
            self._note(rank, event)
        if closed:
            self._unwatch(rank.channel.fileno())

    def _note(self, rank: RankProcess, event: RunEvent) -> None:
        self._searches.note(rank.rank, event, time.monotonic())
        match event:
            case RankStarted():
                rank.started = True
            case RankFinished() if rank.outcome is not None:
                # Its end was found before: a kept rank, freed from what it waited for, leaves as if nothing had been.
                os.close(rank.channel.take_fd())
                return
            case RankFinished():
                rank.finish(event, time.monotonic())
                self._pass_value_on(rank)
            case CellEnded() if event.value_bytes:
                self._pass_value_on(rank)
            case RankFailed() if rank.outcome is not None:
                # Likewise: what it says is of the stop that followed.
                rank.add_to_log(event.failure.traceback)
                return
            case RankFailed():
                event = replace(event, failure=self._ending.in_context(event.failure))
                self._events.add_all(rank.fail(event, time.monotonic() + PARTIAL_LINE_S))
                self._settle(event.failure)
        self._events.add(event)

    def _pass_value_on(self, rank: RankProcess) -> None:
        fd = rank.channel.take_fd()
        self._channel.send(Value(rank=rank.rank), [fd])
        os.close(fd)

    def _rank_exited(self, rank: RankProcess) -> None:
        self._unwatch(rank.pidfd)
        self._read_events(rank)
        self._events.add_all(rank.drain_output(time.monotonic()))
        # A line that it never finished belongs to its last words.
        self._events.add_all(rank.flush_partial(time.monotonic() + PARTIAL_LINE_S * 4))
        silent, exited = rank.reap(oom_killed=processes.oom_kills() > self._oom_kills)
        if silent is not None:
            stopped = replace(self._ending.in_context(silent), kind="stopped")
            failure = stopped if self._ending.is_stopping else self._searches.rank_died(silent)
            self._settle(failure)
            self._fail(rank, failure)
        self._events.add(exited)

    def _fail(self, rank: RankProcess, failure: RankFailure) -> None:
        """For a rank that does not say so itself."""
        rank.outcome = RankFailed(rank=rank.rank, failure=failure)
        self._events.add(rank.outcome)

    def _settle(self, failure: RankFailure) -> None:
        """A rank failed: let the others report, then stop them."""
        if self._ending.settle(failure, time.monotonic()) and self._run_watch is not None:
            self._run_watch.tell_notes()

    # ---- the clock

    def _tick(self, now: float) -> None:
        for rank in self._ranks:
            self._events.add_all(rank.flush_partial(now))
            rank.channel.flush()
            if self._run_watch is not None and rank.lingers(now):
                self._run_watch.tell_lingering(rank)
        processes.reap_orphans(spare={rank.pid for rank in self._ranks})
        self._stacks.act(now)
        if self._order is None or self._ended:
            self._events.send_due(now)
            return
        self._check_start(self._order, now)
        if self._ending.is_settled(now):
            self._stop("failure", self._order.plan.timeouts.stop_grace_s)
        if self._run_watch is not None and not self._ending.has_begun:
            self._run_watch.look(now)
        if not self._ending.is_stopping and self._searches.is_overdue(now):
            dead_end = self._searches.dead_end()
            if dead_end is None:
                self._stop("failure", 0.0)
            else:
                self._end_with([dead_end])
        if self._ending.act(now, self._ranks):
            self._go_on_without_held_ranks()
        if all(rank.gone for rank in self._ranks):
            self._finish(self._order)
        self._events.send_due(now)

    def _check_start(self, order: RunOrder, now: float) -> None:
        late = [rank for rank in self._ranks if not rank.started and not rank.gone]
        if not late or now < self._started_s + order.plan.timeouts.start_s or self._ending.is_stopping:
            return
        for rank in late:
            self._fail(rank, rank.lateness(order.plan.timeouts.start_s))
        self._stop("failure", 0.0)

    def _stop(self, by: str, grace_s: float) -> None:
        if self._order is None:
            self._released = True
        if self._order is None or self._ended:
            # Once it has ended nothing follows; the next attempt, if there is one, is told by the kernel.
            return
        # Who has returned was not stopped, though we had not read it yet.
        for rank in self._ranks:
            if rank.outcome is None:
                self._read_events(rank)
        if by == "failure":
            self._explain_lost_peers()
        self._events.add(StopRequested(by=by))
        self._ending.stop(by, grace_s, time.monotonic())

    def _end_with(self, failures: Sequence[RankFailure]) -> None:
        """Ranks wait for ever, as nobody but the watch can tell."""
        if self._order is None or self._ending.has_begun:
            return
        for failure in failures:
            self._fail(self._by_number[failure.rank], failure)
        self._stop("failure", self._order.plan.timeouts.stop_grace_s)

    def _explain_lost_peers(self) -> None:
        for failure in self._run_watch.lost_peers() if self._run_watch is not None else ():
            self._fail(self._by_number[failure.rank], failure)

    def _go_on_without_held_ranks(self) -> None:
        for rank in [rank for rank in self._ranks if not rank.gone]:
            self._unwatch(rank.pidfd)
            rank.gone = True
            self._tell_held(f"rank {rank.rank}", rank.pid)
            if rank.outcome is None:
                self._fail(rank, self._ending.in_context(rank.silence(processes.held_text(rank.pid))))

    def _tell_held(self, who: str, pid: int) -> None:
        self._held.add(pid)
        self._events.add(Notice(text=f"{who} (pid {pid}) {processes.held_text(pid)}"))

    def _finish(self, order: RunOrder) -> None:
        """Every rank is gone: end what they left, say how it ended."""
        if not self._ending.is_stopping:
            self._explain_lost_peers()
        good = all(isinstance(rank.outcome, RankFinished) for rank in self._ranks)
        leftovers = processes.end_children(spare=self._held, gentle_s=LEFTOVER_GRACE_S if good else 0.0)
        for pid in set(processes.children()) - self._held:
            self._tell_held("a process that the ranks had left behind", pid)
        for rank in self._ranks:
            self._events.add_all(rank.finish_output(time.monotonic()))
        if order.port_given and self._store is not None:
            # Another run may ask for it at once.
            self._store.close()
        is_over = good or self._ending.by_user or bool(self._held)
        again = None if is_over else self._searches.restart_after(order.attempt, order.plan.max_restarts)
        if self._run_watch is not None:
            self._run_watch.close()
        self._events.add(again or RunEnded(duration_s=time.monotonic() - self._started_s, leftovers=leftovers))
        self._ended = True

    def _timeout_s(self) -> float | None:
        """Until the next thing that no descriptor announces."""
        now = time.monotonic()
        due: list[float] = [self._events.due_in_s(now)]
        if self._channel.wants_to_write or any(rank.channel.wants_to_write for rank in self._ranks):
            due.append(0.02)
        if self._stacks.busy:
            due.append(0.05)
        if self._order is not None and not self._ended:
            due += [PARTIAL_LINE_S, self._ending.next_s - now]
        return max(0.0, min(due)) if min(due) < float("inf") else None

    # ---- ends

    def _kernel_died(self) -> None:
        self._released = True

    def _end_all(self) -> None:
        processes.end_children(spare=self._held)
        for rank in self._ranks:
            rank.gone = True
            self._events.add_all(rank.finish_output(time.monotonic()))
            rank.close()
        self._events.close()
        self._channel.flush()

    def _watch(self, fd: int, act: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, act)

    def _unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
