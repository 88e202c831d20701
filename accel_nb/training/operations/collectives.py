"""Operations of all ranks together, over nested data, for whoever has no `Accelerator` at hand.

Inputs are never changed and results never carry gradients. A 0-d tensor counts as one row. Every rank has to call
the same operation with the same structure and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import cast

import torch

from ...errors import DistributedOperationException
from ..ranks.state import PartialState
from .nested import Data
from .structure import describe
from .transport import REDUCTIONS, Collectives, SingleProcess, TorchCollectives, collectives_of

__all__ = [
    "REDUCTIONS", "Collectives", "SingleProcess", "TorchCollectives", "broadcast", "broadcast_object_list",
    "chained_operation", "collectives_of", "copy_tensor_to_devices", "gather", "gather_object", "pad_across_processes",
    "reduce", "verify_operation", "wait_for_everyone",
]  # fmt: skip


def gather(tensor: Data) -> Data:
    """`tensor` (any nested data) with each tensor replaced by those of all ranks, joined along dimension 0 by rank.

    None stays None; TypeError for any other value: `gather_object` gathers those.
    """
    return _current().gather(tensor)


def gather_object(object: Sequence[Data]) -> list[Data]:  # noqa: A002  upstream's parameter name
    """The lists of all ranks joined into one, by rank; items travel by pickle.

    TypeError for anything but a list or tuple.
    """
    if not isinstance(object, list | tuple):
        raise TypeError(
            f"gather_object joins the lists of all ranks, got {type(object).__name__}. "
            "For one value per rank, pass it in a list: gather_object([value])."
        )
    return [item for part in _current().gather_object(object) for item in cast("Sequence[Data]", part)]


def broadcast(tensor: Data, from_process: int = 0) -> Data:
    """`tensor` (any nested data, alike on all ranks) with the tensors of rank `from_process`.

    ValueError when there is no such rank, TypeError for values that are neither tensors nor None.
    """
    return _current().broadcast(tensor, from_process)


def broadcast_object_list(object_list: list[object], from_process: int = 0) -> list[object]:
    """Replace the items of `object_list`, in place, by those of rank `from_process`; returns `object_list`.

    ValueError when there is no such rank.
    """
    object_list[:] = cast("list[object]", _current().broadcast_object(object_list, from_process))
    return object_list


def copy_tensor_to_devices(tensor: torch.Tensor | None = None) -> torch.Tensor:
    """The tensor that one rank gives, on each rank's device; the others give None and need not know its shape.

    ValueError on all ranks when not exactly one rank gives a tensor.
    """
    state = PartialState()
    given = _current().gather_object(None if tensor is None else (list(tensor.shape), tensor.dtype))
    sources = [rank for rank, one in enumerate(given) if one is not None]
    if len(sources) != 1:
        raise ValueError(f"copy_tensor_to_devices needs a tensor of exactly one rank, but it is given by {sources}.")
    shape, dtype = cast("tuple[list[int], torch.dtype]", given[sources[0]])
    own = torch.empty(shape, dtype=dtype, device=state.device) if tensor is None else tensor.to(state.device)
    return _current().broadcast(own, sources[0])


def reduce(tensor: Data, reduction: str = "mean", scale: float = 1.0) -> Data:
    """`tensor` (any nested data) with each tensor combined over all ranks, then multiplied by `scale`.

    `reduction` is "sum", "mean", "max" or "min". dtypes are kept, but a sum of bools counts (int64), and a mean or a
    scaled result of integers is a float. Half precision is added up in float32. ValueError for another reduction,
    TypeError for values that are neither tensors nor None.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r} is unknown; choose one of {', '.join(map(repr, REDUCTIONS))}.")
    return _current().reduce(tensor, reduction, scale)


def pad_across_processes(tensor: Data, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Data:
    """`tensor` (any nested data) with each tensor as long along `dim` as the longest rank's, filled with `pad_index`
    at its end, or with `pad_first` at its beginning. dtypes are kept.

    A tensor that is long enough, or has no dimension `dim`, comes back as it is; one of ``torch.nested`` does with
    `CannotPadNestedTensorWarning`. DistributedOperationException on all ranks when their structures or numbers of
    dimensions differ, TypeError for values that are neither tensors nor None.
    """
    return _current().pad(tensor, dim, pad_index, pad_first)


def wait_for_everyone() -> None:
    """Return once every rank has called this."""
    PartialState().wait_for_everyone()


def verify_operation(function: Callable[..., Data]) -> Callable[..., Data]:
    """Decorator for operations of all ranks, made of torch.distributed's: with checks on (`PartialState.debug`), ranks
    compare `function`'s argument `tensor`, or its first one, before it is called.

    What differs raises DistributedOperationException on all of them, with `function`'s dotted name.
    """

    @wraps(function)
    def verified(*args: Data, **kwargs: Data) -> Data:
        given = kwargs["tensor"] if "tensor" in kwargs else args[0] if args else None
        _current().agree(f"{function.__module__}.{function.__qualname__}", describe(given))
        return function(*args, **kwargs)

    return verified


def chained_operation(function: Callable[..., Data]) -> Callable[..., Data]:
    """Decorator: a DistributedOperationException of an operation within `function` names that as well."""

    @wraps(function)
    def named(*args: Data, **kwargs: Data) -> Data:
        try:
            return function(*args, **kwargs)
        except DistributedOperationException as error:
            error.add_note(f"It was called by {function.__module__}.{function.__qualname__}.")
            raise

    return named


def _current() -> Collectives:
    return PartialState().collectives
