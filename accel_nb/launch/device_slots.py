"""In which PCI slots the devices of a plan's ranks are, as far as their driver tells: what joins them depends on it."""

from __future__ import annotations

from collections.abc import Sequence

from ..devices.nvml import Gpu
from ..protocol.plan import LaunchPlan


def pci_slots(plan: LaunchPlan, gpus: Sequence[Gpu]) -> dict[int, str]:
    """Rank -> ``00000000:3B:00.0``, for those whose slot is known. `gpus`: of this machine, which is the plan's only
    one; else nothing is known.
    """
    if len({rank.node for rank in plan.ranks}) > 1:
        return {}
    ids = [entry.strip() for entry in plan.env.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    listed = [*gpus, *(instance for gpu in gpus for instance in gpu.instances)]
    # By number last: an instance has that of its GPU.
    by_id = {gpu.uuid: gpu.pci_bus_id for gpu in listed} | {str(gpu.index): gpu.pci_bus_id for gpu in gpus}
    slots = {
        rank.rank: by_id.get(ids[rank.device_index], "")
        for rank in plan.ranks
        if rank.device_index is not None and rank.device_index < len(ids)
    }
    return {rank: slot for rank, slot in slots.items() if slot}


def pci_slot_of(bus_id: str) -> str:
    """The slot of a number as NCCL writes it: ``34000`` is ``0000:34:00.0`` without its punctuation, in hexadecimal."""
    digits = bus_id.lower().rjust(9, "0")
    return f"{digits[:-5]}:{digits[-5:-3]}:{digits[-3:-1]}.{digits[-1]}"
