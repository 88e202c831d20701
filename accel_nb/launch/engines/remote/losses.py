"""Which agents are gone: found by their connections, and by what the engine that started them knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....protocol.commands import Release
from .seat import Seat
from .starter import AgentStarter

BEAT_EVERY_S = 1.0
EVIDENCE_S = 3.0
"""After a connection has broken, so long the engine has to find out why, before the loss is told."""
ALL_BREAK_S = 0.5
"""Where an engine says of several agents that they are gone, their connections break within this: then the one that was
the cause can be told.
"""


class LossWatch:
    """Of one attempt. Used by the thread that joins the keepers."""

    def __init__(self, seats: Sequence[Seat], starter: AgentStarter, evidence_s: float = EVIDENCE_S) -> None:
        """`evidence_s`: how long the engine may take to find out why a connection has broken."""
        self._seats = seats
        self._evidence_s = evidence_s
        self._starter = starter
        self._next_beat_s = 0.0
        self._gone_since_s = float("inf")

    def look(self, now: float) -> list[tuple[Seat, str]]:
        """Seats that are lost, the cause before those that only follow, each with the engine's evidence; told again
        until they have left.
        """
        gone = self._starter.gone()
        self._beat(gone, now)
        self._gone_since_s = min(self._gone_since_s, now) if gone else float("inf")
        lost: list[tuple[Seat, str]] = []
        # Who was ended for another's sake has said so.
        for seat in sorted(self._seats, key=lambda one: one.reason != ""):
            if seat.has_left or seat.is_there:
                continue
            if seat.number in gone and now >= self._gone_since_s + ALL_BREAK_S:
                lost.append((seat, gone[seat.number]))
            elif seat.broken_s is not None and now >= seat.broken_s + self._evidence_s:
                lost.append((seat, self._starter.evidence(seat.number)))
        return lost

    def _beat(self, gone: Mapping[int, str], now: float) -> None:
        """Find out which connections live."""
        is_due = now >= self._next_beat_s
        if is_due:
            self._next_beat_s = now + BEAT_EVERY_S
        for seat in self._seats:
            if seat.is_there:
                seat.link.flush()
            if is_due or seat.number in gone:
                seat.beat(now)
            if seat.number in gone and seat.outlives(now, EVIDENCE_S):
                # Nobody holds it any more.
                seat.send(Release())
                seat.notice_break(now)
