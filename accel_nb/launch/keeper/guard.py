"""Between a kernel and a keeper that no warm server stands behind: ends what a killed keeper leaves behind.

    kernel ──forks or starts──▶ guard ──forks──▶ keeper ──▶ ranks ──▶ what they start

A killed keeper takes its ranks along, but not what they had started. That becomes the guard's, which is a subreaper, as
the warm server is elsewhere. The kernel itself must not be one: its user's own processes would become its children.
"""

from __future__ import annotations

import importlib
import os
import select
import shutil
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .. import processes
from ..rank.collective_shim import COLLECTIVES
from ..rank.group_shim import SHIM
from .start import close_all_but, keep_in_fork, keep_in_interpreter, keep_some

LAST_RUN_S = 15.0
"""After the kernel's death the keeper has this long to end its run, then the guard ends what is left."""


def guarded_in_interpreter(num_ranks: int, kernel_pid: int, run_fd: int) -> None:
    """Everything a fresh interpreter does as guard, and what it forks does as keeper."""
    processes.reset_signals()
    kernel_fd = os.pidfd_open(kernel_pid)
    if os.getppid() != kernel_pid:
        return
    stand_guard(kernel_fd)
    keep_in_interpreter(num_ranks, kernel_fd, socket.socket(fileno=run_fd))


def guarded_in_fork(num_ranks: int, kernel_fd: int, run: socket.socket, log_fd: int) -> NoReturn:
    """Everything a fork of the kernel does as guard, and what it forks does as keeper; `log_fd` gets what they say."""
    try:
        # An interrupt at the terminal is for the kernel.
        os.setpgid(0, 0)
        _speak_into(log_fd)
        close_all_but({kernel_fd, run.fileno()})
        stand_guard(kernel_fd)
        if "torch" in sys.modules:
            SHIM.install()
            COLLECTIVES.install()
    except BaseException:  # noqa: BLE001  must not return into the kernel's stack
        traceback.print_exc()
        os._exit(70)
    keep_in_fork(num_ranks=num_ranks, kernel_fd=kernel_fd, control=None, run=run, parent_pid=os.getppid())


def guarded_beside_agent(
    ranks: Sequence[int],
    num_ranks: int,
    agent_fd: int,
    run: socket.socket,
    *,
    kept_fds: Sequence[int],
    forks: bool,
    folder: Path | None,
) -> NoReturn:
    """Everything a fork of an agent does as guard, and what that forks does as the keeper of `ranks`: the agent is its
    kernel. `agent_fd`: pidfd. `kept_fds`: what the ranks are to inherit. `forks`: ranks are forks, else interpreters.
    `folder`: of the agent, removed in its place when it is killed.
    """
    code = 70
    try:
        os.setpgid(0, 0)
        _speak_into(processes.STDERR)
        close_all_but({agent_fd, run.fileno(), *kept_fds})
        stand_guard(agent_fd, folder)
        os.setpgid(0, 0)
        if forks:
            # The ranks, its forks, find it there.
            importlib.import_module("torch.distributed")
            SHIM.install()
            COLLECTIVES.install()
        keep_some(ranks, num_ranks, agent_fd, run, forks=forks)
        code = 0
    except BaseException:  # noqa: BLE001  must not return into the agent's stack
        traceback.print_exc()
    finally:
        os._exit(code)


def stand_guard(kernel_fd: int, folder: Path | None = None) -> None:
    """Fork and return in the child, which is to become the keeper; it dies with the guard until its run begins.
    `folder` is removed where the kernel cannot do so any more.

    The caller becomes the guard and never returns: it ends once the keeper has ended, with that one's exit code. It
    must be a process that nobody else uses.
    """
    processes.reset_signals()
    processes.become_subreaper()
    guard_pid = os.getpid()
    keeper_pid = os.fork()
    if keeper_pid == 0:
        processes.die_with_parent(guard_pid)
        return
    code = 70
    try:
        # The keeper's end of the run's channel must close with the keeper.
        close_all_but({kernel_fd})
        code = _until_over(keeper_pid, kernel_fd)
        if folder is not None and processes.is_readable(kernel_fd):
            shutil.rmtree(folder, ignore_errors=True)
    except BaseException:  # noqa: BLE001  must not return into the kernel's stack
        traceback.print_exc()
    finally:
        os._exit(code)


def _speak_into(fd: int) -> None:
    """Make `fd` this process's stdout and stderr; the streams of a fork of the kernel belong to a notebook."""
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _until_over(keeper_pid: int, kernel_fd: int) -> int:
    keeper_fd = os.pidfd_open(keeper_pid)
    poll = select.poll()
    poll.register(keeper_fd, select.POLLIN)
    poll.register(kernel_fd, select.POLLIN)
    poll.poll()
    # Either has ended; after the kernel's death the keeper ends its run and itself.
    if not processes.is_readable(keeper_fd, LAST_RUN_S):
        processes.end_children()
        return 70
    code, signal_name = processes.decode_status(os.waitpid(keeper_pid, 0)[1])
    if code == 0:
        return 0
    print(f"keeper {keeper_pid} ended: exit code {code}, signal {signal_name}", flush=True)  # noqa: T201  the server's log
    processes.end_children()
    return 70
