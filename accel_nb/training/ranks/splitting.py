"""Share what is at hand between ranks: a contiguous part for each."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence

import torch
from torch.utils.data import Dataset, Subset

from ..data.sharding import split_bounds
from ..operations.nested import Data, map_children


def split(inputs: Data, num_ranks: int, rank: int, *, padded: bool) -> Data:
    """Rank `rank`'s contiguous part of `inputs`, the longer parts first.

    `inputs` is a sequence, tensor, array or data set, or a mapping of those, also nested. `padded`: each part is as
    long as the longest, the last item of `inputs` being repeated. ValueError for mappings whose values have different
    lengths, TypeError for what cannot be split.
    """
    if isinstance(inputs, Mapping):
        _check_lengths(inputs)
        return map_children(lambda value: split(value, num_ranks, rank, padded=padded), inputs)
    _check_kind(inputs)
    length = len(inputs)
    start, stop = split_bounds(length, num_ranks, rank)
    missing = -(-length // num_ranks) - (stop - start) if padded else 0
    return _taken(inputs, range(start, stop), [length - 1] * missing)


def _taken(inputs: Data, part: range, repeated: list[int]) -> Data:
    """The items `part` of `inputs`, then those `repeated`."""
    if _is_hugging_face_dataset(inputs):
        return inputs.select([*part, *repeated])
    if isinstance(inputs, Dataset):
        return Subset(inputs, [*part, *repeated])
    if not repeated and not isinstance(inputs, deque):  # the one sequence of Python's that cannot be sliced
        return inputs[part.start : part.stop]
    if isinstance(inputs, list | tuple | str):
        own: Data = inputs[part.start : part.stop]
        return own + inputs[-1:] * len(repeated)
    if isinstance(inputs, Sequence):
        return [inputs[index] for index in [*part, *repeated]]
    return inputs[[*part, *repeated]]


def _check_kind(inputs: Data) -> None:
    known = isinstance(inputs, Sequence | torch.Tensor | Dataset) or _is_hugging_face_dataset(inputs)
    has_length = hasattr(inputs, "__len__") and getattr(inputs, "ndim", None) != 0
    if not (known or _is_array(inputs)) or not has_length:
        raise TypeError(
            f"split_between_processes cannot split a {type(inputs).__name__}; give a list, tuple, string, tensor, "
            "array, data set with a length, or a dict of those."
        )


def _check_lengths(inputs: Mapping[Data, Data]) -> int:
    """How many items all values of `inputs` have."""
    lengths = {}
    for key, value in inputs.items():
        if not isinstance(value, Mapping):
            _check_kind(value)
        lengths[key] = _check_lengths(value) if isinstance(value, Mapping) else len(value)
    if len(set(lengths.values())) > 1:
        raise ValueError(f"split_between_processes needs values of one length, got {lengths!r}.")
    return next(iter(lengths.values()), 0)


def _is_hugging_face_dataset(inputs: Data) -> bool:
    """`datasets` is never imported for this: where it is not, nothing is of its kind."""
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(inputs, datasets.Dataset)


def _is_array(inputs: Data) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(inputs, numpy.ndarray)
