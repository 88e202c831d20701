"""The contract of a device kind: what the planner needs to know about one sort of hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from ..protocol.hardware import DeviceFigures, DeviceInfo


@runtime_checkable
class Device(Protocol):
    """One kind of hardware. An implementation is a module constant ``DEVICE`` in ``accel_nb/devices/<kind>.py``,
    or an object that another package offers in the entry-point group ``accel_nb.devices``.
    """

    @property
    def kind(self) -> str:
        """The word of `device=`, torch's own where torch has one: "cuda". Unique among the kinds found."""
        ...

    @property
    def process_group(self) -> str:
        """torch.distributed's backend for ranks on this kind: "nccl"."""
        ...

    @property
    def preference(self) -> int:
        """Among the kinds that are present, ``device="auto"`` takes the highest."""
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

        Runs in a process that does not fork afterwards, every two seconds, in one thread: it may keep the driver's
        library open and leave threads behind. Imports no torch, opens no context, never raises because hardware or
        driver is missing.
        """
        ...

    def count(self) -> int:
        """How many devices torch can use with this process's environment; 0 for a kind without `one_rank_each`.

        Runs in a throw-away child of the server, under the kernel's environment: it may import torch, open the driver
        and leave the process unfit for anything else.
        """
        ...

    def visible_ids(self, variables: Mapping[str, str]) -> tuple[str, ...] | None:
        """Entries of the visibility variable among `variables`, as written; None when it is not set."""
        ...

    def env_for(self, chosen: Sequence[DeviceInfo]) -> dict[str, str]:
        """Variables that show a rank exactly `chosen`, in this order; of none, those that hide every device."""
        ...
