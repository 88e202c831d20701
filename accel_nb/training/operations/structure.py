"""What nested data is made of: shapes, dtypes, devices, lengths. No tensor is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from .nested import (
    Data,
    children,
    ignorant_find_batch_size,
    is_container,
    is_torch_tensor,
    leaves,
    map_tensors,
    recursively_apply,
    tensors,
)


@dataclass
class TensorInformation:
    """Stands for a tensor whose values are not at hand."""

    shape: torch.Size
    dtype: torch.dtype


def is_tensor_information(tensor_info: Data) -> bool:
    return isinstance(tensor_info, TensorInformation)


def get_data_structure(data: Data) -> Data:
    """`data` with a `TensorInformation` in place of each tensor; `initialize_tensors` is the way back."""
    return map_tensors(lambda tensor: TensorInformation(shape=tensor.shape, dtype=tensor.dtype), data)


def get_shape(data: Data) -> Data:
    """`data` with the shape of each tensor, as a list, in its place."""
    return map_tensors(lambda tensor: list(tensor.shape), data)


def initialize_tensors(data_structure: Data) -> Data:
    """`data_structure` with an uninitialised CPU tensor in place of each `TensorInformation`."""
    return recursively_apply(
        lambda info: torch.empty(info.shape, dtype=info.dtype), data_structure, test_type=is_tensor_information
    )


def find_batch_size(data: Data) -> int:
    """Length of the first tensor in `data` that has a dimension.

    ValueError when `data` is empty or its tensors have no dimension, TypeError when it holds no tensor.
    `ignorant_find_batch_size` gives None instead.
    """
    size = ignorant_find_batch_size(data)
    if size is not None:
        return size
    found = list(leaves(data))
    if not found or any(is_torch_tensor(leaf) for leaf in found):
        raise ValueError(f"there is no batch size in {data!r:.80}: it is empty, or its tensors have no dimension.")
    raise TypeError(f"there is no batch size in {data!r:.80}: it holds no tensor, but {type(found[0]).__name__}.")


def find_device(data: Data) -> torch.device | None:
    """The device of the first tensor in `data`; None when there is none."""
    return next((tensor.device for tensor in tensors(data)), None)


def shape_and_dtype(tensor: torch.Tensor) -> str:
    return f"{'nested' if tensor.is_nested else list(tensor.shape)} {_name(tensor.dtype)}"


def dims_and_dtype(tensor: torch.Tensor) -> str:
    return f"{tensor.dim()}-d {_name(tensor.dtype)}"


def describe(data: Data, of_tensor: Callable[[torch.Tensor], str] = shape_and_dtype) -> str:
    """Structure, shapes and dtypes of `data` in one line, as in ``{'x': [4, 2] float32, 'y': (None, [] int64)}``.

    `of_tensor` describes one tensor. Leaves that are no tensors are named by their type.
    """
    if isinstance(data, torch.Tensor):
        return of_tensor(data)
    if not is_container(data):
        return "None" if data is None else type(data).__name__
    parts = [(key, describe(child, of_tensor)) for key, child in children(data)]
    if isinstance(data, Mapping):
        return "{" + ", ".join(f"{key!r}: {text}" for key, text in parts) + "}"
    inside = ", ".join(text for _, text in parts)
    if type(data) is list:
        return f"[{inside}]"
    return f"({inside})" if type(data) is tuple else f"{type(data).__name__}({inside})"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
