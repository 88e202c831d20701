"""What NVIDIA's management library says about the GPUs of this machine, before any visibility variable.

NVML opens no CUDA context, but starts a thread (measured): it is used in the kernel, and in keepers that have forked
their ranks, never in a server that forks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as NVML lists it, in the order of ``nvidia-smi`` (by PCI address)."""

    index: int
    uuid: str
    name: str = ""
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    """In use by anybody, without what the driver reserves."""
    own_bytes: int = 0
    """Of that, held by this process; 0 also when NVML cannot tell (another pid namespace, WSL)."""
    utilization: float | None = None
    """Part of the time in which it computed, between 0 and 1; None: not told, as of MIG instances."""
    pci_bus_id: str = ""
    """``00000000:3B:00.0``; empty where the driver does not tell it."""
    holders: tuple[tuple[int, int], ...] = ()
    """(pid, bytes) of the processes that compute on it, as far as NVML tells; in a container pids may be the host's."""
    instances: tuple[Gpu, ...] = ()
    """Its MIG instances. When there are any, CUDA sees these and never the GPU itself."""


def load() -> ModuleType | None:
    """The binding; None without nvidia-ml-py."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml  # type: ignore[no-any-return]  # published without type information


def read_gpus(nvml: ModuleType | None) -> tuple[Gpu, ...]:
    """Every GPU that answers; () without a binding, a driver or a GPU. Opens and closes the library."""
    if nvml is None:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        return tuple(_gpus(nvml))
    finally:
        nvml.nvmlShutdown()


def hold_open(nvml: ModuleType | None) -> bool:
    """Whether the library is open in this process from now on: opening it anew for each question costs more."""
    if nvml is None:
        return False
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return False
    return True


def driver_version(nvml: ModuleType | None) -> str | None:
    """Of the NVIDIA driver; None without a binding or a driver. Opens and closes the library."""
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        return str(nvml.nvmlSystemGetDriverVersion())
    finally:
        nvml.nvmlShutdown()


def _gpus(nvml: ModuleType) -> Iterator[Gpu]:
    for index in range(_asked(nvml, 0, nvml.nvmlDeviceGetCount)):
        # One GPU that fell off the bus or is another container's must not hide the others.
        handle = _asked(nvml, None, nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is not None:
            gpu = _gpu(nvml, handle, index)
            yield msgspec.structs.replace(gpu, instances=tuple(_instances(nvml, handle, index)))


def _instances(nvml: ModuleType, handle: object, index: int) -> Iterator[Gpu]:
    current, _pending = _asked(nvml, (0, 0), nvml.nvmlDeviceGetMigMode, handle)
    if not current:
        return
    for position in range(_asked(nvml, 0, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        instance = _asked(nvml, None, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, position)
        if instance is not None:
            yield _gpu(nvml, instance, index)


def _gpu(nvml: ModuleType, handle: object, index: int) -> Gpu:
    memory = _memory(nvml, handle)
    return Gpu(
        index=index,
        uuid=_text(_asked(nvml, "", nvml.nvmlDeviceGetUUID, handle)),
        name=_text(_asked(nvml, "", nvml.nvmlDeviceGetName, handle)),
        memory_bytes=memory[0],
        memory_used_bytes=memory[1],
        own_bytes=_own_bytes(nvml, handle),
        utilization=_utilization(nvml, handle),
        pci_bus_id=_pci_bus_id(nvml, handle),
        holders=_holders(nvml, handle),
    )


def _memory(nvml: ModuleType, handle: object) -> tuple[int, int]:
    """Total and used. The second version of the question, where the driver knows it, leaves out what it reserves."""
    info = _asked(nvml, None, nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2)
    if info is None:
        info = _asked(nvml, None, nvml.nvmlDeviceGetMemoryInfo, handle)
    return (0, 0) if info is None else (int(info.total), int(info.used))


def _utilization(nvml: ModuleType, handle: object) -> float | None:
    rates = _asked(nvml, None, nvml.nvmlDeviceGetUtilizationRates, handle)
    return None if rates is None else int(rates.gpu) / 100


def _own_bytes(nvml: ModuleType, handle: object) -> int:
    if not has_cuda_open():
        return 0  # In a container NVML may list pids of the host: ours could be another process's there.
    return sum(size_bytes for pid, size_bytes in _holders(nvml, handle) if pid == os.getpid())


def _holders(nvml: ModuleType, handle: object) -> tuple[tuple[int, int], ...]:
    processes = _asked(nvml, [], nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return tuple((int(process.pid), int(process.usedGpuMemory or 0)) for process in processes)


def _pci_bus_id(nvml: ModuleType, handle: object) -> str:
    info = _asked(nvml, None, nvml.nvmlDeviceGetPciInfo, handle)
    return "" if info is None else _text(info.busId)


def has_cuda_open() -> bool:
    """True when this process has a CUDA context: only CUDA opens ``/dev/nvidia-uvm``, NVML does not."""
    try:
        links = list(Path("/proc/self/fd").iterdir())
    except OSError:
        return False
    return any(_target(link).startswith("/dev/nvidia-uvm") for link in links)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed in the meantime
        return ""


def _asked(nvml: ModuleType, otherwise, question, *arguments):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN202
    """The answer, or `otherwise` where this GPU or driver does not know it."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return otherwise


def _text(answer: str | bytes) -> str:
    """Bindings before 11.5 answer in bytes."""
    return answer.decode() if isinstance(answer, bytes) else answer
