"""A keeper that was forked ahead: it waits for its run, and may be told to get its ranks ready for it meanwhile.

warm server ──StartKeeper, StandBy──▶ keeper ──GetReady──▶ rank
kernel ──────StartKeeper────────────▶ keeper ◀─RankReady── rank
kernel ◀─────StandbyNews───────────── keeper
"""

from __future__ import annotations

import select
import socket
import time

import msgspec

from ...protocol.commands import StandBy, StartKeeper
from ..channel import receive_packet
from .rank_process import RankProcess
from .standby_set import StandbySet


class Waiting:
    """Until the run begins or none will come. One thread, in the keeper process, which must not fork any more."""

    def __init__(self, control: socket.socket, kernel_fd: int, ranks: list[RankProcess], store_port: int) -> None:
        """`control`: the server's channel, closed when a run comes."""
        self._control = control
        self._kernel_fd = kernel_fd
        self._ranks = ranks
        self._store_port = store_port
        self._set: StandbySet | None = None

    def for_run(self) -> socket.socket | None:
        """Block until a run's channel is handed over; None when the server or the kernel lets this keeper go, the
        kernel or a rank has died, or the ranks cannot be kept ready.

        A run that was handed over all the same starts again elsewhere: its channel closes before a word of ours.
        """
        while True:
            ready = self._wait()
            if self._kernel_fd in ready or self._has_lost_rank(ready):
                self._give_up("a rank has died while it waited")
                return None
            if self._control.fileno() in ready:
                packet, fds = receive_packet(self._control)
                if not packet:
                    self._give_up("its server was let go")
                    return None
                match msgspec.msgpack.decode(packet, type=StartKeeper | StandBy):
                    case StartKeeper():
                        self._control.close()
                        return socket.socket(fileno=fds[0])
                    case StandBy():
                        self._set = StandbySet(fds[0], fds[1], self._ranks, self._store_port)
            if self._set is not None and self._set.act(ready, time.monotonic()):
                self._control.close()
                return self._set.run

    def _wait(self) -> set[int]:
        poll = select.poll()
        watched = [self._control.fileno(), self._kernel_fd, *(rank.pidfd for rank in self._ranks)]
        if self._set is not None:
            watched += self._set.fds()
        for fd in watched:
            poll.register(fd, select.POLLIN)
        timeout_s = None if self._set is None else self._set.due_in_s(time.monotonic())
        return {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}

    def _has_lost_rank(self, ready: set[int]) -> bool:
        lost = [rank for rank in self._ranks if rank.pidfd in ready]
        for rank in lost:
            print(rank.last_words(), flush=True)  # noqa: T201  the server's log
        return bool(lost)

    def _give_up(self, reason: str) -> None:
        if self._set is not None:
            self._set.give_up(reason)
