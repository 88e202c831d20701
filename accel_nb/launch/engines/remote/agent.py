"""The agent: a process beside a keeper on any machine, which stands for the kernel there.

    hub ══zmq══ agent ──run channel── keeper ──▶ ranks
                  └─ forks ──▶ guard ─forks─▶ keeper

It relays, and decides nothing. Where the kernel is gone it lets the keeper go, which ends its ranks; when the agent is
killed, the keeper sees that as its kernel's death.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from ....protocol import environment
from ....protocol.remote import AgentFailed, Summons
from ...interpreter import start_interpreter
from ...keeper.guard import guarded_beside_agent
from ...payload.memory_file import new_file
from .witness import Witness

_FAILED = 1


def start_agent(
    summons: Summons, *, variables: Mapping[str, str], output: int, witness_fds: tuple[int, int] | None = None
) -> subprocess.Popen[bytes]:
    """An agent on this machine, in a session of its own; `output` becomes its stdout and stderr, where it says what it
    cannot tell the kernel. The caller owns the process, which ends by itself. `witness_fds`, borrowed: where this
    process is the kernel of the summons' own part, the agent's end of a socket to it, and the payload's memory file.
    """
    # A file, not a pipe: what the kernel has in its environment may be more than a pipe takes.
    summons_fd = new_file()
    try:
        with os.fdopen(summons_fd, "wb", closefd=False) as file:
            file.write(msgspec.msgpack.encode(summons))
        return start_interpreter(
            __name__,
            "summoned_by_file",
            [summons_fd, os.getpid(), *(witness_fds or ())],
            variables=variables,
            pass_fds=[summons_fd, *(witness_fds or ())],
            output=output,
        )
    finally:
        os.close(summons_fd)


def summoned_by_file(summons_fd: int, kernel_pid: int, channel_fd: int = -1, payload_fd: int = -1) -> None:
    """Everything a fresh interpreter does as the agent of the summons in the file `summons_fd`."""
    with os.fdopen(summons_fd, "rb") as file:
        file.seek(0)
        summons = msgspec.msgpack.decode(file.read(), type=Summons)
    witness = None if summons.own is None else Witness(summons.own, channel_fd, payload_fd, kernel_pid)
    sys.exit(serve(summons, witness))


def serve(summons: Summons, witness: Witness | None = None, payload_fd: int | None = None) -> int:
    """Hold the ranks of the seat until the run is over; gives the exit status. In a process that has one thread and no
    context of zmq's. `witness`: of a kernel of this machine's own; closed afterwards. `payload_fd`: the payload, where
    it has come another way than from the kernel; borrowed.
    """
    # An interrupt at a terminal is for the kernel.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        made = None
        if witness is None:
            made = folder = Path(mkdtemp(prefix=f"accel_nb_{summons.contact.run_id}_"))
        else:
            folder = Path(witness.own.log_dir)
        ours, theirs = socket.socketpair()
        guard_pid = _fork_guard(summons, ours, theirs, made)
        theirs.close()
    except OSError as error:
        return _told(error, witness)
    from .relay import relay

    try:
        return relay(summons, ours, guard_pid, folder, witness, payload_fd)
    except Exception as error:  # noqa: BLE001  told where the engine can read it
        return _told(error, witness)
    finally:
        ours.close()
        _await_guard(guard_pid)
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        if witness is not None:
            witness.close()


def _told(error: Exception, witness: Witness | None) -> int:
    """Say why this agent holds nothing; its exit status."""
    if witness is not None:
        witness.tell(AgentFailed(reason=str(error)))
    print(f"accel_nb: {error}", file=sys.stderr, flush=True)  # noqa: T201  nobody else listens
    return _FAILED


def _fork_guard(summons: Summons, ours: socket.socket, theirs: socket.socket, folder: Path | None) -> int:
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
            folder=folder,
        )
    os.close(agent_fd)
    return pid


def _await_guard(pid: int) -> None:
    """It ends within seconds of the run's channel."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return
