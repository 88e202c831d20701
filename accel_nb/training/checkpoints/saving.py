"""Write a file whole or not at all."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

from ...errors import TrainingError
from ..ranks.state import PartialState
from .durable import sync_file, sync_folder
from .reading import read_file
from .weights import apart, read_weights, write_tensors

_logger = logging.getLogger(__name__)


def save(
    obj: Any,  # noqa: ANN401  anything that can be pickled
    f: str | os.PathLike[str] | IO[bytes],
    save_on_each_node: bool = False,
    safe_serialization: bool = False,
) -> None:
    """``torch.save`` by the main process; the others do nothing. A path has the old content or all of the new.

    Parameters are those of ``accelerate.utils.save`` (1.15). `save_on_each_node`: by the first rank of each machine.
    `safe_serialization`: `obj`, a mapping of names to tensors, as safetensors; TrainingError when that is not
    installed, TypeError for another kind of `obj` or of `f`.
    """
    state = PartialState()
    if not (state.is_local_main_process if save_on_each_node else state.is_main_process):
        return
    if safe_serialization:
        save_tensors_whole(obj, f)
    else:
        save_whole(obj, f)


def save_whole(value: object, file: str | os.PathLike[str] | IO[bytes]) -> None:
    """``torch.save``, but a path appears under its name only once it is complete. A file object is written directly."""
    if not isinstance(file, str | os.PathLike):
        torch.save(value, file)
        return
    with _Replacement(Path(file)) as unfinished:
        torch.save(value, unfinished)


def save_tensors_whole(tensors: Any, file: str | os.PathLike[str] | IO[bytes]) -> None:  # noqa: ANN401
    """`tensors` by name as safetensors, in a path that appears only once it is complete."""
    if not isinstance(tensors, Mapping):
        raise TypeError(
            f"safetensors hold named tensors, got {type(tensors).__name__}; give a mapping such as a state_dict."
        )
    if not isinstance(file, str | os.PathLike):
        raise TypeError(f"safetensors are written to a path, got {type(file).__name__}.")
    with _Replacement(Path(file)) as unfinished:
        write_tensors(clean_state_dict_for_safetensors(tensors), unfinished)


def clean_state_dict_for_safetensors(state_dict: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """`state_dict` as safetensors takes it: contiguous tensors, each under the first of its names. The other names are
    told by a warning. TrainingError for a value that is no tensor.
    """
    kept = apart(state_dict)
    if removed := [name for name in state_dict if name not in kept]:
        _logger.warning(
            "Removed shared tensor names %s: safetensors keep a tensor once. A model that ties these weights shares "
            "them again when it loads the others.",
            removed,
        )
    return kept


def load(f: str | os.PathLike[str] | IO[bytes], map_location: Any = None, **kwargs: Any) -> Any:  # noqa: ANN401
    """``torch.load(f, map_location, **kwargs)`` that runs no code from the file unless ``weights_only=False`` is given;
    NumPy's arrays are values, too. CheckpointError for what cannot be read like that.
    """
    return read_file(Path(f) if isinstance(f, str | os.PathLike) else f, map_location=map_location, **kwargs)


def load_state_dict(
    checkpoint_file: str | os.PathLike[str], device_map: Mapping[str, torch.device | str | int] | None = None
) -> dict[str, torch.Tensor]:
    """The named tensors in a file of safetensors or of torch.save, on the CPU.

    `device_map`: ``{"": device}`` puts all of them there. TrainingError for one that spreads them over devices, which
    is not part of this version.
    """
    if device_map is not None and list(device_map) != [""]:
        raise TrainingError(
            f"load_state_dict(device_map={device_map!r}): spreading weights over devices is not part of this version "
            'of accel_nb; {"": device} puts all on one.'
        )
    device = "cpu" if device_map is None else device_map[""]
    return read_weights(Path(checkpoint_file), torch.device(device))


def save_text_whole(text: str, file: Path) -> None:
    with _Replacement(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


class _Replacement:
    """Within the block a path to write to, which takes the place of `path` at its end, unless the block raised."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")

    def __enter__(self) -> Path:
        return self._unfinished

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                sync_file(self._unfinished)
                self._unfinished.replace(self._path)
                sync_folder(self._path.parent)
        finally:
            self._unfinished.unlink(missing_ok=True)
