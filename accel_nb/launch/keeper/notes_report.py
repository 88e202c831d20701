"""What a keeper tells the kernel of its ranks' notes where other keepers hold the rest of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...protocol.commands import GroupOpened, RanksDescribed, RanksNoted
from ...protocol.events import Whereabouts
from ...protocol.ledger import ENDED, RETURNED, RankNotes

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
        """Tell what is new, when it was asked for and it is time; that a rank has returned at once: others may fail for
        it within a moment, and then it is looked for.
        """
        is_time = now >= self._next_s or any(self._has_returned(one) for one in notes)
        if self._asked and is_time and (news := self._news(notes)):
            self._asked = False
            self._next_s = now + EVERY_S
            self._send(RanksNoted(notes=tuple(news)))

    def tell_now(self, notes: Sequence[RankNotes]) -> None:
        """Tell what is new, if anything is, without having been asked."""
        if news := self._news(notes):
            self._send(RanksNoted(notes=tuple(news)))

    def describe(self, notes: Sequence[RankNotes], places: Sequence[Whereabouts]) -> None:
        """Answer where the ranks are."""
        self._send(RanksDescribed(notes=tuple(notes), places=tuple(places)))

    def _has_returned(self, notes: RankNotes) -> bool:
        """Since it was told of last."""
        told = self._told.get(notes.rank)
        return notes.life in (RETURNED, ENDED) and (told is None or told.life != notes.life)

    def _news(self, notes: Sequence[RankNotes]) -> list[RankNotes]:
        news = [one for one in notes if self._told.get(one.rank) != one]
        self._told |= {one.rank: one for one in news}
        return news
