"""One agent as the kernel sees it: connected, told, ended, lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....protocol.commands import PartCommand, Pull, Release, Stop
from ....protocol.remote import AgentHello, AgentMessage, RunOver
from .link import BEAT, Link

SendTo = Callable[[bytes, bytes], bool]
"""Of `Hub.send`."""


class Seat:
    """Used by the one thread that joins the keepers."""

    def __init__(self, number: int, ranks: Sequence[int], send_to: SendTo) -> None:
        self.number = number
        self.ranks = tuple(ranks)
        self.hello: AgentHello | None = None
        self.has_met = False
        """It reaches the store."""
        self.run_ended = False
        """Its keeper has said how its part of the run ended, or will not."""
        self.has_left = False
        """Nothing follows from it: it has ended, is lost, or was given up."""
        self.reason = ""
        """Why its ranks died, as it has said itself; empty: it has not."""
        self._survives_since_s: float | None = None
        self.broken_s: float | None = None
        """Since when its connection is gone."""
        self._peer = b""
        self._clock_s = float("inf")
        self._send_to = send_to
        self.link: Link[AgentMessage] = Link(self._send, AgentMessage)

    def welcome(self, peer: bytes, hello: AgentHello, now: float) -> None:
        self._peer = peer
        self.hello = hello
        self._clock_s = now - hello.monotonic_s

    @property
    def peer(self) -> bytes:
        """Name of its connection; empty before it has come."""
        return self._peer

    @property
    def is_there(self) -> bool:
        return self.hello is not None and self.broken_s is None and not self.has_left

    @property
    def has_kernel(self) -> bool:
        """Whether what its keeper is told is shown there: see `AgentHello`."""
        return self.hello is not None and self.hello.has_kernel

    def to_local(self, time_s: float) -> float:
        """A time of the agent's clock by this machine's, as exactly as its hello was quick."""
        return time_s + self._clock_s if time_s else time_s

    @property
    def ahead_ns(self) -> int:
        """How far this machine's monotonic clock is ahead of the agent's, as `to_local` has it."""
        return round(self._clock_s * 1e9)

    def send(self, command: Pull | Stop | Release | PartCommand | RunOver) -> None:
        if self.is_there:
            self.link.send(command)

    def beat(self, now: float) -> None:
        """Find out whether the connection lives."""
        if self.is_there and not self.link.wants_to_write and self._broken_by(BEAT):
            self.broken_s = now

    def outlives(self, now: float, grace_s: float) -> bool:
        """Whether it is still connected `grace_s` after this was first asked: after whoever started it had ended."""
        if self._survives_since_s is None:
            self._survives_since_s = now
        return self.is_there and now >= self._survives_since_s + grace_s

    def notice_break(self, now: float) -> None:
        if self.broken_s is None:
            self.broken_s = now

    def _broken_by(self, data: bytes) -> bool:
        try:
            self._send_to(self._peer, data)
        except ConnectionError:
            return True
        return False

    def _send(self, data: bytes) -> bool:
        try:
            return self._send_to(self._peer, data)
        except ConnectionError:
            # The next beat finds it out, too.
            return True
