"""The warm server: a process with torch imported and exactly one thread, that forks keepers.

It never computes, never opens a device, never imports the user's own modules. After each run it forks the next keeper
with its ranks ahead, so that a launch only has to hand over a socket. On request, and when no launch has come for a
moment, such a keeper gets its ranks ready for one launch in particular: from then on it answers to the kernel alone,
and another one is forked for launches of another kind. A keeper that dies leaves its ranks and all they started to the
server, which is a subreaper and ends them. While it has neither requests nor children it moves memory to huge pages.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import select
import socket
import sys
import time
import traceback
import weakref
from collections.abc import Iterator
from typing import Literal, NoReturn

import msgspec

from ...protocol import environment
from ...protocol.commands import CountDevices, ForkAhead, ServerReady, ServerRequest, StandBy, StartKeeper
from ...protocol.version import __version__
from .. import processes
from ..channel import receive_packet, send_packet
from ..keeper import rehearsal
from ..keeper.start import close_all_but, keep_in_fork
from ..output import tqdm_notebook
from ..rank.collective_shim import COLLECTIVES
from ..rank.group_shim import SHIM
from . import huge_pages, template

IDLE_KEEPER_S = 300.0
"""An idle keeper and its ranks are let go after this long."""
_LAST_RUNS_S = 15.0
QUIET_S = 0.25
"""Ranks are got ready only when no launch has followed for so long: one that comes at once would find the CPUs busy."""
_WIND_UP_STEP_MS = 500
"""After the kernel's death the server waits this long for its keepers, then ends what is left."""


class _KeeperProcess(msgspec.Struct):
    pid: int
    num_ranks: int
    control: socket.socket
    born_s: float
    state: Literal["idle", "standby", "serving", "leaving"] = "idle"
    """Of one in standby the server does not learn when its run begins."""

    def leave(self) -> None:
        """Let a keeper that waits go: it ends when the control socket closes."""
        self.state = "leaving"
        self.control.close()


class _Wish(msgspec.Struct):
    """That a keeper gets its ranks ready."""

    request: StandBy
    fds: list[int]
    due_s: float

    def drop(self) -> None:
        """The set's socket closes, which tells the kernel."""
        for fd in self.fds:
            os.close(fd)


class WarmServer:
    """The server's loop. One thread, in the server process."""

    def __init__(self, requests: socket.socket, kernel_fd: int) -> None:
        self._requests = requests
        self._kernel_fd = kernel_fd
        self._library_fds = processes.open_fds() - {requests.fileno(), kernel_fd}
        self._children: dict[int, _KeeperProcess | None] = {}
        """pidfd -> keeper, or None for a counting child."""
        self._pids: dict[int, int] = {}
        self._collapsing: Iterator[None] | None = huge_pages.collapsing()
        """None when it is done."""
        self._ranks_ahead = 0
        """Fork a keeper with so many ranks as soon as there is nothing better to do; 0: none."""
        self._wish: _Wish | None = None
        self._poll = select.poll()
        self._poll.register(requests, select.POLLIN)
        self._poll.register(kernel_fd, select.POLLIN)

    def run(self) -> None:
        """Until the kernel closes its end or dies."""
        while True:
            ready = self._poll.poll(self._due_in_s() * 1000)
            if not ready:
                self._work_ahead()
            for fd, _ in ready:
                if fd == self._kernel_fd:
                    return self._wind_up()
                if fd == self._requests.fileno():
                    packet, fds = receive_packet(self._requests)
                    if not packet:
                        return self._wind_up()
                    self._serve(packet, fds)
                elif fd in self._children:
                    self._child_ended(fd)
            self._let_idle_go(older_than_s=IDLE_KEEPER_S)
            # What a keeper could not end has become ours, and may have ended since.
            processes.reap_orphans(spare=set(self._pids.values()))

    def _due_in_s(self) -> float:
        """Until `_work_ahead` has something to do."""
        if self._ranks_ahead or (self._collapsing is not None and not self._children):
            return 0.0
        return IDLE_KEEPER_S if self._wish is None else max(0.0, self._wish.due_s - time.monotonic())

    def _work_ahead(self) -> None:
        """One step of what makes later launches faster."""
        if self._wish is not None and time.monotonic() >= self._wish.due_s:
            wish, self._wish = self._wish, None
            self._have_stand_by(wish)
        elif self._collapsing is not None and not self._children:
            self._collapsing = self._collapsing if next(self._collapsing, self) is None else None
        elif self._ranks_ahead:
            num_ranks, self._ranks_ahead = self._ranks_ahead, 0
            self._let_idle_go()
            self._fork_keeper(num_ranks)

    def _serve(self, packet: bytes, fds: list[int]) -> None:
        request: ServerRequest = msgspec.msgpack.decode(packet, type=ServerRequest)
        match request:
            case StartKeeper():
                self._hand_over(request.num_ranks, fds[0])
            case CountDevices():
                self._fork_counter(request, fds[0])
            case ForkAhead():
                self._ranks_ahead = request.num_ranks
            case StandBy():
                if self._wish is not None:
                    self._wish.drop()
                self._wish = _Wish(request, list(map(os.dup, fds)), time.monotonic() + QUIET_S)
        for fd in fds:
            os.close(fd)

    def _hand_over(self, num_ranks: int, run_fd: int) -> None:
        """Give the run to a keeper that waits, else to a new one. A waiting one may have died unnoticed."""
        if _is_given_up(run_fd):
            return
        while (keeper := self._idle(num_ranks)) is not None:
            try:
                send_packet(keeper.control, StartKeeper(num_ranks=num_ranks), [run_fd])
            except OSError:
                keeper.leave()
            else:
                keeper.state = "serving"
                keeper.control.close()
                return
        self._fork_keeper(num_ranks, run_fd)

    def _have_stand_by(self, wish: _Wish) -> None:
        if not _is_given_up(wish.fds[1]):
            num_ranks = wish.request.num_ranks
            keeper = self._idle(num_ranks) or self._fork_keeper(num_ranks)
            keeper.state = "standby"
            # One that cannot be told any more is dead.
            with contextlib.suppress(OSError):
                send_packet(keeper.control, wish.request, wish.fds)
            self._ranks_ahead = num_ranks
        wish.drop()

    def _fork_keeper(self, num_ranks: int, run_fd: int | None = None) -> _KeeperProcess:
        """One that waits for a run, or begins with the one on `run_fd`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            run = None if run_fd is None else socket.socket(fileno=run_fd)
            kept = theirs if run is None else run
            close_all_but(self._library_fds | {kept.fileno(), self._kernel_fd})
            keep_in_fork(
                num_ranks=num_ranks,
                kernel_fd=self._kernel_fd,
                control=theirs if run is None else None,
                run=run,
                parent_pid=parent,
            )
        theirs.close()
        keeper = _KeeperProcess(pid=pid, num_ranks=num_ranks, control=ours, born_s=time.monotonic())
        if run_fd is not None:
            keeper.state = "serving"
            ours.close()
        self._adopt(pid, keeper)
        return keeper

    def _fork_counter(self, request: CountDevices, answer_fd: int) -> None:
        pid = os.fork()
        if pid == 0:
            _count_devices(request, answer_fd)
        self._adopt(pid, None)

    def _adopt(self, pid: int, keeper: _KeeperProcess | None) -> None:
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = keeper
        self._pids[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)

    def _child_ended(self, pidfd: int) -> None:
        keeper = self._children.pop(pidfd)
        pid = self._pids.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        code, signal_name = processes.decode_status(os.waitpid(pid, 0)[1])
        if keeper is None:
            return
        keeper.control.close()
        if code != 0:
            print(f"keeper {pid} ended: exit code {code}, signal {signal_name}", flush=True)  # noqa: T201  the server's log
            # Its ranks and what they started are ours now; they may take a moment to arrive.
            processes.end_children(spare=frozenset(self._pids.values()))
        elif keeper.state in ("serving", "standby") and self._idle(keeper.num_ranks) is None:
            # A run is over: the next one will most likely have as many ranks.
            self._ranks_ahead = keeper.num_ranks

    def _idle(self, num_ranks: int) -> _KeeperProcess | None:
        for keeper in self._children.values():
            if keeper is not None and keeper.state == "idle" and keeper.num_ranks == num_ranks:
                return keeper
        return None

    def _let_idle_go(self, older_than_s: float = 0.0) -> None:
        now = time.monotonic()
        for keeper in self._children.values():
            if keeper is not None and keeper.state == "idle" and now - keeper.born_s >= older_than_s:
                keeper.leave()

    def _wind_up(self) -> None:
        """The kernel needs this server no more, or is dead. Runs under way go on to their end while it lives; after its
        death their keepers end them, and what they cannot end, we end.
        """
        if self._wish is not None:
            self._wish.drop()
        self._let_idle_go()
        for keeper in self._children.values():
            if keeper is not None and keeper.state == "standby":
                keeper.leave()
        # Readable for ever from now on.
        self._poll.unregister(self._requests)
        end = math.inf
        while self._pids and time.monotonic() < end:
            for fd, _ in self._poll.poll(_WIND_UP_STEP_MS):
                if fd == self._kernel_fd:
                    self._poll.unregister(fd)
                    end = time.monotonic() + _LAST_RUNS_S
                else:
                    self._child_ended_for_good(fd)
        processes.end_children()

    def _child_ended_for_good(self, pidfd: int) -> None:
        pid = self._pids.pop(pidfd)
        del self._children[pidfd]
        self._poll.unregister(pidfd)
        os.waitpid(pid, 0)


def serve(kernel_pid: int, requests_fd: int, preload_fd: int, kernel_version: str) -> None:
    """Everything the server process does. Started by `accel_nb.launch.servers.warm_client` in a fresh interpreter."""
    if kernel_version != __version__:
        print(f"The kernel runs accel_nb {kernel_version}, installed is {__version__}: restart it.")  # noqa: T201  the log
        return
    kernel_fd = os.pidfd_open(kernel_pid)
    if os.getppid() != kernel_pid:
        return
    processes.reset_signals()
    processes.become_subreaper()
    requests = socket.socket(fileno=requests_fd)
    with os.fdopen(preload_fd, "rb") as file:
        preload = msgspec.json.decode(file.read(), type=tuple[str, ...])
    struck = template.import_checked(template.BASE_MODULES[:1])
    SHIM.install()
    COLLECTIVES.install()
    # Before any module that takes tqdm.notebook's classes by name.
    tqdm_notebook.install()
    struck |= template.import_checked([*template.BASE_MODULES, *preload])
    with contextlib.suppress(BrokenPipeError):
        # A kernel that has let this server go does not listen; what it had asked before is still to be read.
        send_packet(requests, ServerReady(struck=struck))
    if struck:
        # What the module has started must not outlast us: children are ended, threads not waited for.
        processes.end_children()
        os._exit(0)
    _forget_finalizers()
    COLLECTIVES.keep_compiler_out()
    rehearsal.prepare()
    gc.collect()
    gc.freeze()
    WarmServer(requests, kernel_fd).run()


def _is_given_up(run_fd: int) -> bool:
    """Whether the kernel has closed its end of a run's channel: interrupted while this server was importing."""
    poll = select.poll()
    poll.register(run_fd, select.POLLHUP)
    return bool(poll.poll(0))


def _forget_finalizers() -> None:
    """What the imports want done at exit is for this process only. Every rank would spend 0.1 s on torch's 170."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # noqa: SLF001  no public list
        finalizer.atexit = False


def _count_devices(request: CountDevices, answer_fd: int) -> NoReturn:
    """In a child that ends afterwards: counting may open a device."""
    from ...devices import count_devices

    try:
        environment.replace_all(environment.without(environment.current(), request.unset) | request.variables)
        os.write(answer_fd, msgspec.json.encode(count_devices()))
    except BaseException:  # noqa: BLE001  must not return into the server's stack
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)
