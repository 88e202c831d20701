"""A model in one file, or in several with an index, as upstream and the Hugging Face Hub lay them out
(``split_torch_state_dict_into_shards`` of huggingface_hub 0.36).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import CheckpointNotFound, InvalidArgument, TrainingError
from . import names
from .saving import save_tensors_whole, save_text_whole, save_whole
from .weights import apart, load_weights, read_weights

_UNITS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


@dataclass
class _Shard:
    size_bytes: int = 0
    tensors: dict[str, Any] = field(default_factory=dict)


def save_model(state: Mapping[str, Any], folder: Path, max_shard_size: int | str, *, safe: bool) -> None:
    """Write `state` into `folder`, and remove shards that an earlier save left there.

    InvalidArgument for a size that cannot be understood; TrainingError for tensors without data.
    """
    limit_bytes = size_in_bytes(max_shard_size)
    if folder.exists() and not folder.is_dir():
        raise InvalidArgument(f"save_directory={str(folder)!r} is a file; give a folder.")
    meta = [name for name, tensor in state.items() if isinstance(tensor, torch.Tensor) and tensor.is_meta]
    if meta:
        raise TrainingError(
            f"the model cannot be saved: {meta[0]!r} and {len(meta) - 1} other tensors are on the meta device, where "
            "tensors have no data."
        )
    tensors = apart(state) if safe else dict(state)
    pattern = names.SAFE_WEIGHTS_PATTERN_NAME if safe else names.WEIGHTS_PATTERN_NAME
    shards = split(tensors, limit_bytes)
    files = {pattern.format(suffix=_suffix(index, len(shards))): shard for index, shard in enumerate(shards, 1)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, shard in files.items():
        (save_tensors_whole if safe else save_whole)(shard.tensors, folder / name)
    index_name = names.SAFE_WEIGHTS_INDEX_NAME if safe else names.WEIGHTS_INDEX_NAME
    if len(shards) > 1:
        save_text_whole(_index(files), folder / index_name)
    _remove_older(folder, pattern, keep={*files, index_name} if len(shards) > 1 else set(files), index_name=index_name)


def _suffix(index: int, num_shards: int) -> str:
    return f"-{index:05d}-of-{num_shards:05d}" if num_shards > 1 else ""


def load_checkpoint_in_model(
    model: nn.Module,
    checkpoint: str | os.PathLike[str],
    device_map: Mapping[str, Any] | None = None,
    dtype: torch.dtype | str | None = None,
    strict: bool = False,
    **offloading: object,
) -> None:
    """Load into `model`, which is not wrapped, what `save_model`, ours or upstream's, wrote.

    Parameters are those of ``accelerate.load_checkpoint_in_model`` (1.15), without spreading a model over devices:
    TrainingError for a `device_map` or for `offloading`. `checkpoint`: a file, an index, or a folder with either.
    `dtype`: convert floating-point tensors to it first. `strict`: as ``load_state_dict``'s. CheckpointNotFound when
    there is no such file.
    """
    given = {"device_map": device_map, **offloading}
    asked = [f"{name}={value!r}" for name, value in given.items() if value not in (None, False, "", {}, {"": "cpu"})]
    if asked:
        raise TrainingError(f"load_checkpoint_in_model({', '.join(asked)}): accel_nb spreads no model over devices.")
    found: dict[str, torch.Tensor] = {}
    for file in _files_of(Path(checkpoint)):
        found |= read_weights(file)
    if dtype is not None:
        wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        found = {name: one.to(wanted) if one.is_floating_point() else one for name, one in found.items()}
    load_weights(model, found, strict=strict)


def _files_of(checkpoint: Path) -> list[Path]:
    if checkpoint.is_dir():
        known = (names.SAFE_WEIGHTS_NAME, names.SAFE_WEIGHTS_INDEX_NAME, names.WEIGHTS_NAME, names.WEIGHTS_INDEX_NAME)
        file = next((checkpoint / name for name in known if (checkpoint / name).is_file()), None)
        if file is None:
            raise CheckpointNotFound(f"there is no model in {checkpoint}: none of {', '.join(known)}.")
        checkpoint = file
    if not checkpoint.is_file():
        raise CheckpointNotFound(f"there is no file {checkpoint} to load a model from.")
    if checkpoint.suffix != ".json":
        return [checkpoint]
    shards = json.loads(checkpoint.read_text(encoding="utf-8"))["weight_map"].values()
    return [checkpoint.parent / shard for shard in sorted(set(shards))]


def size_in_bytes(size: int | str) -> int:
    """`size` itself, or that of a text such as "10GB", "5 MiB". InvalidArgument for another one, and below 1."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(size))
    unit = (match[2] or "B").upper() if match else ""
    if match is None or unit not in _UNITS or (num_bytes := int(float(match[1]) * _UNITS[unit])) < 1:
        raise InvalidArgument(
            f"max_shard_size={size!r} is no size; give bytes, or a number with B, KB, MB, GB, TB, KiB, MiB, GiB or TiB."
        )
    return num_bytes


def split(tensors: Mapping[str, Any], limit_bytes: int) -> list[_Shard]:
    """`tensors` in order, each shard as full as it can be. A larger one has a shard to itself; names of one memory stay
    together.
    """
    shards: list[_Shard] = []
    current = _Shard()
    home: dict[object, _Shard] = {}
    for name, tensor in tensors.items():
        storage, size_bytes = _storage(tensor)
        if storage in home:
            home[storage].tensors[name] = tensor
            continue
        if size_bytes > limit_bytes:
            home[storage] = _Shard(size_bytes, {name: tensor})
            shards.append(home[storage])
            continue
        if current.size_bytes + size_bytes > limit_bytes:
            shards.append(current)
            current = _Shard()
        current.size_bytes += size_bytes
        current.tensors[name] = tensor
        home[storage] = current
    if current.tensors or not shards:
        shards.append(current)
    return shards


def _storage(tensor: Any) -> tuple[object, int]:  # noqa: ANN401  states may hold more than tensors
    if not isinstance(tensor, torch.Tensor):
        return object(), 0
    size_bytes = tensor.numel() * tensor.element_size()
    return ((tensor.device, tensor.untyped_storage().data_ptr()) if size_bytes else object()), size_bytes


def _index(files: Mapping[str, _Shard]) -> str:
    content = {
        "metadata": {"total_size": sum(shard.size_bytes for shard in files.values())},
        "weight_map": {name: file for file, shard in files.items() for name in shard.tensors},
    }
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def _remove_older(folder: Path, pattern: str, *, keep: set[str], index_name: str) -> None:
    """Shards and index of an earlier save that had other ones; and the single file, if there are shards now."""
    before, _, after = pattern.partition("{suffix}")
    older = re.compile(rf"{re.escape(before)}(-\d{{5}}-of-\d{{5}})?{re.escape(after)}")
    for file in folder.iterdir():
        if file.name not in keep and file.is_file() and (older.fullmatch(file.name) or file.name == index_name):
            file.unlink()
