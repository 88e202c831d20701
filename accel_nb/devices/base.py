"""What kinds of hardware have in common: bases for the files beside this one, and for other packages' devices.

`DeviceBase` answers what can be answered without knowing the hardware. `NamespaceDevice` is for kinds that torch has a
namespace for, ``torch.<type>``, with the functions that ``torch.cuda`` has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..protocol.hardware import DeviceFigures, DeviceInfo
from ..protocol.plan import StartMethod
from .device import DeviceMemory

if TYPE_CHECKING:
    import torch

_SHARED_START_METHODS: tuple[StartMethod, ...] = ("forkserver", "spawn", "fork")


class DeviceBase:
    """A kind with one device per rank, whose torch.device needs no number. To be given `kind`, `torch_type`,
    `preference`, `probe` and, as a rule, `count`.
    """

    kind: str
    torch_type: str
    process_group = "gloo"
    distributed_type = "MULTI_CPU"
    one_rank_each = True
    precisions = frozenset({"no"})
    start_methods: tuple[StartMethod, ...] = _SHARED_START_METHODS
    keeps_parameters = True
    counted_by_torch = True
    visibility_variables: tuple[str, ...] = ()
    out_of_memory_texts: tuple[str, ...] = ()
    rank_overhead_bytes = 0
    records_allocations = False

    def probe(self) -> tuple[DeviceInfo, ...]:
        return ()

    def figures(self, variables: Mapping[str, str]) -> tuple[DeviceFigures, ...]:  # noqa: ARG002  none are told
        return ()

    def unusable_because(self) -> str:
        return ""

    def count(self) -> int:
        """As many as `probe` finds."""
        return len(self.probe())

    def visible_ids(self, variables: Mapping[str, str]) -> tuple[str, ...] | None:
        """The entries, with commas between them, of the only visibility variable."""
        text = next((variables[name] for name in self.visibility_variables if name in variables), None)
        if text is None:
            return None
        return tuple(entry.strip() for entry in text.split(",") if entry.strip())

    def env_for(self, chosen: Sequence[DeviceInfo]) -> dict[str, str]:
        """Their ids, or else their indexes, with commas between them, in each visibility variable."""
        shown = ",".join(device.uuid or str(device.index) for device in chosen)
        return dict.fromkeys(self.visibility_variables, shown)

    def refused_choice(self, chosen: Sequence[DeviceInfo], visible: Sequence[DeviceInfo]) -> str:  # noqa: ARG002  any
        return ""

    def is_open(self) -> bool:
        return False

    def bind(self, local_rank: int | None, num_local_ranks: int) -> torch.device:  # noqa: ARG002  needs no number
        import torch

        return torch.device(self.torch_type)

    def make_current(self, device: torch.device) -> None:
        pass

    def group_device(self, device: torch.device) -> torch.device | None:  # noqa: ARG002  torch accepts none
        return None

    def module_device_ids(self, device: torch.device) -> list[int] | None:  # noqa: ARG002  torch wants none
        return None

    def transport_device(self, device: torch.device) -> torch.device:
        return device

    def computes_in_bfloat16(self) -> bool:
        return "bf16" in self.precisions

    def empty_cache(self) -> None:
        pass

    def memory(self) -> DeviceMemory | None:
        return None

    def seed(self, seed: int) -> None:
        pass

    def random_state(self, device: torch.device) -> torch.Tensor | None:  # noqa: ARG002  the CPU's draws
        return None

    def restore_random_state(self, state: torch.Tensor, device: torch.device) -> None:
        pass

    def random_states(self, device: torch.device) -> dict[str, object]:  # noqa: ARG002  the CPU's draws
        return {}

    def restore_random_states(self, states: Mapping[str, Any], device: torch.device) -> None:
        pass

    def storage_id(self, tensor: torch.Tensor) -> int:
        return tensor.untyped_storage().data_ptr()

    def copy_stream(self, device: torch.device) -> torch.cuda.Stream | None:  # noqa: ARG002  copies do not overlap
        return None

    def batch_receiver(  # the kind needs not be told
        self, device: torch.device  # noqa: ARG002
    ) -> Callable[[Iterable[torch.Tensor]], None] | None:  # fmt: skip
        return None

    def step_ender(self) -> Callable[[], None] | None:
        return None

    def gradient_averager(self) -> Callable[[Iterable[torch.Tensor]], None] | None:
        return None


class NamespaceDevice(DeviceBase):
    """A kind whose torch has a namespace like ``torch.cuda``: ``torch.xpu``, or another package's."""

    distributed_type = "MULTI_GPU"
    precisions = frozenset({"no", "bf16", "fp16"})

    def namespace(self) -> Any:  # noqa: ANN401  modules of one shape
        """``torch.<type>``. Imports torch."""
        import torch

        return getattr(torch, self.torch_type)

    def loaded_namespace(self) -> Any:  # noqa: ANN401  see above
        """The same without importing anything; None in a process that has not imported torch."""
        torch = sys.modules.get("torch")
        return None if torch is None else getattr(torch, self.torch_type, None)

    def count(self) -> int:
        # device_count() alone may ask the driver only: it counts devices which this torch cannot start.
        return int(self.namespace().device_count()) if self.namespace().is_available() else 0

    def is_open(self) -> bool:
        namespace = self.loaded_namespace()
        return namespace is not None and bool(namespace.is_initialized())

    def bind(self, local_rank: int | None, num_local_ranks: int) -> torch.device:  # noqa: ARG002  each has its own
        import torch

        index = self.namespace().current_device() if local_rank is None else local_rank
        self.namespace().set_device(index)
        return torch.device(self.torch_type, index)

    def make_current(self, device: torch.device) -> None:
        self.namespace().set_device(device)

    def group_device(self, device: torch.device) -> torch.device | None:
        return device

    def module_device_ids(self, device: torch.device) -> list[int] | None:
        return [device.index]

    def computes_in_bfloat16(self) -> bool:
        return bool(self.namespace().is_bf16_supported())

    def empty_cache(self) -> None:
        if self.is_open():
            self.namespace().empty_cache()

    def memory(self) -> DeviceMemory | None:
        if not self.is_open():
            return None
        namespace = self.namespace()
        free, total = namespace.mem_get_info()
        return DeviceMemory(
            free_bytes=free,
            total_bytes=total,
            allocated_bytes=namespace.memory_allocated(),
            reserved_bytes=namespace.memory_reserved(),
        )

    def random_state(self, device: torch.device) -> torch.Tensor | None:
        state: torch.Tensor = self.namespace().get_rng_state(device)
        return state

    def restore_random_state(self, state: torch.Tensor, device: torch.device) -> None:
        self.namespace().set_rng_state(state, device)

    def random_states(self, device: torch.device) -> dict[str, object]:
        """Those of all devices that this process sees, and which of them is this rank's."""
        return {self._states_name: self.namespace().get_rng_state_all(), "device_index": device.index}

    def restore_random_states(self, states: Mapping[str, Any], device: torch.device) -> None:
        of_all = states.get(self._states_name)
        if of_all:
            index = states.get("device_index", device.index)  # upstream's: each rank had the device of its number
            self.restore_random_state(of_all[index if index < len(of_all) else 0].cpu(), device)

    @property
    def _states_name(self) -> str:
        return f"torch_{self.torch_type}_manual_seed"
