"""NVIDIA GPUs: figures by NVML, the count that decides by torch, visibility by ``CUDA_VISIBLE_DEVICES``.

The meaning of that variable follows CUDA C++ Programming Guide, "CUDA Environment Variables": indexes, UUIDs or
unambiguous beginnings of UUIDs; the first entry that names nothing ends the list; an entry named twice empties it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..protocol import environment
from ..protocol.hardware import DeviceFigures, DeviceInfo
from . import nvml
from .base import NamespaceDevice
from .nvml import Gpu

if TYPE_CHECKING:
    import torch

VARIABLE = "CUDA_VISIBLE_DEVICES"


class CudaDevice(NamespaceDevice):
    kind = "cuda"
    torch_type = "cuda"
    process_group = "nccl"
    preference = 100
    visibility_variables = (VARIABLE,)
    out_of_memory_texts = (
        "CUDA error: out of memory",  # of the runtime
        "CUDA driver error: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUSOLVER_STATUS_ALLOC_FAILED",
        "CUSPARSE_STATUS_ALLOC_FAILED",
        "CUFFT_ALLOC_FAILED",
        "CUDNN_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",  # cuDNN 9
        "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",  # what cuDNN says when it finds no room to work in
        "Cuda failure 'out of memory'",  # NCCL
        "Cuda failure 2 'out of memory'",
    )
    rank_overhead_bytes = 1460 << 20
    """Context and NCCL, measured on an H200."""
    records_allocations = True

    def __init__(self, binding: Callable[[], ModuleType | None] = nvml.load) -> None:
        self._binding = binding
        self._held_open = False

    def probe(self) -> tuple[DeviceInfo, ...]:
        gpus = nvml.read_gpus(self._binding())
        devices = visible_devices(gpus, environment.current())
        return tuple(_with_own_memory(device, position) for position, device in enumerate(devices))

    def figures(self, variables: Mapping[str, str]) -> tuple[DeviceFigures, ...]:
        binding = self._binding()
        self._held_open = self._held_open or nvml.hold_open(binding)
        return tuple(map(_figures, shown_gpus(nvml.read_gpus(binding), variables)))

    def copy_stream(self, device: torch.device) -> torch.cuda.Stream | None:
        import torch

        return torch.cuda.Stream(device)


def visible_devices(gpus: Sequence[Gpu], variables: Mapping[str, str]) -> tuple[DeviceInfo, ...]:
    """Those of `gpus` that CUDA shows under `variables`, in its order."""
    return tuple(map(_info, shown_gpus(gpus, variables)))


def shown_gpus(gpus: Sequence[Gpu], variables: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The same. Of one that may be another than NVML says, only the index is given."""
    entries = DEVICE.visible_ids(variables)
    if entries is None:
        return tuple(map(_usable, gpus))
    # CUDA numbers the fastest first unless told otherwise: among unequal GPUs an index may name another than NVML's.
    in_doubt = len({gpu.name for gpu in gpus}) > 1 and variables.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    shown: list[Gpu] = []
    for entry in entries:
        gpu = _named(entry, gpus)
        if gpu is None:
            break
        shown.append(Gpu(index=gpu.index, uuid="") if in_doubt and entry.isdecimal() else gpu)
    repeated = len({(gpu.index, gpu.uuid) for gpu in shown}) < len(shown)
    return () if repeated else tuple(shown)


def _named(entry: str, gpus: Sequence[Gpu]) -> Gpu | None:
    if entry.isdecimal():
        return _usable(gpus[int(entry)]) if int(entry) < len(gpus) else None
    everything = [found for gpu in gpus for found in (gpu, *gpu.instances)]
    matches = [found for found in everything if found.uuid.lower().startswith(entry.lower())]
    return _usable(matches[0]) if len(matches) == 1 else None


def _usable(gpu: Gpu) -> Gpu:
    """What CUDA opens when told `gpu`: of a GPU in MIG mode its first instance."""
    return gpu.instances[0] if gpu.instances else gpu


def _info(gpu: Gpu) -> DeviceInfo:
    return DeviceInfo(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        memory_bytes=gpu.memory_bytes,
        memory_used_bytes=gpu.memory_used_bytes,
        kernel_used_bytes=gpu.own_bytes,
    )


def _figures(gpu: Gpu) -> DeviceFigures:
    return DeviceFigures(
        memory_bytes=gpu.memory_bytes,
        memory_used_bytes=gpu.memory_used_bytes,
        utilization=gpu.utilization,
        holders=gpu.holders,
    )


def _with_own_memory(device: DeviceInfo, position: int) -> DeviceInfo:
    """`device`, with what this process's torch holds on it where NVML could not see it (a container hides pids)."""
    torch = sys.modules.get("torch")
    if device.kernel_used_bytes or torch is None or not torch.cuda.is_initialized():
        return device
    if position >= torch.cuda.device_count():
        return device
    return replace(device, kernel_used_bytes=int(torch.cuda.memory_reserved(position)))


DEVICE = CudaDevice()
