"""Collapses the same line of several ranks into one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

HOLD_S = 0.7
"""A line waits this long for the other ranks to write the same one. With the keeper's and the view's own tenths of a
second it is shown within a second of being written."""
MAX_MOVED = 50
"""Lines of one rank that are put before an earlier line of another, so that a later line can join that one."""


@dataclass(slots=True, eq=False)
class LineGroup:
    """One line and who wrote it."""

    text: str
    since_s: float
    place: float
    """Grows along the order in which the lines will be shown."""
    ranks: list[int] = field(default_factory=list)


class LineGroups:
    """Lines of all ranks in the order of their first appearance, nearly; the order of each rank's own lines is kept.

    Ranks are read one after the other, so that ``hello from 0, ready`` arrives before ``hello from 1, ready``. The line
    that only rank 1 wrote moves up, and ``ready`` is one line.
    """

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._waiting: list[LineGroup] = []
        self._by_text: dict[str, list[LineGroup]] = {}
        self._own: dict[int, list[LineGroup]] = {}
        """Rank -> groups that wait and that it is in. Like all lists here, in order of `place`."""
        self._next_place = 0.0

    def add(self, rank: int, text: str, now: float) -> None:
        own = self._own.setdefault(rank, [])
        group = self._joinable(own, self._by_text.get(text, ()), rank)
        if group is None:
            group = LineGroup(text, now, self._next_place)
            self._next_place += 1
            self._waiting.append(group)
            self._by_text.setdefault(text, []).append(group)
        group.ranks.append(rank)
        own.append(group)

    def ready(self, now: float) -> list[LineGroup]:
        """Those that no rank can join any more or that have waited long enough; the order is never changed."""
        num_ready = 0
        for group in self._waiting:
            if len(group.ranks) < self._num_ranks and now - group.since_s < HOLD_S:
                break
            num_ready += 1
        return self._taken(num_ready)

    def rest(self) -> list[LineGroup]:
        return self._taken(len(self._waiting))

    def _joinable(self, own: list[LineGroup], same: list[LineGroup] | tuple[()], rank: int) -> LineGroup | None:
        """The first group of `same` that `rank` may join without changing the order of anybody's lines."""
        if not same:
            return None
        last = own[-1].place if own else float("-inf")
        index = bisect_right(same, last, key=_place)
        if index < len(same):
            return same[index]
        num_movable = 0
        for group in reversed(own[-MAX_MOVED:]):
            if len(group.ranks) > 1:
                break
            num_movable += 1
        fixed = own[-num_movable - 1].place if num_movable < len(own) else float("-inf")
        for group in same[bisect_right(same, fixed, key=_place) :]:
            if rank not in group.ranks and self._move(own[-num_movable:] if num_movable else [], group):
                return group
        return None

    def _move(self, movable: list[LineGroup], target: LineGroup) -> bool:
        """Put those of `movable` that come after `target` right before it; False when there is no room."""
        moving = [group for group in movable if group.place > target.place]
        at = bisect_left(self._waiting, target.place, key=_place)
        before = self._waiting[at - 1].place if at else target.place - 1.0
        step = (target.place - before) / (len(moving) + 1)
        places = [before + step * (number + 1) for number in range(len(moving))]
        if not all(a < b for a, b in zip([before, *places], [*places, target.place], strict=True)):
            return False
        for group in moving:
            del self._waiting[bisect_left(self._waiting, group.place, key=_place)]
        for group, place in zip(moving, places, strict=True):
            group.place = place
            group.since_s = min(group.since_s, target.since_s)
            self._by_text[group.text].sort(key=_place)
        self._waiting[at:at] = moving
        return True

    def _taken(self, count: int) -> list[LineGroup]:
        taken = self._waiting[:count]
        del self._waiting[:count]
        for group in taken:
            for mates in (self._by_text[group.text], *(self._own[rank] for rank in group.ranks)):
                mates.pop(0)  # all lists are in the same order
            if not self._by_text[group.text]:
                del self._by_text[group.text]
        return taken


def _place(group: LineGroup) -> float:
    return group.place
