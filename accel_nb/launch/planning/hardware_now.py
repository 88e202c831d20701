"""How busy this machine is, and who uses its accelerators: by what the system and drivers tell, never by torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from ...devices import find_devices
from ...devices.device import Device
from ...protocol import environment
from ...protocol.hardware import DeviceFigures
from ...protocol.panel import DeviceUse, DeviceUser, HardwareNow
from ..cgroups import read_cpu_use, read_limits
from .hardware import usable_cpus

Names = Mapping[int, str]
"""Process id -> what people call it, of processes that this kernel knows."""

THIS_KERNEL = "this kernel"
OTHER_KERNEL = "another kernel"
OTHER_RUN = "a rank of another kernel"
OF_THIS_KERNEL = "a process of this kernel"
OUT_OF_SIGHT = "a process outside this container"
_DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/dxg")
"""Of NVIDIA, AMD, Intel, TPUs and WSL."""
_KERNEL_WORD = "ipykernel"
_RANK_WORD = "accel_nb.launch.servers.warm_server"
"""Ranks are forks of a warm server, and have its command line."""


class HardwareMeter:
    """Measures in the kernel; one thread at a time. Imports no torch, leaves no thread."""

    def __init__(self, devices: Sequence[Device] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`devices`: kinds to look at; None for all that are known."""
        self._devices = find_devices() if devices is None else tuple(devices)
        self._clock = clock
        self._cpu = _cpu_seconds()
        self._read_s = clock()

    def measure(self, names: Names) -> HardwareNow:
        """The machine now; CPUs on average since the last time, or since this was made."""
        memory, limits = psutil.virtual_memory(), read_limits()
        used_bytes = memory.total - memory.available
        if limits.memory_bytes is not None and limits.memory_free_bytes is not None:
            used_bytes = limits.memory_bytes - limits.memory_free_bytes
        return HardwareNow(
            time_s=time.time(),
            cpu_utilization=self._cpu_utilization(),
            memory_used_bytes=used_bytes,
            devices=tuple(_devices(self._devices, names)),
        )

    def _cpu_utilization(self) -> float:
        before, before_s = self._cpu, self._read_s
        self._cpu, self._read_s = _cpu_seconds(), self._clock()
        passed_s = (self._read_s - before_s) * self._cpu[1]
        return min(1.0, max(0.0, (self._cpu[0] - before[0]) / passed_s)) if passed_s > 0 else 0.0


def _cpu_seconds() -> tuple[float, float]:
    """What has been used of the CPUs that this process may use, and how many these are: with a quota, what its group
    has used of that, whoever else keeps the machine busy.
    """
    cpus = usable_cpus()
    use = read_cpu_use()
    if use is not None and use.allowed < len(cpus):
        return use.used_s, use.allowed
    times = psutil.cpu_times(percpu=True)
    mine = [times[cpu] for cpu in cpus if cpu < len(times)] or times
    busy_s = sum(sum(cpu) - cpu.idle - getattr(cpu, "iowait", 0.0) - getattr(cpu, "guest", 0.0) for cpu in mine)
    return busy_s, float(len(mine))


def _devices(devices: Sequence[Device], names: Names) -> Iterator[DeviceUse]:
    """Those that are visible to this kernel and whose driver describes them."""
    variables = environment.current()
    for device in devices:
        for info, figures in zip(device.probe(), device.figures(variables), strict=False):
            if figures.memory_bytes:
                yield DeviceUse(
                    kind=device.kind,
                    index=info.index,
                    memory_used_bytes=figures.memory_used_bytes,
                    utilization=figures.utilization,
                    users=tuple(_users(figures, info.kernel_used_bytes, names)),
                )


def _users(figures: DeviceFigures, own_bytes: int, names: Names) -> Iterator[DeviceUser]:
    told = False
    for pid, size_bytes in figures.holders:
        name = _name(pid, names)
        told = told or name == THIS_KERNEL
        yield DeviceUser(pid=pid, name=name, memory_bytes=size_bytes, is_kernel=name == THIS_KERNEL)
    # In a container the driver may not see it, but its torch knows.
    if own_bytes and not told:
        yield DeviceUser(pid=os.getpid(), name=THIS_KERNEL, memory_bytes=own_bytes, is_kernel=True)


def _name(pid: int, names: Names) -> str:
    # In a container a driver may list pids of the host: an equal one here is another process, without the driver open.
    if _has_a_driver_open(pid) is False:
        return OUT_OF_SIGHT
    if pid == os.getpid():
        return THIS_KERNEL
    try:
        return names[pid] if pid in names else _name_of(psutil.Process(pid), names)
    except psutil.Error:
        return OUT_OF_SIGHT


def _name_of(process: psutil.Process, names: Names) -> str:
    ancestors = [parent.pid for parent in process.parents()]
    of_rank = next((names[parent] for parent in ancestors if parent in names), None)
    if of_rank is not None:
        return f"a process of {of_rank}"
    if os.getpid() in ancestors:
        return OF_THIS_KERNEL
    command = " ".join(process.cmdline())
    return OTHER_RUN if _RANK_WORD in command else OTHER_KERNEL if _KERNEL_WORD in command else process.name()


def _has_a_driver_open(pid: int) -> bool | None:
    """None: it is not to be known, of a process that is gone or another user's."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    return any(_target(link).startswith(_DEVICE_FILES) for link in links)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed in the meantime
        return ""
