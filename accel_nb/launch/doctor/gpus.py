"""NVIDIA's GPUs as their driver tells them: who holds their memory, and where they are plugged in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psutil

from ...devices.nvml import Gpu
from ...protocol.diagnosis import Fact, Finding
from ...protocol.hardware import NodeHardware
from ...protocol.plan import LaunchPlan
from ..device_slots import pci_slots
from .machine import gib

GROUP = "devices"
CROWDED = 0.10
"""Memory held by others above this share of a device is told."""


def facts(hardware: NodeHardware, gpus: Sequence[Gpu], *, counted: bool = True) -> Iterator[Fact]:
    """`counted`: torch was asked how many devices it can use."""
    for gpu in gpus:
        held = ", ".join(f"{_program(pid)} {gib(size_bytes)}" for pid, size_bytes in gpu.holders)
        memory = f"{gib(gpu.memory_used_bytes)} of {gib(gpu.memory_bytes)} in use" + (f" by {held}" if held else "")
        yield _fact(f"GPU {gpu.index}", f"{gpu.name}, PCI {gpu.pci_bus_id or 'unknown'}, {memory}")
    for kind, devices in hardware.devices.items():
        yield _fact(kind, f"{len(devices)} {'usable by torch here' if counted else 'listed by the driver'}")
    for kind, entries in hardware.visible_ids.items():
        yield _fact(f"{kind} visible", ",".join(entries) or "none: hidden by the environment")
    if hardware.tpu_evidence:
        yield _fact("TPU", hardware.tpu_evidence)
    if not hardware.devices:
        yield _fact("accelerators", f"none {'that torch can use' if counted else 'listed'}: ranks run on the CPU")


def findings(hardware: NodeHardware, gpus: Sequence[Gpu], own_pid: int) -> Iterator[Finding]:
    for note in hardware.notes:
        yield Finding(
            severity="problem",
            what=note,
            why="Launches run on fewer devices than are plugged in.",
            remedy="Compare torch's build and the driver (above): a build for CPUs only, or for a newer CUDA than the "
            "driver knows, uses no GPU; CUDA_VISIBLE_DEVICES may hide some.",
        )
    for gpu in gpus:
        others = [(pid, size_bytes) for pid, size_bytes in gpu.holders if pid != own_pid]
        held = gpu.memory_used_bytes - gpu.own_bytes
        if gpu.memory_bytes and held > CROWDED * gpu.memory_bytes:
            names = (
                ", ".join(f"{pid} ({_program(pid)})" for pid, _ in others) or "processes that the driver does not name"
            )
            yield Finding(
                severity="hint",
                what=f"{gib(held)} of {gib(gpu.memory_bytes)} on GPU {gpu.index} are in use by others.",
                why=f"They belong to {names}; the rank there has that much less.",
                remedy="Shut down kernels that you do not need, or choose other GPUs with devices=[...].",
            )


def places(plan: LaunchPlan, gpus: Sequence[Gpu]) -> str:
    """``rank 0 = cuda:0 NVIDIA H100 (PCI 00000000:3B:00.0); rank 1 = ...``."""
    slots = pci_slots(plan, gpus)
    return "; ".join(
        f"rank {rank.rank} = {rank.device_label}" + (f" (PCI {slots[rank.rank]})" if rank.rank in slots else "")
        for rank in plan.ranks
    )


def _program(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return f"pid {pid}"


def _fact(name: str, value: str) -> Fact:
    return Fact(group=GROUP, name=name, value=value)
