"""What the control groups of this process allow it, in either version of Linux's interface.

Sources: kernel documentation ``admin-guide/cgroup-v2`` (memory.max, memory.current, memory.stat, cpu.max, cpu.stat) and
``cgroup-v1/memory``, ``scheduler/sched-bwc`` and ``cgroup-v1/cpuacct`` (memory.limit_in_bytes, cpu.cfs_quota_us,
cpuacct.usage).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes "no limit" as the largest multiple of the page size that fits 63 bits."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    cpus: int | None = None
    """The quota rounded up (as loky does); None without one."""
    memory_bytes: int | None = None
    """None: no limit below the machine's own memory."""
    memory_free_bytes: int | None = None
    """Up to that limit, page cache that can be dropped counted as free. None as above."""


class CpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """Of the control group with the tightest quota, its processes together."""

    allowed: float
    """CPUs."""
    used_s: float
    """Seconds of CPU time since the group was made."""


def read_cpu_use(proc: Path = Path("/proc/self")) -> CpuUse | None:
    """None where no group has a quota, or its use is not told. `proc` as of `read_limits`."""
    found = [
        CpuUse(allowed=allowed, used_s=used_s)
        for folder in _group_folders(proc)
        for allowed in _cpu_share(folder)
        for used_s in _cpu_used_s(folder)
    ]
    return min(found, key=lambda use: use.allowed, default=None)


def read_limits(proc: Path = Path("/proc/self")) -> Limits:
    """The tightest limit from this process's groups up to their roots; no limits where there are no control groups.

    `proc` holds ``cgroup`` and ``mountinfo`` in the form of proc(5).
    """
    cpus: list[int] = []
    memory: list[tuple[int, int]] = []
    for folder in _group_folders(proc):
        cpus += _cpu_quota(folder)
        memory += _memory_limit(folder)
    return Limits(
        cpus=min(cpus, default=None),
        memory_bytes=min((limit for limit, _ in memory), default=None),
        memory_free_bytes=min((free for _, free in memory), default=None),
    )


@lru_cache(maxsize=4)
def _group_folders(proc: Path) -> tuple[Path, ...]:
    """Remembered: a process is put into its groups before it starts."""
    return tuple(_found_folders(proc))


def _found_folders(proc: Path) -> Iterator[Path]:
    groups = _groups(proc / "cgroup")
    for controllers, root, mount in _mounts(proc / "mountinfo"):
        for name in controllers:
            if name not in groups:
                continue
            # In a container the mount shows a subtree; with a cgroup namespace the path is relative to it already.
            below = groups[name].removeprefix(root).strip("/")
            folder = mount / below if (mount / below).is_dir() else mount
            yield folder
            yield from (parent for parent in folder.parents if parent.is_relative_to(mount))


def _groups(path: Path) -> dict[str, str]:
    """Controller ("" in version 2) -> group of this process."""
    fields = (line.split(":", 2) for line in _read(path).splitlines())
    return {name: group for _, names, group in fields for name in names.split(",") if name in ("", "cpu", "memory")}


def _mounts(path: Path) -> Iterator[tuple[tuple[str, ...], str, Path]]:
    """Controllers, root within the hierarchy, mount point."""
    for line in _read(path).splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        root, mount = before.split()[3:5]
        root = "" if root == "/" else root
        if kind == "cgroup2":
            yield ("",), root, Path(mount)
        elif kind == "cgroup":
            yield tuple(options.split()[-1].split(",")), root, Path(mount)


def _cpu_quota(folder: Path) -> list[int]:
    return [max(1, math.ceil(share)) for share in _cpu_share(folder)]


def _cpu_share(folder: Path) -> list[float]:
    quota, _, period = _told(folder, "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = _told(folder, "cpu.cfs_quota_us").strip(), _told(folder, "cpu.cfs_period_us").strip()
    if not (quota.isdecimal() and period.isdecimal()):  # "max" and "-1" are no quota
        return []
    return [int(quota) / int(period)]


def _cpu_used_s(folder: Path) -> list[float]:
    usage_us = dict(line.split() for line in _told(folder, "cpu.stat").splitlines()).get("usage_usec")
    if usage_us is not None:
        return [int(usage_us) / 1e6]
    usage_ns = _told(folder, "cpuacct.usage").strip()  # version 1, where both controllers are mounted together
    return [int(usage_ns) / 1e9] if usage_ns.isdecimal() else []


def _memory_limit(folder: Path) -> list[tuple[int, int]]:
    """Limit and what is free up to it; nothing without a limit."""
    for limit_name, usage_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _told(folder, limit_name).strip(), _told(folder, usage_name).strip()
        if not (limit.isdecimal() and usage.isdecimal()) or int(limit) >= _NO_LIMIT_BYTES:
            continue
        cache = dict(line.split() for line in _told(folder, "memory.stat").splitlines()).get(cache_name, "0")
        return [(int(limit), max(0, int(limit) - int(usage) + int(cache)))]
    return []


def _told(folder: Path, name: str) -> str:
    """Empty where the group has no such file, or it is not ours to read."""
    return _read(os.path.join(folder, name)) if name in _names(folder) else ""  # noqa: PTH118  once per launch and file


@lru_cache(maxsize=64)
def _names(folder: Path) -> frozenset[str]:
    """Remembered: which files a group has follows from its controllers."""
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return frozenset()


def _read(path: str | Path) -> str:
    """Empty where the file is missing or not ours to read."""
    try:
        with open(path) as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""
