"""Ranks that compute on the CPU, over gloo. Always there, any number of them."""

from __future__ import annotations

from .base import DeviceBase


class CpuDevice(DeviceBase):
    """Has nothing to probe: CPU ranks share the machine, whose figures `NodeHardware` holds."""

    kind = "cpu"
    torch_type = "cpu"
    preference = 0
    one_rank_each = False
    precisions = frozenset({"no", "bf16", "fp16"})
    # c10/core/impl/alloc_cpu.cpp: of POSIX, of Windows
    out_of_memory_texts = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")


DEVICE = CpuDevice()
