"""How a keeper and its ranks come to be: forked from the warm server, forked from the kernel, or fresh interpreters."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import traceback
from collections.abc import Iterable, Sequence
from typing import NoReturn

from ...protocol import environment
from ...protocol.commands import RunCommand, StoreAddress
from ...protocol.ledger import LedgerPage
from .. import processes
from ..channel import Channel
from ..interpreter import start_interpreter
from ..rank.main import run_rank
from .keeper import Keeper
from .rank_process import RankProcess, StartRank
from .rehearsal import rank_rehearsal, rehearse_keeper
from .run_store import RunStore
from .waiting import Waiting

_spawned: list[subprocess.Popen[bytes]] = []
"""Kept for ever: a dropped Popen would be reaped behind the keeper's back."""


def keep_in_fork(
    *, num_ranks: int, kernel_fd: int, control: socket.socket | None, run: socket.socket | None, parent_pid: int
) -> NoReturn:
    """Everything a forked child does as a keeper: `run` begins at once, or comes over the server's `control` later."""
    code = 70
    try:
        processes.reset_signals()
        if control is not None:
            processes.die_with_parent(parent_pid)
        os.setpgid(0, 0)
        kept = {kernel_fd, *(sock.fileno() for sock in (control, run) if sock is not None)}
        page = LedgerPage(num_ranks)
        _keep(page, kernel_fd, control, run, _forking(page, kept, ahead=run is None))
        code = 0
    except BaseException:  # noqa: BLE001  must not return into the server's or kernel's stack
        traceback.print_exc()
    finally:
        os._exit(code)


def keep_in_interpreter(num_ranks: int, kernel_fd: int, run: socket.socket) -> None:
    """Everything a fresh interpreter does as a keeper whose ranks are fresh interpreters too."""
    page = LedgerPage(num_ranks)
    _keep(page, kernel_fd, None, run, _spawning(page))


def keep_some(ranks: Sequence[int], num_ranks: int, kernel_fd: int, run: socket.socket, *, forks: bool) -> None:
    """Everything a process does as the keeper of `ranks` of a run of `num_ranks`, of which other keepers have the rest.

    `forks`: its ranks are forks of it, else fresh interpreters. The order says where the run's store is, or brings the
    socket for it.
    """
    page = LedgerPage(num_ranks, is_whole=len(ranks) == num_ranks)
    start = _forking(page, {kernel_fd, run.fileno()}, ahead=False) if forks else _spawning(page)
    processes_of_ranks = _start_ranks(page, ranks, start)
    processes.outlive_parent()
    Keeper(Channel[RunCommand](run, RunCommand), processes_of_ranks, page, None, kernel_fd).run()


def rank_in_interpreter(rank_fd: int, keeper_pid: int, num_ranks: int, ledger_fd: int, is_whole: bool) -> NoReturn:
    """Everything a fresh interpreter does as a rank."""
    processes.die_with_parent(keeper_pid)
    from ..rank.collective_shim import COLLECTIVES
    from ..rank.group_shim import SHIM

    SHIM.install()
    COLLECTIVES.install()
    page = LedgerPage(num_ranks, ledger_fd, is_whole=is_whole)
    os.close(ledger_fd)
    run_rank(socket.socket(fileno=rank_fd), page, meanwhile=iter(()))


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor above 2 that is not in `kept`: what a fork has copied from its parent."""
    keep = frozenset(kept)
    for fd in processes.open_fds():
        if fd > processes.STDERR and fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)


def _keep(
    page: LedgerPage, kernel_fd: int, control: socket.socket | None, run: socket.socket | None, start: StartRank
) -> None:
    # The ranks first: the store gives this process threads, after which it must not fork.
    ranks = _start_ranks(page, range(page.num_ranks), start)
    store = RunStore()
    for rank in ranks:
        rank.channel.send(StoreAddress(host=store.host, port=store.port))
    if run is None:
        assert control is not None
        rehearse_keeper(page.num_ranks)
        run = Waiting(control, kernel_fd, ranks, store.port).for_run()
    if run is None:
        processes.end_children()
        return
    processes.outlive_parent()
    Keeper(Channel[RunCommand](run, RunCommand), ranks, page, store, kernel_fd).run()


def _start_ranks(page: LedgerPage, ranks: Sequence[int], start: StartRank) -> list[RankProcess]:
    processes.become_subreaper()
    started = [RankProcess(rank, start) for rank in ranks]
    os.close(page.fd)
    # The keeper's own descriptors grow with the ranks; theirs keep the kernel's limit.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return started


def _forking(page: LedgerPage, kept_by_keeper: set[int], *, ahead: bool) -> StartRank:
    keeper_pid = os.getpid()
    baseline = processes.open_fds() - kept_by_keeper - {page.fd}

    def start(_rank: int, write_fd: int, sock: socket.socket) -> int:
        pid = os.fork()
        if pid:
            os.setpgid(pid, pid)
            return pid
        try:
            os.setpgid(0, 0)
            processes.die_with_parent(keeper_pid)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(write_fd, 1)
            os.dup2(write_fd, 2)
            close_all_but(baseline | {sock.fileno()})
            run_rank(sock, page, meanwhile=rank_rehearsal() if ahead else iter(()))
        except KeyboardInterrupt:
            # Stopped before it knew what for: nothing of this is the user's to read.
            os._exit(70)
        except BaseException:  # noqa: BLE001  must not return into the keeper's stack
            traceback.print_exc()
        finally:
            os._exit(70)

    return start


def _spawning(page: LedgerPage) -> StartRank:
    def start(_rank: int, write_fd: int, sock: socket.socket) -> int:
        process = start_interpreter(
            "accel_nb.launch.keeper.start",
            "rank_in_interpreter",
            [sock.fileno(), os.getpid(), page.num_ranks, page.fd, page.is_whole],
            variables=environment.current(),
            pass_fds=[sock.fileno(), page.fd],
            output=write_fd,
        )
        _spawned.append(process)
        return process.pid

    return start
