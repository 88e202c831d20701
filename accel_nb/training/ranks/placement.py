"""Which device a rank computes on, and what follows from its kind.

The only module of the training layer that knows kinds of hardware. It is the border to `accel_nb.devices`: everything
else asks for a `torch.device` or takes the values below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil
import torch

from ...errors import TrainingError
from .distributed_type import DistributedType

_PROCESS_GROUPS = {"cpu": "gloo", "cuda": "nccl"}
"""Device type -> torch.distributed's backend."""

_DISTRIBUTED_TYPES = {"cpu": DistributedType.MULTI_CPU, "cuda": DistributedType.MULTI_GPU}


def choose_device(*, cpu: bool, local_rank: int | None, named: str = "") -> torch.device:
    """The device of the rank `local_rank` of this machine (None: no launcher started this process), made current.

    `named` by ``ACCELERATE_TORCH_DEVICE``: that one; without a number, the rank's of that kind. With `cpu`,
    accelerators are not even looked at. Raises TrainingError for one that is not there, and when the machine shows
    fewer devices than it runs ranks.
    """
    wanted = _device_named(named) if named else torch.device("cuda")
    if cpu:
        return wanted if wanted.type == "cpu" else torch.device("cpu")
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if named and num_devices <= (wanted.index or 0):
        raise TrainingError(
            f"ACCELERATE_TORCH_DEVICE={named!r} names a device that this process does not see: it sees {num_devices} "
            "CUDA devices. Name another one, or unset it."
        )
    if num_devices == 0:
        return torch.device("cpu")
    if ":" in named:
        make_current(wanted)
        return wanted
    index = torch.cuda.current_device() if local_rank is None else local_rank
    if index >= num_devices:
        raise TrainingError(
            f"local rank {index} has no CUDA device of its own: {num_devices} visible. "
            "Start at most one rank per device, or compute on the CPU with Accelerator(cpu=True)."
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _device_named(name: str) -> torch.device:
    kind, _, number = name.partition(":")
    if kind not in _PROCESS_GROUPS or (":" in name and not number.isdecimal()):
        raise TrainingError(
            f"ACCELERATE_TORCH_DEVICE={name!r} is no device of this version of accel_nb; set it to one of "
            f"{', '.join(_PROCESS_GROUPS)}, with a number or without, such as 'cuda:1', or unset it."
        )
    return torch.device(name)


def default_device() -> torch.device:
    """The kind of device that a process which nobody launched computes on."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_current(device: torch.device) -> None:
    """`device` is where new tensors of its kind go."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def has_accelerator() -> bool:
    return torch.cuda.is_available()


def idle_devices_sentence(device: torch.device) -> str | None:
    """What to tell the user of a process that no launcher started; None when it uses all that it may."""
    num_devices = torch.cuda.device_count() if device.type == "cuda" else 1
    if num_devices == 1:
        return None
    return (
        f"This process computes on {device} alone, one of {num_devices} CUDA devices: no launcher started it. "
        "notebook_launcher(function) in a notebook, or `accel-nb launch` in a shell, starts a rank on each."
    )


def empty_cache() -> None:
    """Give device memory that torch keeps for later back. Opens no device that this process has not used."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def memory_figures() -> str:
    """What this process's accelerator and its host have left, for people."""
    host = psutil.virtual_memory()
    held = psutil.Process().memory_info().rss
    texts = [f"this process held {_gib(held)} of host memory, {_gib(host.available)} of {_gib(host.total)} were free"]
    if torch.cuda.is_initialized():
        device = torch.cuda.current_device()
        free, total = torch.cuda.mem_get_info(device)
        allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        texts.append(
            f"cuda:{device} had {_gib(free)} of {_gib(total)} free, {_gib(allocated)} in tensors of this process and "
            f"{_gib(reserved - allocated)} kept by it for later ones"
        )
    return "; ".join(texts)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def process_group_backend(device: torch.device) -> str:
    return _PROCESS_GROUPS[device.type]


def distributed_type(device: torch.device, num_ranks: int) -> DistributedType:
    return _DISTRIBUTED_TYPES[device.type] if num_ranks > 1 else DistributedType.NO


def eager_group_device(device: torch.device) -> torch.device | None:
    """`device_id` of ``init_process_group``: binds an NCCL group to its device. None where torch accepts none."""
    return device if device.type == "cuda" else None


def wrapped_device_ids(device: torch.device) -> list[int] | None:
    """`device_ids` of DistributedDataParallel and of ``barrier``: the index of a device that has one."""
    return [device.index] if device.type == "cuda" else None


def computes_in_bfloat16(device: torch.device) -> bool:
    return device.type == "cpu" or torch.cuda.is_bf16_supported()


def accelerator_random_state(device: torch.device) -> torch.Tensor | None:
    """State of the generator that draws on `device`; None when that is the CPU's own."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def restore_accelerator_random_state(state: torch.Tensor, device: torch.device) -> None:
    torch.cuda.set_rng_state(state, device)


def accelerator_random_states(device: torch.device) -> dict[str, object]:
    """States of the generators of all accelerators that this process sees, by the name that upstream's checkpoints
    (accelerate 1.15) have for them, and which of them is this rank's. Empty on the CPU.
    """
    if device.type != "cuda":
        return {}
    return {"torch_cuda_manual_seed": torch.cuda.get_rng_state_all(), "device_index": device.index}


def restore_accelerator_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Give this rank's accelerator the generator that the saving rank's had. Nothing where there is none."""
    of_all = states.get("torch_cuda_manual_seed")
    if device.type == "cuda" and of_all:
        index = states.get("device_index", device.index)  # upstream's: each rank had the device of its number
        torch.cuda.set_rng_state(of_all[index if index < len(of_all) else 0].cpu(), device)


def copy_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream on which batches are copied to `device` while it computes; None where copies do not overlap."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None
