"""How nested data travels between ranks. One process gives the same shapes and dtypes as several.

Inputs are never changed and what travels carries no gradients. A 0-d tensor counts as one row. Every rank has to call
the same operation with the same structure and shapes; `shape_checks.Checked` makes that sure.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import distributed

from ...protocol.mismatch import mismatch
from ..ranks import placement, process_group
from ..ranks.process_group import RankFacts
from .nested import Data, Rebuilt, map_only_tensors, tensors
from .structure import describe, dims_and_dtype

PUBLIC_HOME = "accel_nb.utils"
"""Where all operations can be imported from: the beginning of their dotted names."""

_OPERATIONS = {
    "sum": distributed.ReduceOp.SUM,
    "max": distributed.ReduceOp.MAX,
    "min": distributed.ReduceOp.MIN,
}
REDUCTIONS = (*_OPERATIONS, "mean")

# until torch >= 2.13: it renamed this function, and warns about the old name
_all_gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)


class CannotPadNestedTensorWarning(UserWarning):
    """A tensor of ``torch.nested`` was left as it is by `pad_across_processes`."""


class Collectives(Protocol):
    """What all ranks do together, over nested data. TypeError for leaves that are neither tensors nor None."""

    @property
    def num_ranks(self) -> int: ...

    def gather(self, data: Rebuilt) -> Rebuilt:
        """The ranks' tensors, of one shape, one after the other along dimension 0."""
        ...

    def gather_object(self, value: object) -> list[object]:
        """What each rank gave, by rank. Values travel by pickle."""
        ...

    def broadcast(self, data: Rebuilt, source: int) -> Rebuilt:
        """Copies of the tensors of rank `source`; the others give some of the same shapes and dtypes."""
        ...

    def broadcast_object(self, value: object, source: int) -> object: ...

    def reduce(self, data: Rebuilt, reduction: str, scale: float) -> Rebuilt:
        """New tensors: one of `REDUCTIONS` over the ranks, element by element, times `scale`."""
        ...

    def pad(self, data: Rebuilt, dim: int, pad_index: float, pad_first: bool) -> Rebuilt:
        """Tensors as long along `dim` as the longest rank's. What is long enough, or has no `dim`, stays the same.

        DistributedOperationException on all ranks when numbers of tensors or of dimensions differ.
        """
        ...

    def wait(self) -> None:
        """Return once every rank has called this."""
        ...

    def agree(self, operation: str, given: str) -> None:
        """Where ranks compare what they call: return when every rank has called this with the same two values, or raise
        DistributedOperationException on all. Elsewhere: nothing.
        """
        ...


class _OverLeaves(ABC):
    """`Collectives` made of operations on one tensor at a time."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self._rank = rank
        self.num_ranks = num_ranks

    @abstractmethod
    def gather_object(self, value: object) -> list[object]: ...

    @abstractmethod
    def _gather(self, tensor: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def _broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor: ...

    @abstractmethod
    def _all_reduce(self, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        """A new tensor: one of `_OPERATIONS` over the ranks."""

    def gather(self, data: Data) -> Data:
        return map_only_tensors(self._gather, data, "gather")

    def broadcast(self, data: Data, source: int) -> Data:
        self._check_source(source)
        return map_only_tensors(lambda tensor: self._broadcast(tensor, source), data, "broadcast")

    def reduce(self, data: Data, reduction: str, scale: float) -> Data:
        return map_only_tensors(lambda tensor: self._reduce(tensor, reduction, scale), data, "reduce")

    def pad(self, data: Data, dim: int, pad_index: float, pad_first: bool) -> Data:
        own = describe(data, dims_and_dtype), [None if one.is_nested else list(one.shape) for one in tensors(data)]
        everyones = self.gather_object(own)
        descriptions = [one[0] for one in everyones]  # type: ignore[index]
        if len(set(descriptions)) > 1:
            names = [f"{PUBLIC_HOME}.pad_across_processes"] * self.num_ranks
            raise mismatch(names, descriptions, reports=self._rank == 0)
        shapes = iter(zip(*(one[1] for one in everyones), strict=True))  # type: ignore[index]
        return map_only_tensors(
            lambda tensor: _padded(tensor, next(shapes), dim, pad_index, pad_first), data, "pad_across_processes"
        )

    def agree(self, operation: str, given: str) -> None:
        del operation, given

    def _reduce(self, tensor: torch.Tensor, reduction: str, scale: float) -> torch.Tensor:
        working = tensor.detach().to(_working_dtype(tensor.dtype))
        total = self._all_reduce(working, "sum" if reduction == "mean" else reduction)
        is_exact = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
        if reduction == "mean":
            total = total / self.num_ranks
        if scale != 1.0:
            total = total * scale
        if is_exact and (reduction == "mean" or scale != 1.0):
            return total.to(torch.get_default_dtype())
        if tensor.dtype == torch.bool and reduction == "sum":
            return total
        return total.to(tensor.dtype)

    def _check_source(self, source: int) -> None:
        if not 0 <= source < self.num_ranks:
            raise ValueError(f"from_process={source!r} is no rank: there are {self.num_ranks}, counted from 0.")


class SingleProcess(_OverLeaves):
    """One rank: nothing to send."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def gather_object(self, value: object) -> list[object]:
        return [value]

    def broadcast_object(self, value: object, source: int) -> object:
        self._check_source(source)
        return value

    def wait(self) -> None:
        return

    def _gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().reshape(_rows(tensor)).clone()

    def _broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        del source
        return tensor.detach().clone()

    def _all_reduce(self, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        del operation
        return tensor.clone()


class TorchCollectives(_OverLeaves):
    """torch.distributed's default group. Tensors elsewhere travel through `device`, and results return to where the
    input was.
    """

    def __init__(self, rank: int, num_ranks: int, device: torch.device) -> None:
        super().__init__(rank, num_ranks)
        self._device = device

    def gather_object(self, value: object) -> list[object]:
        values: list[object] = [None] * self.num_ranks
        distributed.all_gather_object(values, value)
        return values

    def broadcast_object(self, value: object, source: int) -> object:
        self._check_source(source)
        values = [value]
        distributed.broadcast_object_list(values, source)
        return values[0]

    def wait(self) -> None:
        process_group.barrier(self._device)

    def _gather(self, tensor: torch.Tensor) -> torch.Tensor:
        # Moved as bytes, so that every dtype works: gloo knows neither bool nor int16 nor complex numbers.
        own = _as_bytes(tensor, self._device)
        everyones = own.new_empty(self.num_ranks * own.numel())
        if own.numel():
            _all_gather(everyones, own)
        rows = _rows(tensor)
        return everyones.view(tensor.dtype).reshape(self.num_ranks * rows[0], *rows[1:]).to(tensor.device)

    def _broadcast(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        message = _as_bytes(tensor, self._device)
        if message.numel():
            distributed.broadcast(message, source)
        return message.view(tensor.dtype).reshape(tensor.shape).to(tensor.device)

    def _all_reduce(self, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        total = tensor.to(self._device, copy=True).contiguous()
        if total.numel():
            distributed.all_reduce(total, _OPERATIONS[operation])
        return total.to(tensor.device)


def collectives_of(facts: RankFacts) -> Collectives:
    if facts.num_processes == 1:
        return SingleProcess()
    return TorchCollectives(facts.process_index, facts.num_processes, placement.transport_device(facts.device))


def _padded(
    tensor: torch.Tensor, shapes: Sequence[list[int] | None], dim: int, pad_index: float, pad_first: bool
) -> torch.Tensor:
    """`tensor` as long along `dim` as the longest of `shapes`, those of all ranks."""
    if tensor.is_nested:
        warnings.warn(
            "pad_across_processes left a tensor of torch.nested as it is: its rows have no common length.",
            CannotPadNestedTensorWarning,
            stacklevel=2,
        )
        return tensor
    if not -tensor.dim() <= dim < tensor.dim():
        return tensor
    missing = max(shape[dim] for shape in shapes if shape is not None) - tensor.shape[dim]
    if not missing:
        return tensor
    size = list(tensor.shape)
    size[dim] = missing
    filling = tensor.new_full(size, pad_index)
    return torch.cat([filling, tensor] if pad_first else [tensor, filling], dim)


def _working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that ranks add up in: one that every backend can add, and does not lose small parts in."""
    if dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize:
        return torch.float32
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


def _rows(tensor: torch.Tensor) -> torch.Size:
    return tensor.shape if tensor.dim() else torch.Size([1])


def _as_bytes(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of the values as bytes, on `device`."""
    # Not `contiguous`: to torch a single row has its values side by side whatever its stride, which `view` refuses.
    values = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return values.copy_(tensor.detach()).view(-1).view(torch.uint8)
