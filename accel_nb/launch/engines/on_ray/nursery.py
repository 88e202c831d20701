"""The nursery: a process beside a Ray actor, with torch imported and exactly one thread, that forks each run's agent.

    Ray's worker process ── RankHost ══requests══ nursery ──forks──▶ agent ──▶ guard, keeper, ranks

Ray's own process has threads, and so must not be forked. When it ends, however that is, the nursery ends its agents,
whose keepers take that for the end of their kernel.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import subprocess
import threading
import traceback
import weakref
from typing import NoReturn

import msgspec

from ....errors import StartError
from ....protocol import environment
from ....protocol.remote import Summons
from ... import processes
from ...channel import receive_packet, send_packet
from ...interpreter import start_interpreter
from ...keeper.start import close_all_but
from ...output import tqdm_notebook
from ...payload.memory_file import new_file
from ...rank.collective_shim import COLLECTIVES
from ...rank.group_shim import SHIM
from ...run_files import server_log
from ...servers import template
from ...servers.warm_client import SERVER_THREADS


class Forked(msgspec.Struct, frozen=True, kw_only=True):
    """The nursery's answer: an agent. Attached: its pidfd."""

    pid: int


class ForkAgent(msgspec.Struct, frozen=True, kw_only=True):
    """Attached: a file with the encoded summons, one for what the agent and its keeper write, and, if `brings_payload`,
    the payload's memory file.
    """

    brings_payload: bool


class Nursery:
    """The actor's end. Any thread may call."""

    def __init__(self) -> None:
        """Returns before the process has imported anything. Raises OSError when it cannot be started."""
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests = ours
        self.log_file = server_log()
        with theirs, self.log_file.open("ab") as log:
            self._process: subprocess.Popen[bytes] = start_interpreter(
                __name__,
                "tend",
                [theirs.fileno()],
                variables={**environment.current(), **SERVER_THREADS},
                pass_fds=[theirs.fileno()],
                output=log.fileno(),
            )

    def fork(self, summons: Summons, said_fd: int, payload_fd: int | None) -> int:
        """The pidfd, which the caller owns, of a new agent, whose stdout and stderr are `said_fd`. Waits for the
        imports. Raises StartError.
        """
        file = new_file()
        try:
            os.write(file, msgspec.msgpack.encode(summons))
            fds = [file, said_fd] if payload_fd is None else [file, said_fd, payload_fd]
            with self._lock:
                try:
                    send_packet(self._requests, ForkAgent(brings_payload=payload_fd is not None), fds)
                    answer, received = receive_packet(self._requests)
                except OSError:
                    answer, received = b"", []
        finally:
            os.close(file)
        if not answer:
            raise StartError(f"the process that forks agents has ended; {self.log_file} says why")
        return received[0]


def tend(requests_fd: int) -> None:
    """Everything the nursery's process does."""
    processes.reset_signals()
    processes.become_subreaper()
    requests = socket.socket(fileno=requests_fd)
    # In the order of the warm server's, for its reasons.
    struck = template.import_checked(template.BASE_MODULES[:1])
    SHIM.install()
    COLLECTIVES.install()
    tqdm_notebook.install()
    struck |= template.import_checked([*template.BASE_MODULES, "accel_nb.launch.engines.remote.relay"])
    if struck:
        print(f"no agent can be forked: {struck}", flush=True)  # noqa: T201  the log
        processes.end_children()
        os._exit(1)
    COLLECTIVES.keep_compiler_out()
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001  no public list
        finalizer.atexit = False
    gc.collect()
    gc.freeze()
    agents: dict[int, int] = {}
    while True:
        _wait([requests.fileno(), *agents.values()])
        _reap(agents)
        if not processes.is_readable(requests.fileno()):
            continue
        packet, fds = receive_packet(requests)
        if not packet:
            # Ray's process is gone.
            processes.end_children()
            return
        _fork(msgspec.msgpack.decode(packet, type=ForkAgent), fds, requests, agents)


def _wait(fds: list[int]) -> None:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll()


def _fork(request: ForkAgent, fds: list[int], requests: socket.socket, agents: dict[int, int]) -> None:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_agent(parent, fds, brings_payload=request.brings_payload)
    pidfd = agents[pid] = os.pidfd_open(pid)
    with contextlib.suppress(OSError):
        # Where nobody hears that any more, the next packet is an empty one.
        send_packet(requests, Forked(pid=pid), [pidfd])
    for fd in fds:
        os.close(fd)


def _become_agent(parent: int, fds: list[int], *, brings_payload: bool) -> NoReturn:
    code = 70
    try:
        processes.die_with_parent(parent)
        os.setpgid(0, 0)
        os.dup2(fds[1], 1)
        os.dup2(fds[1], 2)
        close_all_but(fds)
        os.lseek(fds[0], 0, os.SEEK_SET)
        with os.fdopen(fds[0], "rb") as file:
            summons = msgspec.msgpack.decode(file.read(), type=Summons)
        from ..remote.agent import serve

        code = serve(summons, payload_fd=fds[2] if brings_payload else None)
    except BaseException:  # noqa: BLE001  must not return into the nursery's stack
        traceback.print_exc()
    finally:
        os._exit(code)


def _reap(agents: dict[int, int]) -> None:
    """Forget those of `agents` (pid -> pidfd) that have ended, and what they have left to this process."""
    for pid, pidfd in list(agents.items()):
        if processes.is_readable(pidfd):
            os.waitpid(pid, 0)
            os.close(pidfd)
            del agents[pid]
    processes.reap_orphans(spare=set(agents))
