"""``torch.load`` that runs no code from the file, unless it is told to."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import IO, Any

import torch

from ...errors import CheckpointError


def read_file(file: Path | IO[bytes], **torch_load_kwargs: Any) -> Any:  # noqa: ANN401  whatever was saved
    """What `file`, written by torch.save, holds. Only tensors, plain values and NumPy arrays, by default.

    `torch_load_kwargs`: torch.load's; with ``weights_only=False`` any class, and the code that it brings, is loaded.
    CheckpointError when the file holds something else, or is no such file.
    """
    arguments: dict[str, Any] = {"map_location": "cpu", "weights_only": True} | torch_load_kwargs
    try:
        with torch.serialization.safe_globals(_numpy_globals()):
            return torch.load(file, **arguments)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{file} holds more than tensors and plain values: {_first_line(error)} If you trust whoever wrote it, "
            'load it with weights_only=False (of load_state: load_kwargs={"weights_only": False}).'
        ) from error
    except (RuntimeError, EOFError) as error:
        raise CheckpointError(f"{file} cannot be read, it is damaged or no file of torch.save: {error}") from error


def _numpy_globals() -> list[Any]:
    """What NumPy's arrays and numbers are unpickled by: they are values, and NumPy's random state is one of them."""
    try:
        import numpy as np
    except ImportError:
        return []
    from _codecs import encode  # protocol 2 writes bytes as text to be encoded

    rebuild = np.array([]).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    kinds = {type(np.dtype(code)) for code in np.typecodes["AllInteger"] + "?fd"}
    return [rebuild, scalar, np.ndarray, np.dtype, encode, *kinds]


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]
