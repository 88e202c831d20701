"""A batch on its way from one rank to another: a description, and the raw bytes of its tensors.

The *description* is the batch itself, pickled, but for the contents of tensors (and NumPy arrays), wherever they are in
it. It travels only when it differs from the last one. Small contents travel in one piece behind it, large ones each by
itself, from where they are to where they will be: neither end copies those.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import struct
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from ...errors import TrainingError
from ..operations.nested import Data

LARGE_BYTES = 1 << 17
"""From this size on a message of its own costs less than the copies that it saves (gloo over loopback, torch 2.13)."""

_CONTENT = struct.Struct("<QBB")
"""Of a content: its bytes, whether it travels by itself, whether it is a tensor's."""


@dataclass(frozen=True)
class Content:
    """Bytes of one tensor or array."""

    num_bytes: int
    is_large: bool
    is_tensor: bool


@dataclass(frozen=True)
class Parcel:
    """A batch taken apart. The tensors are flat, of bytes, and on the CPU; they share the batch's memory."""

    description: bytes
    small: Sequence[torch.Tensor]
    large: Sequence[torch.Tensor]


def pack(batch: Data) -> Parcel:
    """`batch` as it travels. TrainingError when something in it cannot be pickled."""
    # A class typed in a notebook's cell has no module to be found in, and travels by value. What else is wrong with the
    # batch comes out then.
    with suppress(Exception):
        return _pack(batch, _Pickler)
    try:
        return _pack(batch, _ByValuePickler)
    except Exception as error:
        raise TrainingError(
            f"a batch of the dispatched loader cannot be sent to the other ranks: {error} Let collate_fn give tensors, "
            "numbers, texts and the like, or prepare the loader with dispatch_batches=False."
        ) from error


def contents_of(description: bytes) -> list[Content]:
    """What the batch of `description` holds, in the order that `unpack` takes it in. Small ones travel before large."""
    (count,) = struct.unpack_from("<I", description)
    packed = [_CONTENT.unpack_from(description, 4 + index * _CONTENT.size) for index in range(count)]
    return [Content(num_bytes, bool(is_large), bool(is_tensor)) for num_bytes, is_large, is_tensor in packed]


def unpack(description: bytes, contents: Sequence[Content], received: Sequence[torch.Tensor]) -> Data:
    """The batch that was packed. It owns the tensors of `received`: flat, of bytes, one per content."""
    buffers = [one if of.is_tensor else one.numpy() for one, of in zip(received, contents, strict=True)]
    return pickle.loads(memoryview(description)[4 + len(contents) * _CONTENT.size :], buffers=buffers)


class _TensorReducer:
    """Keeps the contents of tensors out of a pickle. Mixed into a pickler."""

    def __init__(self, file: io.BytesIO) -> None:
        self.contents: list[tuple[torch.Tensor, bool]] = []
        """Bytes, and whether they are a tensor's."""
        self._announced: tuple[pickle.PickleBuffer, torch.Tensor] | None = None
        super().__init__(file, protocol=5, buffer_callback=self._keep_out)  # type: ignore[call-arg]

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401
        if type(obj) is not torch.Tensor or obj.layout != torch.strided or obj.is_quantized or obj.is_nested:
            base = super()
            return base.reducer_override(obj) if hasattr(base, "reducer_override") else NotImplemented
        tensor = _dense(obj)
        # Stands for the contents, which pickle never looks at. Writable, so that unpickling takes a tensor for it.
        stand_in = pickle.PickleBuffer(bytearray())
        self._announced = stand_in, _bytes_of(tensor)
        grad = obj.requires_grad and obj.is_leaf
        return _tensor_of, (stand_in, tensor.dtype, tuple(tensor.shape), tensor.stride(), grad)

    def _keep_out(self, buffer: pickle.PickleBuffer) -> None:
        if self._announced is not None and buffer is self._announced[0]:
            self.contents.append((self._announced[1], True))
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the bytes of a read-only array must not be written to
            raw = buffer.raw()
            flat = torch.frombuffer(raw, dtype=torch.uint8) if raw.nbytes else torch.empty(0, dtype=torch.uint8)
        self.contents.append((flat, False))


class _Pickler(_TensorReducer, pickle.Pickler):
    pass


class _ByValuePickler(_TensorReducer, cloudpickle.Pickler):  # type: ignore[misc]  # published without types
    pass


def _pack(batch: Data, pickler_class: type[_Pickler | _ByValuePickler]) -> Parcel:
    file = io.BytesIO()
    pickler = pickler_class(file)
    pickler.dump(batch)
    sizes = [(flat.numel(), flat.numel() >= LARGE_BYTES, is_tensor) for flat, is_tensor in pickler.contents]
    table = struct.pack("<I", len(sizes)) + b"".join(_CONTENT.pack(*size) for size in sizes)
    flats = [flat for flat, _ in pickler.contents]
    return Parcel(
        table + file.getvalue(),
        [flat for flat, (_, is_large, _) in zip(flats, sizes, strict=True) if not is_large],
        [flat for flat, (_, is_large, _) in zip(flats, sizes, strict=True) if is_large],
    )


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` on the CPU, its values side by side in memory, whatever the order of its dimensions."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.is_contiguous() or torch.empty_like(tensor).stride() == tensor.stride():
        return tensor
    return tensor.contiguous()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _tensor_of(
    flat: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], requires_grad: bool
) -> torch.Tensor:
    return flat.view(dtype).as_strided(shape, stride).requires_grad_(requires_grad)


def text_in(tensor: torch.Tensor, start: int, stop: int) -> bytes:
    """The bytes `start` to `stop` of a flat tensor of bytes."""
    return ctypes.string_at(tensor.data_ptr() + start, stop - start)
