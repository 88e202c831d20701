"""Watch one run from the kernel: commands down, events up, and what the end means.

Runs in a thread of its own, so that an interrupt in the waiting cell never hits it half-way.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from ..errors import AccelNbError, StartError
from ..protocol.commands import (
    CloseGroups,
    DumpStacks,
    EndCells,
    EventBatch,
    InterruptRanks,
    KeeperHello,
    KeeperMessage,
    Pull,
    Release,
    RunCell,
    RunCommand,
    Stacks,
    Stop,
    ToRanks,
    Value,
)
from ..protocol.events import Notice, RankFailed, Restarting, RunEnded, RunEvent, RunStarted, StopRequested
from ..protocol.failure import RankFailure
from ..protocol.run_state import RunState, advance_all
from ..protocol.wire import Skipped, event_line
from . import processes
from .engines.engine import Attempt, Engine, RankGroup
from .keeper.stopping import KILLED_ENDS_S, TERM_TO_KILL_S
from .output.log_file import LogFile

KILL_KEEPER_S = KILLED_ENDS_S + 6.0
"""A keeper that has not ended its run this long after the last signal was due is killed itself."""
_COLD_START_FACTOR = 2
_SEND_RETRY_S = 0.02


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


OnEvents = Callable[[list[RunEvent], RunState], None]


class Supervisor:
    """One run. `run` is the thread; `stop` and `ask_for_stacks` may be called from any other."""

    def __init__(self, engine: Engine, attempt: Attempt, on_events: OnEvents) -> None:
        self.state = RunState()
        self.value_fds: dict[int, int] = {}
        """rank -> memory file of what it returned; owned by the run."""
        self.stopped_midway = False
        """A stop reached ranks that had not returned; user code may have obeyed it by returning."""
        self.error: Exception | None = None
        """Why the run never came up; None when it did."""
        self._engine = engine
        self._attempt = attempt
        self._on_events = on_events
        self._commands: deque[tuple[RunCommand, tuple[int, ...]]] = deque()
        """Each with the descriptors that belong to it, which are ours."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._stacks: dict[int, str] | None = None
        self._stacks_came = threading.Event()
        self._give_up_s = float("inf")
        self._stop: Stop | None = None
        self._tries_left = engine.num_tries()
        self._over = False
        self._closed = False
        self._close_lock = threading.Lock()

    # ---- from any thread

    def stop(self, by: str, grace_s: float) -> None:
        """Ask for the end: SIGINT, after `grace_s` SIGTERM, then SIGKILL. May be repeated with a shorter grace."""
        self._command(Stop(by=by, grace_s=grace_s))

    def ask_for_stacks(self, timeout_s: float) -> dict[int, str] | None:
        """Python stacks of the running ranks, empty once they have ended; None when they did not come in time."""
        with self._close_lock:
            if self._closed:
                return {}
            self._stacks_came.clear()
        self._command(DumpStacks())
        return self._stacks if self._stacks_came.wait(timeout_s) else None

    def run_cell(self, ranks: Sequence[int], cell: RunCell, payload_fd: int) -> None:
        """Have kept ranks run one cell; `payload_fd` is duplicated here."""
        self._command(ToRanks(ranks=tuple(ranks), message=cell), os.dup(payload_fd))

    def tell_ranks(self, ranks: Sequence[int], message: CloseGroups | EndCells) -> None:
        self._command(ToRanks(ranks=tuple(ranks), message=message))

    def interrupt(self, ranks: Sequence[int]) -> None:
        self._command(InterruptRanks(ranks=tuple(ranks)))

    def take_value(self, rank: int) -> int | None:
        """The memory file of what `rank` has given back, which the caller owns; None: there is none."""
        return self.value_fds.pop(rank, None)

    def _command(self, command: RunCommand, *fds: int) -> None:
        with self._close_lock:
            if not self._closed:
                self._commands.append((command, fds))
                os.write(self._wake_write, b"!")
            else:
                _close_all(fds)

    # ---- the thread

    def run(self) -> None:
        """Until the run is over. Never raises: what went wrong is in `error` or in the state."""
        try:
            while not self._over:
                self._watch(self._begin())
                self._answer_stacks({})
            self._learn()
        except Exception as error:  # noqa: BLE001  handed to the caller's thread, which raises it
            self.error = error
        finally:
            with self._close_lock:
                self._closed = True
                os.close(self._wake_read)
                os.close(self._wake_write)
                for _, fds in self._commands:
                    _close_all(fds)
            self._answer_stacks({})

    def _answer_stacks(self, text_by_rank: dict[int, str]) -> None:
        """Unless the question is answered: what has just come is not to be lost to ranks that end."""
        if not self._stacks_came.is_set():
            self._stacks = text_by_rank
            self._stacks_came.set()

    def _learn(self) -> None:
        """Have the engine prepare the next run. That it cannot does not touch this one, which is over."""
        try:
            self._engine.learn(self._attempt, self.state.ranks[0].modules if 0 in self.state.ranks else ())
        except (AccelNbError, OSError) as error:
            self._fold([self._made(Notice(text=f"the next launch is not prepared: {error}"))])

    def _begin(self) -> RankGroup:
        while True:
            self._tries_left -= 1
            try:
                group = self._engine.start(self._attempt, self._stop_waits)
            except StartError:
                if self._tries_left <= 0:
                    raise
                continue
            group.send(Pull())
            if self._stop is not None:
                # It came too late for the attempt that has just ended.
                group.send(self._stop)
            return group

    def _stop_waits(self) -> bool:
        return any(isinstance(command, Stop) for command, _ in self._commands)

    def _watch(self, group: RankGroup) -> None:
        """One attempt, to its end or the run's."""
        begun_s = time.monotonic()
        poll = select.poll()
        watched: set[int] = set()
        try:
            attempt = self._attempt
            while not self._over and attempt is self._attempt:
                wanted = {self._wake_read, *group.fds()}
                for fd in watched - wanted:
                    poll.unregister(fd)
                for fd in wanted - watched:
                    poll.register(fd, select.POLLIN)
                watched = wanted
                poll.poll(self._timeout_ms(group))
                self._pass_commands_on(group)
                for message in group.receive():
                    self._take(group, message)
                self._check(group, begun_s)
        finally:
            group.send(Release())
            group.flush()
            group.close()

    def _timeout_ms(self, group: RankGroup) -> float:
        if not group.flush():
            return _SEND_RETRY_S * 1000
        until = min(self._give_up_s - time.monotonic(), 1.0)
        return max(0.0, until * 1000)

    def _pass_commands_on(self, group: RankGroup) -> None:
        if processes.is_readable(self._wake_read):
            os.read(self._wake_read, 1 << 10)
        while self._commands:
            command, fds = self._commands.popleft()
            if isinstance(command, Stop):
                self._stop = command
                ends_s = time.monotonic() + command.grace_s + TERM_TO_KILL_S + KILL_KEEPER_S
                self._give_up_s = min(self._give_up_s, ends_s)
            group.send(command, fds)
            _close_all(fds)

    def _take(self, group: RankGroup, message: KeeperMessage | Skipped) -> None:
        match message:
            case EventBatch():
                self._fold(list(message.events))
                if not self._over:
                    group.send(Pull())
            case Value():
                if (before := self.value_fds.pop(message.rank, None)) is not None:
                    os.close(before)
                self.value_fds[message.rank] = group.take_fd()
            case Stacks():
                self._answer_stacks(message.text_by_rank)
            case KeeperHello():
                # For another attempt, should there be one.
                self._tries_left = self._engine.num_tries()
            case Skipped():
                self._fold([self._made(Notice(text=f"skipped a message of the keeper: {message.reason}"))])

    def _fold(self, events: list[RunEvent]) -> None:
        self.state = advance_all(self.state, events)
        for event in events:
            if isinstance(event, Restarting):
                self._attempt = replace(
                    self._attempt,
                    number=event.attempt,
                    searches=event.searches,
                    first_sequence=self.state.sequence + 1,
                )
                self._drop_values()
            elif isinstance(event, RunEnded):
                self._over = True
            elif isinstance(event, StopRequested):
                self.stopped_midway = any(rank.status != "finished" for rank in self.state.ranks.values())
        self._on_events(events, self.state)

    def _check(self, group: RankGroup, begun_s: float) -> None:
        """What no message tells: a keeper or server that died, a stop that nobody carries out, a start that hangs."""
        if self._over:
            return
        now = time.monotonic()
        if self._stop is not None and not group.answered:
            self._end([], by=self._stop.by)
        elif (reason := group.lost()) is not None:
            self._lost(group, reason)
        elif now >= self._give_up_s:
            self._give_up_s = float("inf")
            group.kill()
        elif not group.answered and now - begun_s > self._patience_s(group):
            raise StartError(
                f"No keeper took the run within {now - begun_s:.0f} s of its start. On a slow machine pass "
                "timeouts=Timeouts(start_s=...)."
            )

    def _patience_s(self, group: RankGroup) -> float:
        return self._attempt.plan.timeouts.start_s * _COLD_START_FACTOR if group.answers_s is None else group.answers_s

    def _lost(self, group: RankGroup, reason: str) -> None:
        # What it said before it died is still in the socket.
        for message in group.receive():
            self._take(group, message)
        if self._over:
            return
        if not group.answered and self.state.plan is None:
            if self._tries_left <= 0:
                raise StartError(reason)
            self._attempt = replace(self._attempt)
            return
        silent = [
            rank.rank
            for rank in self._attempt.plan.ranks
            if rank.rank not in self.state.ranks or self.state.ranks[rank.rank].status not in ("finished", "failed")
        ]
        failures = [
            RankFailed(rank=rank, failure=RankFailure(rank=rank, kind="died", message=reason, time_s=time.monotonic()))
            for rank in silent
        ]
        self._end(failures, by=self._stop.by if self._stop is not None else "")

    def _end(self, events: Sequence[RunEvent], *, by: str) -> None:
        """End the run from here: whoever would have done so is gone."""
        if by:
            self.state = replace(self.state, stopped_by=by)
        if self.state.plan is None:
            plan = self._attempt.plan.without_values()
            events = [RunStarted(plan=plan, log_dir=str(self._attempt.log_dir)), *events]
        made = [self._made(event) for event in (*events, RunEnded())]
        record = LogFile(Path(self._attempt.log_dir) / "run.jsonl")
        record.write(b"".join(event_line(event) for event in made))
        record.close()
        self._fold(made)

    def _made(self, event: RunEvent) -> RunEvent:
        """An event of the kernel's own: folded whatever its number."""
        return replace(event, time_s=time.time())

    def _drop_values(self) -> None:
        for fd in self.value_fds.values():
            os.close(fd)
        self.value_fds.clear()
