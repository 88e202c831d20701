"""What this machine, or the container, allows: processors, memory, shared memory, files, the system's kernel."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...protocol.diagnosis import Fact, Finding
from ...protocol.hardware import NodeHardware

GROUP = "machine"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  the system's own, not a place for temporary files
OLDEST_KERNEL = (5, 5)
"""Before it, ranks may hang (huggingface/accelerate#1929)."""
SMALL_SHARED_MEMORY_BYTES = 1 << 30
FULL_SHARED_MEMORY_BYTES = 32 << 20
"""NCCL takes about 10 MB for each connection that goes through it, a DataLoader worker each batch on its way."""
FEW_FILES = 1024
"""Still the default of many systems; a tensor from a DataLoader worker is an open file."""
LITTLE_MEMORY_BYTES = 1 << 30
MORE_SHARED_MEMORY = (
    "Start the container with --shm-size=8g or --ipc=host (Kubernetes: an emptyDir of medium Memory there), or use few "
    "DataLoader workers."
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What was read; None is not known."""

    kernel_release: str = ""
    shared_memory_bytes: int | None = None
    shared_memory_free_bytes: int | None = None
    open_files: int | None = None
    open_files_at_most: int | None = None


def read_limits(shared_memory: Path = SHARED_MEMORY) -> Limits:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    total = free = None
    if shared_memory.is_dir():
        space = os.statvfs(shared_memory)
        total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    return Limits(
        kernel_release=platform.release(),
        shared_memory_bytes=total,
        shared_memory_free_bytes=free,
        open_files=None if soft == resource.RLIM_INFINITY else soft,
        open_files_at_most=None if hard == resource.RLIM_INFINITY else hard,
    )


def facts(hardware: NodeHardware, limits: Limits) -> Iterator[Fact]:
    yield _fact("host", f"{hardware.host}, {hardware.platform}, kernel {limits.kernel_release}")
    yield _fact("CPUs", f"{hardware.cpu_count} usable (of {os.cpu_count()})")
    yield _fact("memory", f"{gib(hardware.memory_available_bytes)} free of {gib(hardware.memory_bytes)}")
    if limits.shared_memory_bytes is None:
        yield _fact(str(SHARED_MEMORY), "missing")
    else:
        yield _fact(
            str(SHARED_MEMORY), f"{gib(limits.shared_memory_free_bytes)} free of {gib(limits.shared_memory_bytes)}"
        )
    yield _fact("open files", "no limit" if limits.open_files is None else f"at most {limits.open_files}")


def findings(hardware: NodeHardware, limits: Limits) -> Iterator[Finding]:
    """Pure."""
    if hardware.platform == "linux":  # other systems have no such folder, and do not need it
        yield from _of_shared_memory(limits)
    found = re.match(r"(\d+)\.(\d+)", limits.kernel_release)
    if hardware.platform == "linux" and found is not None and (int(found[1]), int(found[2])) < OLDEST_KERNEL:
        yield Finding(
            severity="hint",
            what=f"The Linux kernel of this machine is {limits.kernel_release}.",
            why="Before 5.5 ranks are known to hang (huggingface/accelerate#1929).",
            remedy="Update it to 5.5 or newer if ranks stop without an error.",
        )
    if limits.open_files is not None and limits.open_files <= FEW_FILES:
        at_most = "" if limits.open_files_at_most is None else f" (up to {limits.open_files_at_most} here)"
        yield Finding(
            severity="hint",
            what=f"A process may have {limits.open_files} files open.",
            why="Each tensor that comes from a DataLoader worker is one: many workers fail with 'Too many open files'.",
            remedy=f"`ulimit -n 65536`{at_most} in the shell that starts Jupyter.",
        )
    if hardware.memory_available_bytes < LITTLE_MEMORY_BYTES:
        yield Finding(
            severity="hint",
            what=f"{gib(hardware.memory_available_bytes)} of main memory are free.",
            why="A rank with torch takes about 0.3 GiB before it has read anything, with CUDA several GiB.",
            remedy="End what holds memory (other kernels), or start fewer ranks.",
        )


def gib(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "unknown"
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 1 << 30 else f"{size_bytes / 2**20:.0f} MiB"


def _of_shared_memory(limits: Limits) -> Iterator[Finding]:
    total, free = limits.shared_memory_bytes, limits.shared_memory_free_bytes
    why = "DataLoader workers and NCCL exchange data through it, and end with a bus error when it is full."
    if total is None:
        yield Finding(severity="problem", what="There is no /dev/shm.", why=why, remedy=MORE_SHARED_MEMORY)
    elif free is not None and free < FULL_SHARED_MEMORY_BYTES:
        remedy = f"Remove what ended processes have left there (`ls -l /dev/shm`). {MORE_SHARED_MEMORY}"
        yield Finding(severity="problem", what=f"{SHARED_MEMORY} has {gib(free)} left.", why=why, remedy=remedy)
    elif total < SMALL_SHARED_MEMORY_BYTES:
        yield Finding(severity="hint", what=f"{SHARED_MEMORY} is {gib(total)}.", why=why, remedy=MORE_SHARED_MEMORY)


def _fact(name: str, value: str) -> Fact:
    return Fact(group=GROUP, name=name, value=value)
