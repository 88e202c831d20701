"""Which device a rank computes on, and what follows from its kind.

The training layer's border to `accel_nb.devices`: everything else asks for a `torch.device` or takes the values below.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psutil
import torch
from torch import nn

from ...devices import find_device, find_devices, own_devices
from ...devices.device import Device
from ...errors import TrainingError
from ...protocol import environment
from .distributed_type import DistributedType


def choose_device(
    *, cpu: bool, local_rank: int | None, num_local_ranks: int = 1, is_counted: bool = False, named: str = ""
) -> torch.device:
    """The device of the rank `local_rank` of this machine (None: no launcher started this process), made current.

    `named` by ``ACCELERATE_TORCH_DEVICE``: that one; without a number, the rank's of that kind. Otherwise one of the
    kind that our launcher planned, or else of the most preferred kind that is here. With `cpu`, accelerators are not
    even looked at. `is_counted`: there are no fewer than `num_local_ranks` here. Raises TrainingError for a device that
    is not there, and when the machine shows fewer devices than it runs ranks: on each of them, since those that have
    one would wait for the others.
    """
    wanted = _device_named(named) if named else None
    if cpu:
        return wanted if wanted is not None and wanted.type == "cpu" else torch.device("cpu")
    kind = _preferred_kind() if wanted is None else kind_of(wanted)
    if not kind.one_rank_each:
        return torch.device(kind.torch_type)
    num_devices = kind.count()
    if wanted is not None and num_devices <= (wanted.index or 0):
        raise TrainingError(
            f"ACCELERATE_TORCH_DEVICE={named!r} names a device that this process does not see: it sees {num_devices} "
            f"{_label(kind)} devices. Name another one, or unset it."
        )
    if wanted is not None and ":" in named:
        kind.make_current(wanted)
        return wanted
    num_here = 0 if local_rank is None else max(local_rank + 1, num_local_ranks if is_counted else 1)
    if num_here > num_devices:
        raise TrainingError(
            f"{socket.gethostname()} runs {num_here} ranks, and this process sees {num_devices} {_label(kind)} "
            f"devices; each rank takes the one of its own number there: start at most {num_devices} there, let each "
            "rank see all devices, or compute on the CPU with Accelerator(cpu=True)."
        )
    return kind.bind(local_rank, num_local_ranks)


def kind_of(device: torch.device) -> Device:
    """The kind that our launcher planned, if it is one with such devices; else the first that has them; the CPU's for
    what is no hardware ("meta").
    """
    planned = find_device(environment.device_kind())
    if planned is not None and planned.torch_type == device.type:
        return planned
    everything = (*own_devices().values(), *find_devices())
    known = next((kind for kind in everything if kind.torch_type == device.type), None)
    return known or kind_of(torch.device("cpu"))


def _preferred_kind() -> Device:
    """Of this process, for whose device nobody has a name."""
    planned = find_device(environment.device_kind())
    if planned is not None:
        return planned
    kinds = sorted(find_devices(), key=lambda kind: -kind.preference)
    return next(kind for kind in kinds if kind.preference >= 0 and (not kind.one_rank_each or kind.count()))


def _device_named(name: str) -> torch.device:
    kind, _, number = name.partition(":")
    types = list(dict.fromkeys(known.torch_type for known in reversed(find_devices())))
    if kind not in types or (":" in name and not number.isdecimal()):
        ordered = sorted(types, key=lambda one: ("cpu", "cuda").index(one) if one in ("cpu", "cuda") else len(types))
        raise TrainingError(
            f"ACCELERATE_TORCH_DEVICE={name!r} is no device of this version of accel_nb; set it to one of "
            f"{', '.join(ordered)}, with a number or without, such as 'cuda:1', or unset it."
        )
    return torch.device(name)


def default_device() -> torch.device:
    """The kind of device that a process which nobody launched computes on."""
    return torch.device(_preferred_kind().torch_type)


def make_current(device: torch.device) -> None:
    """`device` is where new tensors of its kind go."""
    kind_of(device).make_current(device)


def moved(model: nn.Module, device: torch.device) -> nn.Module:
    """`model`, itself, on `device`. Its parameters stay the objects that optimizers may hold already."""
    if kind_of(device).keeps_parameters:
        return model.to(device)
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return model.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def has_accelerator() -> bool:
    return _preferred_kind().one_rank_each


def idle_devices_sentence(device: torch.device) -> str | None:
    """What to tell the user of a process that no launcher started; None when it uses all that it may."""
    kind = kind_of(device)
    num_devices = kind.count() if kind.one_rank_each else 1
    if num_devices <= 1:
        return None
    return (
        f"This process computes on {device} alone, one of {num_devices} {_label(kind)} devices: no launcher started "
        "it. notebook_launcher(function) in a notebook, or `accel-nb launch` in a shell, starts a rank on each."
    )


def empty_cache() -> None:
    """Give device memory that torch keeps for later back. Opens no device that this process has not used."""
    for kind in own_devices().values():
        kind.empty_cache()
    _current_kind().empty_cache()


def memory_figures() -> str:
    """What this process's accelerator and its host have left, for people."""
    host = psutil.virtual_memory()
    held = psutil.Process().memory_info().rss
    texts = [f"this process held {_gib(held)} of host memory, {_gib(host.available)} of {_gib(host.total)} were free"]
    for kind in dict.fromkeys((*own_devices().values(), _current_kind())):
        memory = kind.memory()
        if memory is not None:
            texts.append(
                f"its {kind.kind} device had {_gib(memory.free_bytes)} of {_gib(memory.total_bytes)} free, "
                f"{_gib(memory.allocated_bytes)} in tensors of this process and "
                f"{_gib(memory.reserved_bytes - memory.allocated_bytes)} kept by it for later ones"
            )
    return "; ".join(texts)


def _current_kind() -> Device:
    return find_device(environment.device_kind() or "cpu") or kind_of(torch.device("cpu"))


def _label(kind: Device) -> str:
    return kind.kind.upper()


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def process_group_backend(device: torch.device) -> str:
    return kind_of(device).process_group


def open_process_groups() -> set[str]:
    """torch.distributed's backends for the accelerators that this process has opened."""
    return {kind.process_group for kind in own_devices().values() if kind.is_open()}


def distributed_type(device: torch.device, num_ranks: int) -> DistributedType:
    return DistributedType[kind_of(device).distributed_type] if num_ranks > 1 else DistributedType.NO


def eager_group_device(device: torch.device) -> torch.device | None:
    """`device_id` of ``init_process_group``: binds an NCCL group to its device. None where torch accepts none."""
    return kind_of(device).group_device(device)


def wrapped_device_ids(device: torch.device) -> list[int] | None:
    """`device_ids` of DistributedDataParallel and of ``barrier``: the index of a device that has one."""
    return kind_of(device).module_device_ids(device)


def transport_device(device: torch.device) -> torch.device:
    """Where tensors of `device` must be for torch.distributed's operations."""
    return kind_of(device).transport_device(device)


def computes_in(device: torch.device, precision: str) -> bool:
    """Whether mixed precision of this name is possible on `device`."""
    kind = kind_of(device)
    return precision in kind.precisions and (precision != "bf16" or kind.computes_in_bfloat16())


def seed_accelerator(seed: int) -> None:
    """Seed this rank's accelerator, where ``torch.manual_seed`` does not."""
    _current_kind().seed(seed)


def accelerator_random_state(device: torch.device) -> torch.Tensor | None:
    """State of the generator that draws on `device`; None when that is the CPU's own."""
    return kind_of(device).random_state(device)


def restore_accelerator_random_state(state: torch.Tensor, device: torch.device) -> None:
    kind_of(device).restore_random_state(state, device)


def accelerator_random_states(device: torch.device) -> dict[str, object]:
    """States of the generators of all accelerators that this process sees, by the name that upstream's checkpoints
    (accelerate 1.15) have for them, and which of them is this rank's. Empty on the CPU.
    """
    return kind_of(device).random_states(device)


def restore_accelerator_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Give this rank's accelerator the generator that the saving rank's had. Nothing where there is none."""
    kind_of(device).restore_random_states(states, device)


def storage_id(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory."""
    return kind_of(tensor.device).storage_id(tensor)


def copy_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream on which batches are copied to `device` while it computes; None where copies do not overlap."""
    return kind_of(device).copy_stream(device)


def batch_receiver(device: torch.device) -> Callable[[Iterable[torch.Tensor]], None] | None:
    """What is to be called with the tensors of each batch that has come to `device`; None: nothing."""
    return kind_of(device).batch_receiver(device)


def step_ender(device: torch.device) -> Callable[[], None] | None:
    """What is to be called when an optimizer has stepped; None: nothing."""
    return kind_of(device).step_ender()


def gradient_averager(device: torch.device) -> Callable[[Iterable[torch.Tensor]], None] | None:
    """What averages gradients over all ranks; None: the wrappers of the models do, or there is one rank."""
    return kind_of(device).gradient_averager()
