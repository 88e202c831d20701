"""Walk nested lists, tuples, named tuples, mappings and dataclasses of tensors. Inputs are never changed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch

Data = Any
"""Whatever a batch or a model's output is made of."""
Rebuilt = TypeVar("Rebuilt")


def map_leaves(function: Callable[[Data], Data], data: Data) -> Data:
    """`data` with `function` applied to everything that is no container; containers keep their types."""
    if is_container(data):
        return map_children(lambda child: map_leaves(function, child), data)
    return function(data)


def map_children(function: Callable[[Data], Data], data: Data, kept: Collection[Data] = ()) -> Data:
    """The container `data` with `function` applied to what it directly holds, but under the keys `kept` of a mapping.
    What is no container comes back as it is.
    """
    if isinstance(data, Mapping):
        return _like_mapping(data, {key: one if key in kept else function(one) for key, one in data.items()})
    if isinstance(data, list | tuple):
        return honor_type(data, [function(item) for item in data])
    if is_container(data):
        return _like_dataclass(data, {name: function(one) for name, one in children(data)})
    return data


def map_tensors(function: Callable[[torch.Tensor], Data], data: Data) -> Data:
    """`data` with `function` applied to its tensors; everything else is passed on as it is."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, data)


def map_only_tensors(function: Callable[[torch.Tensor], Data], data: Data, operation: str) -> Data:
    """`data` with `function` applied to its tensors. None stays None; TypeError for any other leaf: ranks would go on
    with values of their own, and nobody would be told.
    """

    def applied(leaf: Data) -> Data:
        if isinstance(leaf, torch.Tensor):
            return function(leaf)
        if leaf is None:
            return None
        raise TypeError(
            f"{operation} works on tensors, also nested ones; it was given a {type(leaf).__name__} ({leaf!r:.80}). "
            "For other values use gather_object([value]) or broadcast_object_list([value])."
        )

    return map_leaves(applied, data)


def recursively_apply(
    func: Callable[..., Data],
    data: Data,
    *args: Data,
    test_type: Callable[[Data], bool] | None = None,
    error_on_other_type: bool = False,
    **kwargs: Data,
) -> Data:
    """`data` with ``func(leaf, *args, **kwargs)`` for each leaf that `test_type` (None: `is_torch_tensor`) says yes to.

    Others are passed on as they are; with `error_on_other_type` they raise TypeError. A dataclass that `test_type`
    accepts is a leaf.
    """
    wanted = is_torch_tensor if test_type is None else test_type

    def visit(data: Data) -> Data:
        if not isinstance(data, Mapping | list | tuple) and wanted(data):
            return func(data, *args, **kwargs)
        if is_container(data):
            return map_children(visit, data)
        if error_on_other_type:
            raise TypeError(
                f"{getattr(func, '__name__', func)} cannot be applied to a {type(data).__name__} ({data!r:.80}), only "
                f"to what {getattr(wanted, '__name__', wanted)} accepts, also nested in lists, tuples and dicts."
            )
        return data

    return visit(data)


def honor_type(obj: Data, generator: Iterable[Data]) -> Data:
    """A list, tuple or named tuple of the type of `obj` with the items of `generator`."""
    return type(obj)(*generator) if is_namedtuple(obj) else type(obj)(generator)


def leaves(data: Data) -> Iterator[Data]:
    """Everything in `data` that is no container, in order."""
    if not is_container(data):
        yield data
        return
    for _, child in children(data):
        yield from leaves(child)


def children(data: Data) -> Iterator[tuple[Data, Data]]:
    """What the container `data` directly holds, each with its key, position or field name."""
    if isinstance(data, Mapping):
        yield from data.items()
    elif isinstance(data, list | tuple):
        yield from enumerate(data)
    else:
        names = (field.name for field in dataclasses.fields(data))
        yield from ((name, getattr(data, name)) for name in names if hasattr(data, name))


def tensors(data: Data) -> Iterator[torch.Tensor]:
    return (leaf for leaf in leaves(data) if isinstance(leaf, torch.Tensor))


def is_container(data: Data) -> bool:
    return isinstance(data, Mapping | list | tuple) or (
        dataclasses.is_dataclass(data) and not isinstance(data, type | torch.Tensor)
    )


def is_namedtuple(data: Data) -> bool:
    """Whether `data` is a named tuple: they have no common base class."""
    return isinstance(data, tuple) and hasattr(data, "_fields")


def is_torch_tensor(tensor: Data) -> bool:
    return isinstance(tensor, torch.Tensor)


def ignorant_find_batch_size(data: Data) -> int | None:
    """Length of the first tensor that has a dimension; None when there is none."""
    return next((tensor.shape[0] for tensor in tensors(data) if tensor.dim() > 0), None)


def send_to_device(
    tensor: Data,
    device: torch.device | str | int,
    non_blocking: bool = False,
    skip_keys: str | Collection[str] | None = None,
) -> Data:
    """`tensor` (any nested data) with its tensors on `device`.

    Objects of other types that can move themselves by a method ``to(device)``, such as the batches of tokenizers,
    are asked to. `skip_keys`: what mappings hold under these keys, at any depth, stays where it is.
    """
    kept = (skip_keys,) if isinstance(skip_keys, str) else skip_keys or ()

    def moved(data: Data) -> Data:
        if isinstance(data, torch.Tensor):
            return data.to(device, non_blocking=non_blocking)
        if _moves_itself(data) and not (kept and isinstance(data, Mapping)):
            return _moved_by_itself(data, device, non_blocking)
        return map_children(moved, data, kept)

    return moved(tensor)


def convert_to_fp32(tensor: Data) -> Data:
    """`tensor` (any nested data) with half-precision tensors as float32, other dtypes untouched."""
    return map_tensors(lambda leaf: leaf.float() if leaf.dtype in (torch.float16, torch.bfloat16) else leaf, tensor)


def _moves_itself(data: Data) -> bool:
    # There is no common base class: transformers' BatchEncoding is a mapping, torch_geometric's Data is an object.
    return not isinstance(data, torch.Tensor | type) and callable(getattr(data, "to", None))


def _moved_by_itself(data: Data, device: torch.device | str | int, non_blocking: bool) -> Data:
    try:
        return data.to(device, non_blocking=non_blocking)
    except TypeError:  # the parameter is torch's, and not everybody has it
        return data.to(device)


def _like_mapping(data: Mapping[Data, Data], changed: dict[Data, Data]) -> Data:
    if type(data) is dict:
        return changed
    if isinstance(data, dict) and hasattr(data, "default_factory"):  # a defaultdict takes its factory first
        rebuilt = data.copy()
        rebuilt.update(changed)
        return rebuilt
    return type(data)(changed)  # type: ignore[call-arg]  # a Mapping that is a batch can be made from one


def _like_dataclass(data: Data, changed: dict[str, Data]) -> Data:
    # Not made anew: its `__post_init__` has worked on these values, and may want arguments that are no fields.
    rebuilt = copy.copy(data)
    for name, value in changed.items():
        object.__setattr__(rebuilt, name, value)  # also of frozen ones
    return rebuilt
