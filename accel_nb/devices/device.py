"""The contract of a device kind: what the planner and the training layer need to know about one sort of hardware.

`accel_nb.devices.base` has bases with what most kinds have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from ..protocol.hardware import DeviceFigures, DeviceInfo
from ..protocol.plan import StartMethod

if TYPE_CHECKING:
    import torch


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the device that a rank computes on."""

    free_bytes: int
    total_bytes: int
    allocated_bytes: int
    """In tensors of this process."""
    reserved_bytes: int
    """Of this process, those in tensors included."""


@runtime_checkable
class Device(Protocol):
    """One kind of hardware. An implementation is a module constant ``DEVICE`` in ``accel_nb/devices/<kind>.py``,
    or an object that another package offers in the entry-point group ``accel_nb.devices``.

    The first half is asked by the launcher, mostly in the notebook's kernel, where nothing may import torch. The second
    half is asked in processes that compute: ranks, and whoever makes an `Accelerator`.
    """

    @property
    def kind(self) -> str:
        """The word of `device=`, torch's own where torch has one: "cuda". Unique among the kinds found."""
        ...

    @property
    def torch_type(self) -> str:
        """The type of its ``torch.device``: "cuda"; "xla" for TPUs."""
        ...

    @property
    def process_group(self) -> str:
        """torch.distributed's backend for ranks on this kind: "nccl"."""
        ...

    @property
    def distributed_type(self) -> str:
        """Which `accel_nb.DistributedType` several ranks on this kind are, by name: "MULTI_GPU"."""
        ...

    @property
    def preference(self) -> int:
        """Among the kinds that are present, ``device="auto"`` takes the highest; one below 0 only when it is named."""
        ...

    @property
    def one_rank_each(self) -> bool:
        """True: each rank has a device of its own. False: any number of ranks share the machine."""
        ...

    @property
    def precisions(self) -> frozenset[str]:
        """What `mixed_precision` may be on this kind, "no" included."""
        ...

    @property
    def start_methods(self) -> tuple[StartMethod, ...]:
        """How ranks on this kind may come to be, the usual way first. Without "forkserver": no process may use it that
        was forked from one which had imported torch.
        """
        ...

    @property
    def keeps_parameters(self) -> bool:
        """Whether ``Module.to`` leaves parameters the objects that an optimizer made before knows."""
        ...

    @property
    def counted_by_torch(self) -> bool:
        """Whether `count` corrects `probe`. False: asking torch would open the devices; `probe` knows their number."""
        ...

    @property
    def visibility_variables(self) -> tuple[str, ...]:
        """Variables that `env_for` writes. A caller's `env` cannot set them."""
        ...

    @property
    def out_of_memory_texts(self) -> tuple[str, ...]:
        """What RuntimeErrors of torch, or of libraries under it, contain when memory of this kind ran out, beyond
        " out of memory.", which all of torch's own allocators say.
        """
        ...

    @property
    def rank_overhead_bytes(self) -> int:
        """What a rank takes of its device besides tensors: context, libraries, communicator. 0 where ranks share the
        machine.
        """
        ...

    @property
    def records_allocations(self) -> bool:
        """Whether torch can tell which line allocated what, ``torch.<kind>.memory._record_memory_history``."""
        ...

    def probe(self) -> tuple[DeviceInfo, ...]:
        """Devices visible to this process, in visible order, with names and figures; () when nothing can be known.

        Runs in the kernel, in any thread; imports no torch, opens no context, leaves no thread behind. Never raises
        because hardware or driver is missing.
        """
        ...

    def figures(self, variables: Mapping[str, str]) -> tuple[DeviceFigures, ...]:
        """How the devices that a process with this environment sees are used now, in its order; () when nothing can
        be known.

        Runs in a keeper, which does not fork afterwards, every two seconds, in one thread: it may keep the driver's
        library open and leave threads behind. Imports no torch, opens no context, never raises because hardware or
        driver is missing.
        """
        ...

    def unusable_because(self) -> str:
        """A sentence when such hardware is here and cannot be used all the same, what to do included; else empty.

        Runs where `probe` does, with the same limits.
        """
        ...

    def count(self) -> int:
        """How many devices torch can use with this process's environment; 0 for a kind without `one_rank_each`.

        Runs in a throw-away child of the server, under the kernel's environment, and in ranks: it may import torch and
        open the driver.
        """
        ...

    def visible_ids(self, variables: Mapping[str, str]) -> tuple[str, ...] | None:
        """Entries of the visibility variable among `variables`, as written; None when it is not set."""
        ...

    def env_for(self, chosen: Sequence[DeviceInfo]) -> dict[str, str]:
        """Variables that show a rank exactly `chosen`, in this order; of none, those that hide every device."""
        ...

    def refused_choice(self, chosen: Sequence[DeviceInfo], visible: Sequence[DeviceInfo]) -> str:
        """Why ranks cannot run on `chosen` of the `visible` devices, as a sentence with what is allowed; empty where
        they can.
        """
        ...

    def is_open(self) -> bool:
        """Whether this process has opened such a device, after which a fork of it cannot use one. Imports nothing."""
        ...

    def bind(self, local_rank: int | None, num_local_ranks: int) -> torch.device:
        """The device of rank `local_rank` of the `num_local_ranks` on this machine, made current; of None, which no
        launcher started, the one that is current.

        Called before anything else of this kind is used, once `count` was found large enough. Raises TrainingError.
        """
        ...

    def make_current(self, device: torch.device) -> None:
        """`device` is where new tensors of its kind go."""
        ...

    def group_device(self, device: torch.device) -> torch.device | None:
        """`device_id` of ``init_process_group``: binds a group to its device. None where torch accepts none."""
        ...

    def module_device_ids(self, device: torch.device) -> list[int] | None:
        """`device_ids` of DistributedDataParallel and of ``barrier``; None where torch wants none."""
        ...

    def transport_device(self, device: torch.device) -> torch.device:
        """Where tensors of `device` must be for torch.distributed's operations: itself, or the CPU."""
        ...

    def computes_in_bfloat16(self) -> bool:
        """Whether the devices at hand do; some of a kind may not."""
        ...

    def empty_cache(self) -> None:
        """Give memory that torch keeps for later back. Opens no device that this process has not used."""
        ...

    def memory(self) -> DeviceMemory | None:
        """Of the current device; None where this process has opened none, or nothing can be known."""
        ...

    def seed(self, seed: int) -> None:
        """Seed what draws on these devices, where ``torch.manual_seed`` does not."""
        ...

    def random_state(self, device: torch.device) -> torch.Tensor | None:
        """State of the generator that draws on `device`; None when that is the CPU's own."""
        ...

    def restore_random_state(self, state: torch.Tensor, device: torch.device) -> None: ...

    def random_states(self, device: torch.device) -> dict[str, object]:
        """For checkpoints: what `restore_random_states` takes, by the names that accelerate 1.15 has for it."""
        ...

    def restore_random_states(self, states: Mapping[str, object], device: torch.device) -> None:
        """Give `device` the generator that the saving rank's had. Nothing where `states` hold none of this kind."""
        ...

    def storage_id(self, tensor: torch.Tensor) -> int:
        """Equal for tensors that share memory."""
        ...

    def copy_stream(self, device: torch.device) -> torch.cuda.Stream | None:
        """A stream on which batches are copied to `device` while it computes; None where copies do not overlap.

        Others than CUDA's behave like one.
        """
        ...

    def batch_receiver(self, device: torch.device) -> Callable[[Iterable[torch.Tensor]], None] | None:
        """What is to be called with the tensors of each batch that a loader has brought to `device`; None: nothing."""
        ...

    def step_ender(self) -> Callable[[], None] | None:
        """What is to be called when an optimizer has stepped, for devices that compute only when they are told to;
        None: nothing.
        """
        ...

    def gradient_averager(self) -> Callable[[Iterable[torch.Tensor]], None] | None:
        """What averages the gradients of the parameters that it is given over all ranks, at the end of each backward
        that ends a step; None: DistributedDataParallel does, which ranks are wrapped in unless they are XLA's.
        """
        ...
