"""One rank as its keeper sees it: the process, its pipe, its channel, its log file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ...protocol.commands import RankReady, RankReport
from ...protocol.events import CellEnded, Display, LogLines, Notice, RankExited, RankFailed, RankFinished, RunEvent
from ...protocol.failure import RankFailure
from ...protocol.wire import Skipped
from .. import failures
from ..channel import Channel
from ..output.log_file import LogFile
from ..output.rank_output import RankOutput
from ..processes import decode_status, has_open

PARTIAL_LINE_S = 0.25
"""A line without its end is shown after this long."""
PIPE_BYTES = 1 << 20
"""What a rank can write before it must wait for the keeper: the most that an ordinary user may ask for."""
LAST_LINES = 30
LINGERS_S = 5.0
"""A rank whose process goes on this long after it has returned is told."""
_READ_BYTES = 1 << 18

StartRank = Callable[[int, int, socket.socket], int]
"""(rank, write end of the output pipe, rank's end of the channel) -> pid of a process in its own group."""


class RankProcess:
    """Owned by the keeper's one thread. The process is our child until `reap`."""

    def __init__(self, rank: int, start: StartRank) -> None:
        self.rank = rank
        self.output_fd, write_fd = os.pipe()
        _widen(write_fd)
        os.set_blocking(self.output_fd, False)
        ours, theirs = socket.socketpair()
        try:
            self.pid = start(rank, write_fd, theirs)
        finally:
            os.close(write_fd)
            theirs.close()
        self.pidfd = os.pidfd_open(self.pid)
        self.channel: Channel[RankReport] = Channel(ours, RankReport)
        self.is_ready = False
        """It has said so since it was told to get ready for a run that is to come, or was asked whether it is."""
        self.gone = False
        self.started = False
        self.output_ended = False
        """Nobody holds the write end of the pipe any more."""
        self.reported_s: float | None = None
        """When it reported its end, by the monotonic clock."""
        self.outcome: RankFinished | RankFailed | None = None
        """What the rank reported of its end; None while it runs or when it died silently."""
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._parser = RankOutput(rank)
        self._log: LogFile | None = None
        self._stack_file: Path | None = None

    @property
    def failure(self) -> RankFailure | None:
        """How it failed; None when it has not."""
        return self.outcome.failure if isinstance(self.outcome, RankFailed) else None

    def open_log(self, directory: Path) -> None:
        self._log = LogFile(directory / f"rank_{self.rank}.log")
        self._stack_file = directory / f"rank_{self.rank}.stack"
        # Of an earlier attempt.
        self._stack_file.unlink(missing_ok=True)

    def send_signal(self, number: int, *, group: bool = False) -> None:
        """Signal the process or its whole group. The unreaped leader keeps the group's number ours."""
        if not self.gone:
            (os.killpg if group else os.kill)(self.pid, number)

    def read_output(self, now: float) -> list[RunEvent]:
        """What waits in the pipe: to the log file unchanged, and as events."""
        try:
            data = os.read(self.output_fd, _READ_BYTES)
        except BlockingIOError:
            return []
        self.output_ended = not data
        if not data or self._log is None:
            return []
        self._log.write(data)
        events = self._noted(self._parser.feed(data, now))
        trouble = self._log.trouble()
        return events if trouble is None else [*events, Notice(text=trouble)]

    def drain_output(self, now: float) -> list[RunEvent]:
        """Everything that waits in the pipe now; at most twice the pipe, so that a flooding child cannot hold us."""
        events: list[RunEvent] = []
        for _ in range(2 * PIPE_BYTES // _READ_BYTES):
            more = self.read_output(now)
            if not more and not self._output_waits():
                break
            events += more
        return events

    def receive(self) -> tuple[list[RunEvent], bool]:
        """What the rank has reported, and whether nothing follows."""
        messages, closed = self.channel.receive()
        self.is_ready = self.is_ready or any(isinstance(message, RankReady) for message in messages)
        return [message for message in messages if not isinstance(message, Skipped | RankReady)], closed

    def finish(self, event: RankFinished, now: float) -> None:
        """It has returned."""
        self.outcome = event
        self.reported_s = now

    def fail(self, event: RankFailed, now: float) -> list[RunEvent]:
        """It has failed. Gives what comes before that: a prompt, a bar, what has no newline yet."""
        self.outcome = event
        written = self.flush_partial(now)
        self.add_to_log("\n".join([event.failure.traceback, *failures.explained(event.failure.explanation)]))
        return written

    def output_before(self, event: RunEvent, now: float) -> list[RunEvent]:
        """What the rank had written when it reported `event`, whose text, if it has one, is left in the log."""
        written = self.drain_output(now)
        if isinstance(event, Display):
            self.add_to_log(event.data.get("text/plain", ""))
        elif isinstance(event, CellEnded):
            written += self.flush_partial(now + PARTIAL_LINE_S)
            self.add_to_log(event.failure.traceback if event.failure is not None else "")
        return written

    def flush_partial(self, now: float) -> list[RunEvent]:
        return self._noted(self._parser.flush_partial(now))

    def finish_output(self, now: float) -> list[RunEvent]:
        """The rest of the output; nothing writes into the pipe any more."""
        return [*self.drain_output(now), *self._noted(self._parser.finish(now))]

    def add_to_log(self, text: str) -> None:
        """A line or more of ours after what the rank has written: its log tells how it ended."""
        if self._log is not None and text:
            self._log.write(f"\n{text}\n".encode())

    def stack_text(self, offset: int = 0) -> str:
        """What faulthandler has written after `offset` bytes of its file."""
        if self._stack_file is None or not self._stack_file.exists():
            return ""
        return self._stack_file.read_bytes()[offset:].decode(errors="replace")

    def stack_bytes(self) -> int:
        """Length of that file."""
        return self._stack_file.stat().st_size if self._stack_file is not None and self._stack_file.exists() else 0

    def writes_stacks(self, pid: int) -> bool:
        """Whether the process has that file open, as one that faulthandler is to answer for must."""
        return self._stack_file is not None and has_open(pid, self._stack_file)

    def reap(self, *, oom_killed: bool) -> tuple[RankFailure | None, RankExited]:
        """The process has ended: a failure when it had reported nothing, and its exit."""
        _, status, usage = os.wait4(self.pid, 0)
        self.gone = True
        code, signal_name = decode_status(status)
        exited = RankExited(rank=self.rank, exit_code=code, signal=signal_name)
        if self.outcome is not None:
            return None, exited
        failure = failures.death(
            rank=self.rank,
            exit_code=code,
            signal_name=signal_name,
            peak_memory_bytes=usage.ru_maxrss * 1024,
            oom_killed=oom_killed and signal_name == signal.SIGKILL.name,
            last_lines=self.last_lines,
            stack=self._fatal_stack(signal_name),
        )
        return failure, exited

    def lingers(self, now: float) -> bool:
        """Whether it has returned and does not end, which holds the run open; true once."""
        if self.gone or self.reported_s is None or now < self.reported_s + LINGERS_S:
            return False
        self.reported_s = None
        return True

    def silence(self, message: str) -> RankFailure:
        """What is known of a rank that has reported nothing and is given up."""
        lines = tuple(self.last_lines)
        return RankFailure(rank=self.rank, kind="died", message=message, last_lines=lines, time_s=time.monotonic())

    def lateness(self, start_s: float) -> RankFailure:
        """It is not ready after `start_s`."""
        return self.silence(
            f"was not ready {start_s:g} s after its start. On a slow machine pass timeouts=Timeouts(start_s=...)."
        )

    def last_words(self) -> str:
        """How a rank that waited for a run has ended, and what it wrote. Reaps it."""
        with contextlib.suppress(BlockingIOError):
            self.last_lines.extend(os.read(self.output_fd, _READ_BYTES).decode(errors="replace").splitlines())
        failure, _ = self.reap(oom_killed=False)
        told = failure.message if failure is not None else ""
        return "\n".join([f"rank {self.rank}, forked ahead, {told} Its last lines:", *self.last_lines])

    def close(self) -> None:
        os.close(self.output_fd)
        os.close(self.pidfd)
        self.channel.close()
        if self._log is not None:
            self._log.close()

    def _fatal_stack(self, signal_name: str | None) -> str:
        """What faulthandler wrote when the process crashed; what it wrote on request before is no evidence."""
        if signal_name not in failures.CRASHES:
            return ""
        text = self.stack_text()
        return text[max(0, text.rfind("Fatal Python error")) :]

    def _output_waits(self) -> bool:
        poll = select.poll()
        poll.register(self.output_fd, select.POLLIN)
        return any(event & select.POLLIN for _, event in poll.poll(0))

    def _noted(self, events: list[RunEvent]) -> list[RunEvent]:
        for event in events:
            if isinstance(event, LogLines):
                self.last_lines.extend(event.text.split("\n")[-LAST_LINES:])
        return events


def _widen(pipe_fd: int) -> None:
    """As wide as this user may: beyond 64 MiB in all pipes an ordinary user gets no wide ones (pipe(7))."""
    for size in (PIPE_BYTES, PIPE_BYTES // 4):
        with contextlib.suppress(PermissionError):
            fcntl.fcntl(pipe_fd, fcntl.F_SETPIPE_SZ, size)
            return
