"""Batches on their way to the device: nothing to do on the CPU, copied ahead beside the computation on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from ..operations.nested import Data, leaves, map_tensors, send_to_device, tensors
from ..ranks import placement

STAGED_BYTES = 64 << 10
"""CUDA copies as much from pageable memory without waiting ("API synchronization behavior" of its runtime's manual);
pinning it first, and a stream of its own, would take longer than the copy.
"""


class Mover(Protocol):
    """Takes one rank's batches to its device."""

    def start(self, batch: Data) -> Data:
        """Begin to move `batch`; gives what `finish` takes. May be called before the batch before it is used up."""
        ...

    def finish(self, started: Data) -> Data:
        """The batch, ready to be used by what is computed from now on."""
        ...


class Staying:
    """Batches stay where the loader made them."""

    def start(self, batch: Data) -> Data:
        return batch

    def finish(self, started: Data) -> Data:
        return started


class Direct:
    """Moves a batch at once, unless all of it is there already."""

    def __init__(self, device: torch.device, *, non_blocking: bool) -> None:
        self._device, self._non_blocking = device, non_blocking

    def start(self, batch: Data) -> Data:
        if _is_on(batch, self._device):
            return batch
        return send_to_device(batch, self._device, non_blocking=self._non_blocking)

    def finish(self, started: Data) -> Data:
        return started


class Received:
    """Moves a batch as `Direct` does, and tells the device when it is there."""

    def __init__(self, direct: Direct, receive: Callable[[Iterable[torch.Tensor]], None]) -> None:
        self._direct, self._receive = direct, receive

    def start(self, batch: Data) -> Data:
        return self._direct.start(batch)

    def finish(self, started: Data) -> Data:
        self._receive(tensors(started))
        return started


@dataclass(frozen=True)
class _Copying:
    batch: Data
    done: torch.cuda.Event


class Ahead:
    """Copies through pinned memory on a stream of its own, so that a copy overlaps with what the device computes."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device, self._stream = device, stream

    def start(self, batch: Data) -> Data:
        if _moves_itself(batch) or any(_moves_itself(leaf) for leaf in leaves(batch)):
            return batch  # what such an object holds cannot be kept from being reused too early: moved when it is used
        if all(tensor.nbytes <= STAGED_BYTES for tensor in tensors(batch)):
            return send_to_device(batch, self._device, non_blocking=True)
        with torch.cuda.stream(self._stream):
            moved = map_tensors(self._copy, batch)
            done = torch.cuda.Event()
            done.record(self._stream)
        return _Copying(moved, done)

    def finish(self, started: Data) -> Data:
        if not isinstance(started, _Copying):
            return started if _is_on(started, self._device) else send_to_device(started, self._device)
        current = torch.cuda.current_stream(self._device)
        current.wait_event(started.done)
        for tensor in tensors(started.batch):
            if tensor.device == self._device:
                tensor.record_stream(current)
        return started.batch

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def mover_to(device: torch.device | None, *, non_blocking: bool) -> Mover:
    """What takes batches to `device`; None: they stay."""
    if device is None:
        return Staying()
    stream = placement.copy_stream(device)
    if stream is not None:
        return Ahead(device, stream)
    direct = Direct(device, non_blocking=non_blocking)
    receive = placement.batch_receiver(device)
    return direct if receive is None else Received(direct, receive)


def _moves_itself(data: Data) -> bool:
    # as `send_to_device` sees it
    return not isinstance(data, torch.Tensor | type) and callable(getattr(data, "to", None))


def _is_on(batch: Data, device: torch.device) -> bool:
    """True only when `batch` is of plain containers and tensors on `device`: seen without rebuilding it."""
    kind = type(batch)
    if kind is torch.Tensor:
        return bool(batch.device == device)
    if kind is dict:
        batch = batch.values()
    elif kind is not list and kind is not tuple:
        return kind in _INERT
    for item in batch:  # noqa: SIM110  `all` of a generator takes twice as long
        if not (item.device == device if type(item) is torch.Tensor else _is_on(item, device)):
            return False
    return True


_INERT = frozenset({str, bytes, int, float, bool, type(None)})
