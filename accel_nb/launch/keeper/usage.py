"""What each rank takes of the machine: memory and CPUs from /proc, its device's figures from the driver.

    /proc ─────────────────────────────▶ UsageWatch ──▶ RankUsage, every two seconds
    driver ──▶ DeviceReader (a thread) ──┘

The driver is asked in a thread: it may take long, and a broken device can keep it for ever, for which no rank's output
must wait. A thread is no harm here: a keeper that runs never forks again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from ...devices import find_device
from ...protocol.events import RankUsage
from ...protocol.hardware import DeviceFigures
from ...protocol.plan import LaunchPlan, RankPlan
from .. import processes

BASELINE_AFTER_S = 0.5
"""What the first sample is compared with is taken then: not at once, when the ranks need the CPUs to get together."""
FIRST_AFTER_S = 1.0
EVERY_S = 2.0
"""PROBLEMS U11: at most so long between two samples."""
RECORDED_SHARE = 1 / 60
"""Of the run's time so far, at least so much between two samples of a rank that are recorded."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NO_FIGURES: Sequence[DeviceFigures] = ()


class Taken(NamedTuple):
    """Of a process, or of several."""

    cpu_s: float
    """Since they began, with that of children that they have waited for."""
    memory_bytes: int


class DeviceReader:
    """Asks for the figures of the ranks' devices in a thread of its own. One thread uses it."""

    def __init__(self, read: Callable[[], Sequence[DeviceFigures]]) -> None:
        """`read` may take long. What it gives is in the order in which the ranks see their devices."""
        self._read = read
        self._newest = _NO_FIGURES
        self._wanted = threading.Event()
        self._closed = threading.Event()
        # A daemon: where the driver hangs, the keeper ends all the same.
        threading.Thread(target=self._answer, name="accel_nb devices", daemon=True).start()
        self._wanted.set()

    def newest(self) -> Sequence[DeviceFigures]:
        """What the last answer was; asks again. () until there is one, and while the driver does not answer."""
        if self._wanted.is_set():
            return _NO_FIGURES
        found = self._newest
        self._wanted.set()
        return found

    def close(self) -> None:
        self._closed.set()
        self._wanted.set()

    def _answer(self) -> None:
        while self._wanted.wait() and not self._closed.is_set():
            self._newest = self._read()
            self._wanted.clear()
            if self._closed.is_set():  # meanwhile, and its wish may just have been cleared
                return


class UsageWatch:
    """One attempt of one run, in the keeper's thread."""

    def __init__(self, ranks: Sequence[RankPlan], devices: DeviceReader | None) -> None:
        """`devices`: None where ranks have none of their own."""
        self._ranks = ranks
        self._devices = devices
        self._next_s: float | None = None
        self._before_s: float | None = None
        self._before: dict[int, float] = {}
        """Pid of a rank -> CPU seconds that it and its children had taken."""

    def look(self, now: float, pids: Mapping[int, int]) -> list[RankUsage]:
        """A sample when one is due; `pids`: of the ranks that run, by rank."""
        if self._next_s is None:
            self._next_s = now + BASELINE_AFTER_S
        if now < self._next_s:
            return []
        if self._before_s is None:
            self._next_s, self._before_s = now + FIRST_AFTER_S - BASELINE_AFTER_S, now
            self._before = {pid: tree_taken(pid)[1].cpu_s for pid in pids.values()}
            return []
        self._next_s = now + EVERY_S
        figures = self._devices.newest() if self._devices is not None else _NO_FIGURES
        elapsed_s, self._before_s = now - self._before_s, now
        made: list[RankUsage] = []
        for rank in self._ranks:
            pid = pids.get(rank.rank)
            if pid is not None:
                tree, taken = tree_taken(pid)
                cpu_s = max(0.0, taken.cpu_s - self._before.get(pid, taken.cpu_s))
                self._before[pid] = taken.cpu_s
                cpus = round(cpu_s / max(elapsed_s, 1e-3), 2)
                usage = RankUsage(rank=rank.rank, memory_bytes=taken.memory_bytes, cpus=cpus)
                made.append(_with_device(usage, rank, figures, frozenset(tree)))
        return made

    def close(self) -> None:
        if self._devices is not None:
            self._devices.close()


class UsageRecord:
    """Which samples a run keeps for good: of days some hundreds per rank."""

    def __init__(self, begun_s: float) -> None:
        """`begun_s`: seconds since the epoch, as of events."""
        self._begun_s = begun_s
        self._kept_s: dict[int | None, float] = {}

    def keeps(self, usage: RankUsage) -> bool:
        """Whether a sample that was taken is for good: enough of the run lies between it and the one kept before."""
        before_s = self._kept_s.get(usage.rank)
        if before_s is not None and usage.time_s - before_s < RECORDED_SHARE * (usage.time_s - self._begun_s):
            return False
        self._kept_s[usage.rank] = usage.time_s
        return True


def watch_usage(plan: LaunchPlan) -> UsageWatch:
    """Of the ranks of `plan`, with their devices where their kind tells figures."""
    kind = find_device(plan.device_kind)
    if kind is None or not kind.one_rank_each:
        return UsageWatch(plan.ranks, None)
    return UsageWatch(plan.ranks, DeviceReader(partial(kind.figures, plan.env)))


def tree_taken(pid: int) -> tuple[list[int], Taken]:
    """The process and all that it has started, and what they take together. Pages that they share count for each."""
    tree = [pid, *processes.descendants(pid)]
    reads_swap = psutil.swap_memory().used > 0
    parts = [_taken(each, reads_swap=reads_swap) for each in tree]
    return tree, Taken(sum(part.cpu_s for part in parts), sum(part.memory_bytes for part in parts))


def _taken(pid: int, *, reads_swap: bool) -> Taken:
    """Nothing when the process is gone. Fields as in proc_pid_stat(5), from the third one, after the program's name."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        swapped_bytes = _swapped_bytes(pid) if reads_swap else 0
    except OSError:
        return Taken(0.0, 0)
    ticks = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return Taken(ticks / _TICKS_PER_S, int(fields[21]) * _PAGE_BYTES + swapped_bytes)


def _swapped_bytes(pid: int) -> int:
    """``VmSwap`` of proc_pid_status(5); raises OSError when the process is gone."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmSwap:"):
            return int(line.split()[1]) << 10
    return 0


def _with_device(usage: RankUsage, rank: RankPlan, figures: Sequence[DeviceFigures], tree: frozenset[int]) -> RankUsage:
    if rank.device_index is None or rank.device_index >= len(figures):
        return usage
    device = figures[rank.device_index]
    own = [size_bytes for pid, size_bytes in device.holders if pid in tree]
    return RankUsage(
        rank=usage.rank,
        memory_bytes=usage.memory_bytes,
        cpus=usage.cpus,
        device_memory_bytes=device.memory_bytes,
        device_used_bytes=device.memory_used_bytes,
        device_own_bytes=sum(own) if own else None,
        device_utilization=device.utilization,
    )
