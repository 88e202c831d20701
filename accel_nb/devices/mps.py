"""The GPU of an Apple machine: one, so one rank, which is started as a fresh interpreter.

No rank has run on such a GPU yet: what follows is written after torch's documents of ``torch.mps``, and tested against
the contract of a device and a stand-in for it. Metal hangs in a child forked from a process that has loaded it
(pytorch/pytorch#178037): ranks never come from the warm server.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import psutil

from ..protocol.hardware import DeviceInfo
from ..protocol.plan import StartMethod
from .base import NamespaceDevice
from .device import DeviceMemory

if TYPE_CHECKING:
    import torch


class MpsDevice(NamespaceDevice):
    kind = "mps"
    torch_type = "mps"
    process_group = "gloo"
    distributed_type = "NO"
    preference = 70
    start_methods: tuple[StartMethod, ...] = ("spawn",)
    out_of_memory_texts = ("MPS backend out of memory",)  # at::mps, MPSAllocator.mm

    def probe(self) -> tuple[DeviceInfo, ...]:
        """Its memory is the machine's."""
        if platform.system() != "Darwin" or platform.machine() != "arm64":
            return ()
        return (DeviceInfo(index=0, name="Apple GPU", memory_bytes=psutil.virtual_memory().total),)

    def count(self) -> int:
        import torch

        return int(torch.backends.mps.is_available())

    def is_open(self) -> bool:
        # torch.mps has no is_initialized; a process that allocated nothing can be forked.
        namespace = self.loaded_namespace()
        return platform.system() == "Darwin" and namespace is not None and namespace.driver_allocated_memory() > 0

    def bind(self, local_rank: int | None, num_local_ranks: int) -> torch.device:  # noqa: ARG002  there is one
        import torch

        return torch.device("mps", 0)

    def make_current(self, device: torch.device) -> None:
        pass

    def group_device(self, device: torch.device) -> torch.device | None:  # noqa: ARG002  gloo's takes none
        return None

    def module_device_ids(self, device: torch.device) -> list[int] | None:  # noqa: ARG002  gloo's barrier takes none
        return None

    def transport_device(self, device: torch.device) -> torch.device:  # noqa: ARG002  gloo's tensors are the CPU's
        import torch

        return torch.device("cpu")

    def computes_in_bfloat16(self) -> bool:
        return True

    def memory(self) -> DeviceMemory | None:
        if not self.is_open():
            return None
        total, reserved = self.namespace().recommended_max_memory(), self.namespace().driver_allocated_memory()
        return DeviceMemory(
            free_bytes=max(0, total - reserved),
            total_bytes=total,
            allocated_bytes=self.namespace().current_allocated_memory(),
            reserved_bytes=reserved,
        )

    def random_state(self, device: torch.device) -> torch.Tensor | None:  # noqa: ARG002  there is one
        state: torch.Tensor = self.namespace().get_rng_state()
        return state

    def restore_random_state(self, state: torch.Tensor, device: torch.device) -> None:  # noqa: ARG002  there is one
        self.namespace().set_rng_state(state)

    def random_states(self, device: torch.device) -> dict[str, object]:
        return {self._states_name: [self.random_state(device)], "device_index": 0}


DEVICE = MpsDevice()
