"""What is taken from whom: nothing that runs code when it is loaded comes from an agent that anybody could be. Pure."""

from __future__ import annotations

import hmac

import msgspec

from ....protocol.remote import AgentHello, FilePart
from .seat import Seat

_TEXTS = (".log", ".stack")
"""Ends of the names of files that are text. A snapshot of memory, and an exception, are pickles."""


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """In the agents of one attempt."""

    words: dict[int, str] | None = None
    """Seat -> what only the agent there, started by this kernel, has in its summons; others may be anybody's. None:
    whoever can connect belongs to this launch.
    """

    def is_other(self, hello: AgentHello) -> bool:
        """Whether it says that it is one of this kernel's own agents, and is not."""
        word = (self.words or {}).get(hello.seat)
        return word is not None and not hmac.compare_digest(word.encode(), hello.word.encode())

    def takes_value(self, seat: Seat, rank: int) -> bool:
        """Whether what `seat` gives as the value of `rank` may be loaded here."""
        return rank in seat.ranks and self._is_known(seat)

    def takes_file(self, seat: Seat, part: FilePart) -> bool:
        return part.name.endswith(_TEXTS) or self._is_known(seat)

    def _is_known(self, seat: Seat) -> bool:
        return self.words is None or seat.number in self.words
