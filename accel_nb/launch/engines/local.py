"""Ranks on this machine, under a keeper that is forked from the warm server, from the kernel, or started fresh."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ...devices import find_devices
from ...errors import StartError
from ...protocol import environment
from ...protocol.commands import GroupOpened, KeeperHello, KeeperMessage, RunCommand
from ...protocol.hardware import NodeHardware
from ...protocol.plan import LaunchPlan, LaunchRequest
from ...protocol.wire import Skipped
from ..channel import Channel
from ..interpreter import start_interpreter
from ..processes import is_readable
from ..run_files import server_log
from ..servers.preload import PRELOAD
from ..servers.standby import STANDBY
from ..servers.warm_client import POOL, WarmServer
from .engine import Attempt

KEEPER_ENDS_S = 10.0
"""A released keeper ends what is left of the run, for which it gives itself five seconds, and then itself."""
GUARD_ENDS_S = 10.0
"""Likewise after its keeper's death."""
_NO_KEEPER = "The run's keeper ended before the run began."


class LocalGroup:
    """A keeper on this machine and the kernel's channel to it."""

    def __init__(
        self,
        run: socket.socket,
        starter_fd: int,
        log_file: Path,
        run_id: str,
        server: WarmServer | None = None,
        wait_for_child: Callable[[], object] | None = None,
    ) -> None:
        """`starter_fd`: pidfd, owned, of the process whose death before the keeper's hello means that none comes.
        `log_file`: where the keeper says what it cannot tell otherwise. `wait_for_child` reaps the starter where it is
        the run's own; None where it is the server.
        """
        self._channel: Channel[KeeperMessage] = Channel(run, KeeperMessage)
        self._starter_fd = starter_fd
        self._log_file = log_file
        self._run_id = run_id
        self._server = server
        self._wait_for_child = wait_for_child
        self._keeper_fd = -1
        self._keeper_pid = 0
        self._closed = False

    @property
    def answered(self) -> bool:
        return self._keeper_fd >= 0

    @property
    def answers_s(self) -> float | None:
        return None

    def fds(self) -> Sequence[int]:
        return (self._channel.fileno(), self._keeper_fd if self.answered else self._starter_fd)

    def receive(self) -> list[KeeperMessage | Skipped]:
        messages, closed = self._channel.receive()
        self._closed = self._closed or closed
        for message in messages:
            if isinstance(message, KeeperHello):
                self._keeper_pid = message.pid
                self._keeper_fd = self._channel.take_fd()
            elif isinstance(message, GroupOpened):
                STANDBY.note_group(self._run_id)
        return messages

    def send(self, command: RunCommand, fds: Sequence[int] = ()) -> None:
        self._channel.send(command, fds)

    def flush(self) -> bool:
        self._channel.flush()
        return not self._channel.wants_to_write

    def take_fd(self) -> int:
        return self._channel.take_fd()

    def lost(self) -> str | None:
        ended = is_readable(self.fds()[1])
        if not ended and (self.answered or not self._closed):
            return None
        if self.answered:
            return (
                f"its keeper (pid {self._keeper_pid}), the process that holds the ranks, was killed from outside or "
                f"crashed; in that case {self._log_file} says why."
            )
        if self._server is None:
            return _NO_KEEPER
        self._server.wait_if_dying()
        return self._server.obituary("could not start the ranks")

    def kill(self) -> None:
        if self.answered:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._keeper_fd, signal.SIGKILL)

    def close(self) -> None:
        """Give back what this group holds. A guard of our own whose keeper is released is waited for: it ends soon."""
        self._channel.close()
        if self._wait_for_child is not None and self._starter_fd >= 0:
            if not is_readable(self._starter_fd, KEEPER_ENDS_S):
                self.kill()
            if not is_readable(self._starter_fd, GUARD_ENDS_S):
                signal.pidfd_send_signal(self._starter_fd, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                self._wait_for_child()
        for fd in (self._starter_fd, self._keeper_fd):
            if fd >= 0:
                os.close(fd)
        self._starter_fd = self._keeper_fd = -1


class LocalEngine:
    """This machine's own processes."""

    name = "local"

    def check(self, request: LaunchRequest) -> None:
        """All that is asked of it is checked by the planner."""

    def hardware(self, _request: LaunchRequest, own: NodeHardware) -> NodeHardware:
        return own

    def check_plan(self, plan: LaunchPlan) -> None:
        """The planner has counted what this machine has."""

    def num_tries(self) -> int:
        """Whoever has killed one server may have killed them all: each is found out by one try, the next is new."""
        return 1 + max(1, POOL.num_servers())

    def start(self, attempt: Attempt, cancelled: Callable[[], bool]) -> LocalGroup:
        """Hand the attempt to a keeper. Raises StartError."""
        plan = attempt.plan
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                group = _STARTS[plan.start_method](attempt, ours, theirs, cancelled)
            except BaseException:
                ours.close()
                raise
        group.send(attempt.order(), [fd for fd in (attempt.payload_fd, attempt.store_fd) if fd is not None])
        return group

    def learn(self, attempt: Attempt, modules: Sequence[str]) -> None:
        """Have the next server import what these ranks had to import themselves, and the next ranks get ready; bury
        servers that died meanwhile.
        """
        POOL.reap()
        plan = attempt.plan
        if plan.start_method != "forkserver":
            return
        variables = base_variables(attempt)
        if modules:
            PRELOAD.learn(plan.function_name, modules, variables, num_ranks=plan.num_ranks)
        STANDBY.after(plan, attempt.surroundings, partial(PRELOAD.next_server_for, plan.function_name, variables))


def _from_server(
    attempt: Attempt, ours: socket.socket, theirs: socket.socket, cancelled: Callable[[], bool]
) -> LocalGroup:
    variables = base_variables(attempt)
    server = PRELOAD.server_for(attempt.plan.function_name, variables, cancelled)
    taken = STANDBY.hand_over(attempt.plan, attempt.surroundings, server)
    if taken is None:
        server.start_keeper(attempt.plan.num_ranks, theirs)
    else:
        ours.close()
        ours = taken
    return LocalGroup(ours, os.dup(server.pidfd), server.log_file, attempt.plan.run_id, server)


def _from_interpreter(
    attempt: Attempt, ours: socket.socket, theirs: socket.socket, _cancelled: Callable[[], bool]
) -> LocalGroup:
    log_file = server_log()
    with log_file.open("ab") as log:
        process = start_interpreter(
            "accel_nb.launch.keeper.guard",
            "guarded_in_interpreter",
            [attempt.plan.num_ranks, os.getpid(), theirs.fileno()],
            variables=base_variables(attempt),
            pass_fds=[theirs.fileno()],
            output=log.fileno(),
        )
    return LocalGroup(ours, os.pidfd_open(process.pid), log_file, attempt.plan.run_id, wait_for_child=process.wait)


def _from_kernel(
    attempt: Attempt, ours: socket.socket, theirs: socket.socket, _cancelled: Callable[[], bool]
) -> LocalGroup:
    """Fork this very process: asked for by name only."""
    opened = next((device.kind.upper() for device in find_devices() if device.is_open()), "")
    if opened:
        raise StartError(
            f'start_method="fork" is not possible: this kernel has used {opened}, and a fork of it cannot. Leave '
            "start_method out: ranks then start from a warm server, whatever the kernel has done."
        )
    from ..keeper.guard import guarded_in_fork

    log_file = server_log()
    kernel_fd = os.pidfd_open(os.getpid())
    with log_file.open("ab") as log:
        pid = os.fork()
        if pid == 0:
            guarded_in_fork(attempt.plan.num_ranks, kernel_fd, theirs, log.fileno())
    os.close(kernel_fd)
    return LocalGroup(
        ours, os.pidfd_open(pid), log_file, attempt.plan.run_id, wait_for_child=partial(os.waitpid, pid, 0)
    )


_STARTS = {"forkserver": _from_server, "spawn": _from_interpreter, "fork": _from_kernel}


def base_variables(attempt: Attempt) -> dict[str, str]:
    """What the ranks' interpreter starts from: the kernel's variables and the user's, none of another launcher."""
    return environment.rank_environment(attempt.surroundings.variables, attempt.plan, {})


ENGINE = LocalEngine()
