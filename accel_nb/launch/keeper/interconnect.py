"""What to try when all ranks wait in the same operation: then it is what joins their devices that does not work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ...devices import nvml
from ...devices.nvml import Gpu
from ...protocol.plan import LaunchPlan
from ..device_slots import pci_slots

_SWITCHES = {
    "nccl": (
        "Launch with env={'NCCL_DEBUG': 'INFO'} to see what NCCL tries, then with one of env={'NCCL_P2P_DISABLE': '1'} "
        "(no direct copies between GPUs: for boards or virtual machines where they hang), env={'NCCL_IB_DISABLE': '1'} "
        "(no InfiniBand) or env={'NCCL_SHM_DISABLE': '1'} (no shared memory)."
    ),
    "gloo": (
        "gloo joins the ranks over TCP: env={'GLOO_SOCKET_IFNAME': 'lo'} names the network interface, and a firewall "
        "must let the ranks of a machine reach each other."
    ),
}
"""Variables of NCCL ("Environment Variables" in its user guide) and of torch's gloo backend ("torch.distributed")."""
_DRIVER_ANSWERS_S = 1.0
"""One that has lost a GPU, which is why ranks wait, may keep whoever asks for ever."""


def interconnect_hint(
    plan: LaunchPlan, *, first: bool, read_gpus: Callable[[], Sequence[Gpu]] = lambda: nvml.read_gpus(nvml.load())
) -> str:
    """`first`: it is the first operation of their process group, which joins them. `read_gpus`: asked where there are
    some; it may start threads, and need not come back.
    """
    slots = _slots(plan, read_gpus) if plan.process_group == "nccl" else {}
    at = {rank: f" (PCI {slot})" for rank, slot in slots.items()}
    devices = ", ".join(f"rank {rank.rank} on {rank.device_label}{at.get(rank.rank, '')}" for rank in plan.ranks)
    what = "in the first operation of their process group" if first else "in the same operation"
    switches = _SWITCHES.get(plan.process_group, "")
    return f"All ranks are {what}, so none of them is missing: {devices}. {switches}".rstrip()


def _slots(plan: LaunchPlan, read_gpus: Callable[[], Sequence[Gpu]]) -> dict[int, str]:
    told: list[dict[int, str]] = []
    asking = threading.Thread(
        target=lambda: told.append(pci_slots(plan, read_gpus())), name="accel_nb slots", daemon=True
    )
    asking.start()
    asking.join(_DRIVER_ANSWERS_S)
    return told[0] if told else {}
