"""The stacks of all ranks, asked of all keepers, as one answer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ....protocol.commands import DumpStacks, KeeperMessage, Stacks
from .mailbox import Mailbox
from .seat import Seat

ALL_COME_S = 2.5
"""What has not come by then is left out."""


class StackRound:
    """Of one attempt, one request at a time. Used by the thread that joins the keepers."""

    def __init__(self, seats: Sequence[Seat], said: Mailbox[KeeperMessage]) -> None:
        self._seats = seats
        self._said = said
        self._come: dict[int, str] | None = None
        """None: nobody asks."""
        self._awaited: set[int] = set()
        self._until_s = 0.0

    def ask(self) -> None:
        self._come, self._until_s = {}, time.monotonic() + ALL_COME_S
        asked = [seat for seat in self._seats if seat.is_there and not seat.run_ended]
        self._awaited = {seat.number for seat in asked}
        for seat in asked:
            seat.link.send(DumpStacks())

    def note(self, seat: Seat, message: Stacks) -> None:
        if self._come is not None:
            self._come |= message.text_by_rank
            self._awaited.discard(seat.number)

    def act(self, now: float) -> None:
        """Answer, once all have come or it is time."""
        if self._come is not None and (not self._awaited or now >= self._until_s):
            self._said.put(Stacks(text_by_rank=self._come))
            self._come = None
