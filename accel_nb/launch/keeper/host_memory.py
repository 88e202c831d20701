"""Whether host memory is about to run out, told before the system kills a process for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from ...protocol.events import HostMemoryLow
from .. import processes
from ..cgroups import read_limits

EVERY_S = 1.0
TOLD_SHARES = (0.90, 0.95, 0.98)
"""Each is told once ..."""
FORGOTTEN_SHARE = 0.80
"""... until less than this was in use."""


class Usage(NamedTuple):
    """Of the tightest limit that the ranks are under."""

    used_bytes: int
    """What cannot be given back: caches of files are left out."""
    limit_bytes: int
    of: str
    """Whose limit, for people."""

    @property
    def share(self) -> float:
        return self.used_bytes / self.limit_bytes if self.limit_bytes else 0.0


class HostMemoryWatch:
    """One run. Decides alone; what it decides on is read by others."""

    def __init__(self) -> None:
        self._told_share = 0.0

    def is_due(self, usage: Usage) -> bool:
        """Whether to tell the user now."""
        if usage.share < FORGOTTEN_SHARE:
            self._told_share = 0.0
        reached = max((share for share in TOLD_SHARES if usage.share >= share), default=0.0)
        if reached <= self._told_share:
            return False
        self._told_share = reached
        return True


def read_usage(proc: Path = Path("/proc/self")) -> Usage:
    """Of the control groups of the process `proc`, or of the machine when they have no limit."""
    limits = read_limits(proc)
    if limits.memory_bytes is not None and limits.memory_free_bytes is not None:
        used_bytes = limits.memory_bytes - min(limits.memory_free_bytes, limits.memory_bytes)
        return Usage(used_bytes, limits.memory_bytes, "this container's limit")
    machine = psutil.virtual_memory()
    return Usage(machine.total - machine.available, machine.total, "this machine's")


def rank_bytes(pid: int) -> int:
    """Resident memory of the process and of all that it has started. Pages that they share count for each."""
    return sum(_resident_bytes(each) for each in (pid, *processes.descendants(pid)))


def low_memory(usage: Usage, bytes_by_rank: Mapping[int, int]) -> HostMemoryLow:
    """The warning. `bytes_by_rank`: of the ranks that run, at least one."""
    largest = max(bytes_by_rank, key=lambda rank: bytes_by_rank[rank])
    held = bytes_by_rank[largest]
    text = (
        f"host memory is nearly used up: {_gib(usage.used_bytes)} of {_gib(usage.limit_bytes)} ({usage.of}), "
        f"{usage.share:.0%}. Of the ranks, rank {largest} holds most, {_gib(held)} with its DataLoader workers. When "
        "it is full, the system kills a process without a word: use smaller batches, fewer DataLoader workers or less "
        "prefetch_factor, or leave data on disk (np.memmap, the datasets package) instead of in every rank."
    )
    return HostMemoryLow(
        text=text, used_bytes=usage.used_bytes, limit_bytes=usage.limit_bytes, largest_rank=largest, rank_bytes=held
    )


def _resident_bytes(pid: int) -> int:
    """0 when the process is gone."""
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
