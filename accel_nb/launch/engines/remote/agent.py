"""The agent: a process beside a keeper on any machine, which stands for the kernel there.

    hub ══zmq══ agent ──run channel── keeper ──▶ ranks
                  └─ forks ──▶ guard ─forks─▶ keeper

It relays, and decides nothing. Where the kernel is gone it lets the keeper go, which ends its ranks; when the agent is
killed, the keeper sees that as its kernel's death.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

import msgspec

from ....protocol import environment
from ....protocol.remote import AgentFailed, Summons
from ...interpreter import start_interpreter
from ...keeper.guard import guarded_beside_agent
from .witness import Witness

_FAILED = 1


def start_agent(
    summons: Summons, *, variables: Mapping[str, str], output: int, witness_fds: tuple[int, int] | None = None
) -> subprocess.Popen[bytes]:
    """An agent on this machine, in a session of its own; `output` becomes its stdout and stderr, where it says what it
    cannot tell the kernel. The caller owns the process, which ends by itself. `witness_fds`, borrowed: where this
    process is the kernel of the summons' own part, the agent's end of a socket to it, and the payload's memory file.
    """
    read_fd, write_fd = os.pipe()
    try:
        process = start_interpreter(
            __name__,
            "summoned_by_pipe",
            [read_fd, os.getpid(), *(witness_fds or ())],
            variables=variables,
            pass_fds=[read_fd, *(witness_fds or ())],
            output=output,
        )
        # Within what a pipe takes at once.
        with os.fdopen(write_fd, "wb", closefd=False) as pipe:
            pipe.write(msgspec.msgpack.encode(summons))
    finally:
        os.close(read_fd)
        os.close(write_fd)
    return process


def summoned_by_pipe(read_fd: int, kernel_pid: int, channel_fd: int = -1, payload_fd: int = -1) -> None:
    """Everything a fresh interpreter does as the agent of the summons that come over `read_fd`."""
    with os.fdopen(read_fd, "rb") as pipe:
        summons = msgspec.msgpack.decode(pipe.read(), type=Summons)
    witness = None if summons.own is None else Witness(summons.own, channel_fd, payload_fd, kernel_pid)
    sys.exit(serve(summons, witness))


def serve(summons: Summons, witness: Witness | None = None, payload_fd: int | None = None) -> int:
    """Hold the ranks of the seat until the run is over; gives the exit status. In a process that has one thread and no
    context of zmq's. `witness`: of a kernel of this machine's own; closed afterwards. `payload_fd`: the payload, where
    it has come another way than from the kernel; borrowed.
    """
    # An interrupt at a terminal is for the kernel.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ours, theirs = socket.socketpair()
    guard_pid = _fork_guard(summons, ours, theirs)
    theirs.close()
    from .relay import relay

    try:
        return relay(summons, ours, guard_pid, witness, payload_fd)
    except Exception as error:  # noqa: BLE001  told where the engine can read it
        if witness is not None:
            witness.tell(AgentFailed(reason=str(error)))
        print(f"accel_nb: {error}", file=sys.stderr, flush=True)  # noqa: T201  nobody else listens
        return _FAILED
    finally:
        ours.close()
        _await_guard(guard_pid)
        if witness is not None:
            witness.close()


def _fork_guard(summons: Summons, ours: socket.socket, theirs: socket.socket) -> int:
    """At once, so that torch is imported there while the agent finds its kernel."""
    contact = summons.contact
    agent_fd = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid == 0:
        ours.close()
        guarded_beside_agent(
            contact.seats[summons.seat],
            contact.num_ranks,
            agent_fd,
            theirs,
            kept_fds=environment.mpi_fds(environment.current()),
            forks=contact.start_method == "forkserver",
        )
    os.close(agent_fd)
    return pid


def _await_guard(pid: int) -> None:
    """It ends within seconds of the run's channel."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return
