"""How much memory this process can still take, and the refusal to take more."""

from __future__ import annotations

import psutil

from ..cgroups import read_limits

CHECKED_FROM_BYTES = 16 << 20
"""Smaller amounts are not worth the look-up, which costs about half a millisecond."""


class NoRoom(Exception):
    """`needed_bytes` do not fit into `free_bytes`. Internal: `packing` turns it into a sentence."""

    def __init__(self, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{needed_bytes} bytes needed, {free_bytes} free")
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


def require_room(needed_bytes: int) -> None:
    """Raise `NoRoom` when `needed_bytes` more do not fit into free memory. Any process, any thread."""
    if needed_bytes < CHECKED_FROM_BYTES:
        return
    free_bytes = free_memory_bytes()
    if needed_bytes > free_bytes:
        raise NoRoom(needed_bytes, free_bytes)


def free_memory_bytes() -> int:
    """The machine's available memory, or what the tightest control group leaves when that is less."""
    available: int = psutil.virtual_memory().available
    in_cgroup = read_limits().memory_free_bytes
    return available if in_cgroup is None else min(available, in_cgroup)
