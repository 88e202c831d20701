"""Cut, join and fill up nested batches, on this rank alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

import torch

from .nested import (
    Data,
    children,
    convert_to_fp32,
    honor_type,
    is_container,
    map_children,
    map_only_tensors,
    map_tensors,
)


def slice_tensors(
    data: Data, tensor_slice: slice, process_index: int | None = None, num_processes: int | None = None
) -> Data:
    """`data` with ``tensor[tensor_slice]`` for each tensor; views, no copies.

    The last two are for the signature that a loader's own slicing function has (``slice_fn_for_dispatch``).
    """
    del process_index, num_processes
    return map_tensors(lambda tensor: tensor[tensor_slice], data)


def concatenate(data: Sequence[Data], dim: int = 0) -> Data:
    """Batches of one structure joined to one, tensor by tensor, along `dim`.

    A single batch comes back as it is, whatever it holds. TypeError when several hold what is no tensor, ValueError
    when there is none or their structures differ.
    """
    if not data:
        raise ValueError("concatenate needs at least one batch.")
    first = data[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(tuple(data), dim=dim)
    if isinstance(first, list | tuple):
        _check_alike("lengths", [len(one) for one in data])
        return honor_type(first, [concatenate([one[index] for one in data], dim) for index in range(len(first))])
    if is_container(first):
        fields = [dict(children(one)) if is_container(one) else {} for one in data]
        _check_alike("keys", [sorted(one, key=str) for one in fields])
        joined = iter([concatenate([one[key] for one in fields], dim) for key in fields[0]])
        return map_children(lambda _: next(joined), first)
    if len(data) == 1:
        return first
    raise TypeError(
        f"concatenate joins tensors, also nested ones; it was given a {type(first).__name__}: {first!r:.80}"
    )


def _check_alike(what: str, given: list[object]) -> None:
    if any(one != given[0] for one in given):
        raise ValueError(f"concatenate needs batches of one structure; their {what} are {given!r:.200}.")


def pad_input_tensors(tensor: Data, batch_size: int, num_processes: int, dim: int = 0) -> Data:
    """`tensor` (any nested data) with `batch_size` rows along `dim`, made as many as `num_processes` ranks can share
    equally. Its last row is repeated; what is long enough comes back as it is.

    TypeError for what is no tensor.
    """
    missing = -batch_size % num_processes

    def padded(one: torch.Tensor) -> torch.Tensor:
        if not missing:
            return one
        return torch.cat([one, *[one.narrow(dim, one.shape[dim] - 1, 1)] * missing], dim)

    return map_only_tensors(padded, tensor, "pad_input_tensors")


def listify(data: Data) -> Data:
    """`data` with the numbers of each tensor, as a nested list, in its place."""
    return map_tensors(lambda tensor: tensor.detach().cpu().tolist(), data)


class ConvertOutputsToFp32:
    """A function whose half-precision results are turned into float32."""

    def __init__(self, model_forward: Callable[..., Any]) -> None:
        self.model_forward = model_forward
        update_wrapper(self, model_forward)

    def __call__(self, *args: Data, **kwargs: Data) -> Data:
        return convert_to_fp32(self.model_forward(*args, **kwargs))


def convert_outputs_to_fp32(model_forward: Callable[..., Any]) -> ConvertOutputsToFp32:
    """Decorator: results of `model_forward` in half precision, also nested ones, become float32. It can be pickled as
    far as `model_forward` can; ``__wrapped__`` is that.
    """
    return ConvertOutputsToFp32(model_forward)
