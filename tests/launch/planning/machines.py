"""Machines that we lack, as values."""

from __future__ import annotations

from msgspec.structs import replace

from accel_nb.protocol.hardware import DeviceInfo, NodeHardware

GIB = 1 << 30

CPU_ONLY = NodeHardware(host="box", cpu_count=8, memory_bytes=32 * GIB, memory_available_bytes=30 * GIB)


def gpu(
    index: int, *, name: str = "NVIDIA H100", memory_gib: float = 80, used_gib: float = 0, kernel_gib: float = 0
) -> DeviceInfo:
    return DeviceInfo(
        index=index,
        uuid=f"GPU-{index}aaa",
        name=name,
        memory_bytes=int(memory_gib * GIB),
        memory_used_bytes=int(used_gib * GIB),
        kernel_used_bytes=int(kernel_gib * GIB),
    )


def gpu_machine(*devices: DeviceInfo) -> NodeHardware:
    return replace(CPU_ONLY, devices={"cuda": devices})


FOUR_GPUS = gpu_machine(*(gpu(index) for index in range(4)))
