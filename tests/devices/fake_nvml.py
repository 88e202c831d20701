# ruff: noqa: N802  NVML's own spelling
"""NVIDIA's management library over GPUs that we lack: the functions of ``pynvml`` that `accel_nb.devices.nvml` uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType


class NVMLError(Exception):
    """As ``pynvml.NVMLError``: anything the library refuses."""


@dataclass
class Memory:
    total: int
    used: int


@dataclass
class Process:
    pid: int
    usedGpuMemory: int | None  # noqa: N815  NVML's spelling


@dataclass
class Rates:
    gpu: int


@dataclass
class PciInfo:
    busId: str | bytes  # noqa: N815  NVML's spelling


@dataclass
class FakeGpu:
    uuid: str
    name: str = "NVIDIA H100"
    total: int = 80 << 30
    used: int = 1 << 30
    busy: int | None = None
    """Percent; None: it does not tell."""
    processes: list[Process] = field(default_factory=list)
    instances: list[FakeGpu] | None = None
    """None: this GPU knows no MIG mode."""
    lost: bool = False
    refuses: frozenset[str] = frozenset()


class FakeNvml(ModuleType):
    """`driver=False`: the library is there, the driver is not. `old=True`: a driver without the newer questions."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 2  # noqa: N815

    def __init__(self, *gpus: FakeGpu, driver: bool = True, old: bool = False) -> None:
        super().__init__("pynvml")
        self.gpus = gpus
        self.driver = driver
        self.old = old
        self.open = 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if self.gpus[index].lost:
            raise NVMLError
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str | bytes:
        return gpu.uuid.encode() if self.old else gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str | bytes:
        return gpu.name.encode() if self.old else gpu.name

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> Memory:
        if "memory" in gpu.refuses or (self.old and version is not None):
            raise NVMLError
        return Memory(gpu.total, gpu.used)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Process]:
        return gpu.processes

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Rates:
        if gpu.busy is None:
            raise NVMLError
        return Rates(gpu.busy)

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> PciInfo:
        if "pci" in gpu.refuses:
            raise NVMLError
        return PciInfo(b"00000000:3B:00.0" if self.old else "00000000:3B:00.0")

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:
        if gpu.instances is None:
            raise NVMLError
        return (1, 1) if gpu.instances else (0, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:  # noqa: ARG002  the same for each
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, position: int) -> FakeGpu:
        if gpu.instances is None or position >= len(gpu.instances):
            raise NVMLError
        return gpu.instances[position]
