"""What a keeper tells the kernel of its ranks' notes where other keepers hold the rest of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...protocol.commands import GroupOpened, RanksDescribed, RanksNoted
from ...protocol.events import Whereabouts
from ...protocol.ledger import RankNotes

EVERY_S = 1.0
"""At most so often."""

Send = Callable[[GroupOpened | RanksNoted | RanksDescribed], None]
"""Of the channel to the kernel."""


class NotesReport:
    """Of one attempt. Used by the keeper's thread."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._told: dict[int, RankNotes] = {}
        self._asked = False
        self._next_s = 0.0

    def ask(self) -> None:
        """The kernel is ready for one more."""
        self._asked = True

    def look(self, notes: Sequence[RankNotes], now: float) -> None:
        """Tell what is new, when it was asked for and it is time."""
        if self._asked and now >= self._next_s and (news := self._news(notes)):
            self._asked = False
            self._next_s = now + EVERY_S
            self._send(RanksNoted(notes=tuple(news)))

    def tell_last(self, notes: Sequence[RankNotes]) -> None:
        """Tell what is new, since nothing follows."""
        self._send(RanksNoted(notes=tuple(self._news(notes))))

    def describe(self, notes: Sequence[RankNotes], places: Sequence[Whereabouts]) -> None:
        """Answer where the ranks are."""
        self._send(RanksDescribed(notes=tuple(notes), places=tuple(places)))

    def _news(self, notes: Sequence[RankNotes]) -> list[RankNotes]:
        news = [one for one in notes if self._told.get(one.rank) != one]
        self._told |= {one.rank: one for one in news}
        return news
