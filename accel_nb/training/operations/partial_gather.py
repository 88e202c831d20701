"""Gather among some of the ranks, while the others do something else."""

from __future__ import annotations

from collections.abc import Sequence

from torch import distributed

_groups: dict[tuple[int, ...], tuple[object, distributed.ProcessGroup]] = {}
"""Ranks -> the default group at that time, and the group of these ranks. Making one takes milliseconds."""


def gather_among(value: object, members: Sequence[int]) -> list[object]:
    """What each rank of `members` gave, in this order. All of these call this, and no other. It travels by pickle."""
    if len(members) == 1:
        return [value]
    values: list[object] = [None] * len(members)
    distributed.all_gather_object(values, value, group=_group_of(tuple(members)))
    return values


def _group_of(members: tuple[int, ...]) -> distributed.ProcessGroup:
    everyone = distributed.group.WORLD
    made_from, group = _groups.get(members, (None, None))
    if group is None or made_from is not everyone:  # that one was destroyed
        group = distributed.new_group(list(members), use_local_synchronization=True)
        assert group is not None
        _groups[members] = everyone, group
    return group
