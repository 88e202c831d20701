"""A model's state in a file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import TrainingError
from ..ranks import placement
from .reading import read_file

WITHOUT_SAFETENSORS = (
    "safetensors is not installed, so models are saved by torch.save, as pytorch_model.bin; "
    "`pip install accel-nb[checkpoints]` for model.safetensors, or say safe_serialization=False."
)


def has_safetensors() -> bool:
    try:
        return find_spec("safetensors") is not None
    except ValueError:  # somebody put a module without a spec under that name
        return False


def write_tensors(tensors: Mapping[str, Any], file: Path) -> None:
    """`tensors` as safetensors. Of a tensor with several names (tied weights) the first is kept, as upstream does.

    TrainingError when safetensors is not installed, or a value is no tensor.
    """
    if not has_safetensors():
        raise TrainingError(
            "safe_serialization=True needs safetensors: `pip install accel-nb[checkpoints]`, or use torch.save with "
            "safe_serialization=False."
        )
    from safetensors.torch import save_file

    kept = {name: tensor.to(placement.transport_device(tensor.device)) for name, tensor in apart(tensors).items()}
    save_file(kept, file, metadata={"format": "pt"})


def apart(tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """`tensors` as safetensors takes them: contiguous, sharing no memory, each of several names' first only."""
    kept: dict[str, torch.Tensor] = {}
    seen: set[object] = set()
    storages: set[object] = set()
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TrainingError(
                f"safetensors hold tensors only, and {name!r} is a {type(tensor).__name__}. Use "
                "safe_serialization=False."
            )
        if _identity(tensor) in seen:
            continue
        seen.add(_identity(tensor))
        # Another part of the same memory is no alias: upstream (1.15) drops it, and with it its values.
        storage = _storage(tensor)
        kept[name] = _copied(tensor) if storage in storages else tensor.detach().contiguous()
        storages.add(storage)
    return kept


def read_weights(file: Path, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """The tensors that `file`, of safetensors or of torch.save, holds by name."""
    if file.suffix == ".safetensors":
        if not has_safetensors():
            raise TrainingError(f"{file} needs safetensors: `pip install accel-nb[checkpoints]`.")
        from safetensors.torch import load_file

        return load_file(file, device=str(device))
    loaded: dict[str, torch.Tensor] = read_file(file, map_location=device)
    return loaded


def load_weights(model: nn.Module, weights: Mapping[str, torch.Tensor], **load_state_dict_kwargs: Any) -> None:  # noqa: ANN401
    """``model.load_state_dict``, whether the names are those of the wrapped model or of the model itself, and with each
    name of a tied weight.
    """
    own: dict[str, Any] = model.state_dict()
    found = dict(_named_like(own, weights))
    by_identity = {
        _identity(tensor): found[name]
        for name, tensor in own.items()
        if name in found and isinstance(tensor, torch.Tensor) and tensor.numel()
    }
    for name, tensor in own.items():
        if name not in found and isinstance(tensor, torch.Tensor) and _identity(tensor) in by_identity:
            found[name] = by_identity[_identity(tensor)]
    model.load_state_dict(found, **load_state_dict_kwargs)


def _named_like(own: Mapping[str, Any], weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """`weights` with the prefixes that wrappers give their model's names, or without, as `own` has it."""
    for prefix in ("module.", "_orig_mod."):  # DistributedDataParallel's and torch.compile's
        if not own or not weights or own.keys() & weights.keys():
            return weights
        if all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
        elif all(name.startswith(prefix) for name in own):
            weights = {prefix + name: tensor for name, tensor in weights.items()}
    return weights


def _identity(tensor: torch.Tensor) -> object:
    """Equal for two names of one tensor. Nothing is an alias of what has no elements."""
    if not tensor.numel():
        return object()
    place = placement.storage_id(tensor), tensor.storage_offset()
    return tensor.device, *place, tensor.dtype, tensor.shape, tensor.stride()


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _storage(tensor: torch.Tensor) -> object:
    return (tensor.device, placement.storage_id(tensor)) if tensor.numel() else object()
