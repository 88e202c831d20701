"""Ranks that are got ready for a launch that is likely to come: from the order to get ready to the run, or to the end.

looking (may they have the devices?) -> warming -> ready -> asking (are all still there?) -> run | over

Used once: a set has one run, or none. A run is taken only when all ranks have said, after it was handed over, that they
are ready: what was wrong with one of them costs the launch nothing but that question.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

import msgspec

from ...devices.device import Device
from ...protocol.commands import Confirm, GetReady, StandbyNews, StandbyOrder, StartKeeper
from ..channel import receive_packet, send_packet
from .orders import rank_order
from .rank_process import RankProcess
from .standby_room import StandbyRoom

LOOKING_S = 5.0
"""The run before may take some seconds to give the devices' memory back."""
WARMING_S = 45.0
"""To open devices takes half a second, or many when the driver is cold."""
ASKING_S = 5.0
"""Longer than the kernel waits for the answer."""
_LOOK_EVERY_S = 0.1
_WATCH_EVERY_S = 0.5
"""Memory is back within two seconds after somebody else needs it."""


class StandbySet:
    """One set. Used by its keeper's one thread."""

    def __init__(
        self,
        order_fd: int,
        kernel_fd: int,
        ranks: Sequence[RankProcess],
        store_port: int,
        device: Device | None = None,
    ) -> None:
        """`order_fd`: memory file of a `StandbyOrder`; `kernel_fd`: the set's socket. Both are owned from now on.
        `device`: as of `StandbyRoom`.
        """
        data = os.pread(order_fd, os.fstat(order_fd).st_size, 0)
        os.close(order_fd)
        self._order = msgspec.msgpack.decode(data, type=StandbyOrder)
        self._kernel = socket.socket(fileno=kernel_fd)
        self._ranks = ranks
        self._store_port = store_port
        self._room = StandbyRoom(self._order, device)
        self._state = "looking"
        self._until_s = 0.0
        """End of what `_state` says; 0: to be set."""
        self._next_look_s = 0.0
        self.run: socket.socket | None = None
        """The channel of the run that takes the set; None while there is none, and when it ends without one."""

    def fds(self) -> list[int]:
        """Descriptors that become readable when `act` has something to do."""
        kernel = [] if self._state == "asking" else [self._kernel.fileno()]
        ranks = [rank.channel.fileno() for rank in self._ranks] if self._state in ("warming", "asking") else []
        return kernel + ranks

    def due_in_s(self, now: float) -> float:
        """Until `act` has something to do that no descriptor announces."""
        return max(0.0, min(self._until_s, self._next_look_s) - now)

    def act(self, ready: set[int], now: float) -> bool:
        """Go on; `ready` are descriptors that are readable. Whether it has come to an end: a run's, or over."""
        if self._state != "asking" and self._kernel.fileno() in ready:
            self._read_kernel(now)
        steps = {"looking": self._look, "warming": self._warm, "ready": self._watch, "asking": self._hear}
        if self._state in steps:
            steps[self._state](now)
        return self._state in ("taken", "over")

    def give_up(self, reason: str) -> None:
        """The set is over. A run that was handed over starts elsewhere: its channel closes before a word of ours."""
        self._state = "over"
        if self.run is not None:
            self.run.close()
            self.run = None
        self._tell(StandbyNews(state="over", keeper_pid=os.getpid(), reason=reason))
        self._kernel.close()

    def _read_kernel(self, now: float) -> None:
        packet, fds = receive_packet(self._kernel)
        if not packet:
            self.give_up("let go")
            return
        msgspec.msgpack.decode(packet, type=StartKeeper)
        self.run = socket.socket(fileno=fds[0])
        for rank in self._ranks:
            rank.is_ready = False
            rank.channel.send(Confirm())
        self._state, self._until_s = "asking", now + ASKING_S

    def _look(self, now: float) -> None:
        self._until_s = self._until_s or now + LOOKING_S
        if now < self._next_look_s:
            return
        self._next_look_s = now + _LOOK_EVERY_S
        refusal = self._room.refusal()
        if refusal and now >= self._until_s:
            self.give_up(refusal)
        elif not refusal:
            like = self._order.like
            for rank in self._ranks:
                order = rank_order(like, rank.rank, store_port=self._store_port)
                rank.channel.send(GetReady(order=order, device_kind=like.plan.device_kind))
            self._state, self._until_s, self._next_look_s = "warming", now + WARMING_S, now + _LOOK_EVERY_S

    def _warm(self, now: float) -> None:
        if self._all_are_ready(now):
            self._room.settle()
            self._tell(StandbyNews(state="ready", keeper_pid=os.getpid()))
            self._state, self._until_s = "ready", now + self._order.idle_s
        elif now >= self._until_s:
            self.give_up(f"the ranks were not ready after {WARMING_S:g} s")

    def _watch(self, now: float) -> None:
        if now >= self._until_s:
            self.give_up(f"no launch came within {self._order.idle_s:g} s")
        elif now >= self._next_look_s:
            self._next_look_s = now + _WATCH_EVERY_S
            if need := self._room.need():
                self.give_up(need)

    def _hear(self, now: float) -> None:
        if self._all_are_ready(now):
            self._state = "taken"
        elif now >= self._until_s:
            self.give_up("a rank no longer answered")

    def _all_are_ready(self, now: float) -> bool:
        self._next_look_s = now + _LOOK_EVERY_S
        for rank in self._ranks:
            rank.channel.flush()
            rank.receive()
        return all(rank.is_ready for rank in self._ranks)

    def _tell(self, news: StandbyNews) -> None:
        # A kernel that has let the set go, or that does not listen, need not know.
        with contextlib.suppress(OSError):
            send_packet(self._kernel, news)
