"""What rank 0's messages to another rank are made of."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from .dealing import Step

AHEAD = 4
"""Messages that a rank is ready to take before the first of them comes: then none has to wait to be asked for."""
_NO_ROWS = -1
"""In place of numbers of rows: the batches have none."""


class Kind(IntEnum):
    BATCH = 0
    END = 1
    """No more batches for this rank."""
    LEFT = 2
    """Rank 0 left its loop before the end."""
    FAILED = 3
    """Rank 0's data raised; the traceback follows as text."""


@dataclass(frozen=True)
class Rows:
    """Of a step."""

    num_genuine: int | None
    """Of all ranks, without those that only fill it; None: batches have no rows."""
    sizes: tuple[int, ...]
    """By rank, 0 for one that has no part."""

    @classmethod
    def of(cls, step: Step) -> Rows:
        return cls(step.num_genuine, step.sizes or (0,) * len(step.parts))


@dataclass(frozen=True)
class Header:
    """The first part of every message: as many 64-bit numbers as it has fields, and one per rank."""

    kind: Kind
    description_bytes: int
    """0: the last description still holds."""
    small_bytes: int
    """Of all small contents."""
    inline_bytes_ahead: int
    """What fits behind the header of a later message, the AHEAD-th after this one."""
    rows: Rows

    @property
    def body_bytes(self) -> int:
        return self.description_bytes + self.small_bytes

    def to_bytes(self) -> bytes:
        genuine = _NO_ROWS if self.rows.num_genuine is None else self.rows.num_genuine
        numbers = (self.kind, self.description_bytes, self.small_bytes, self.inline_bytes_ahead, genuine)
        return struct.pack(f"<{len(numbers) + len(self.rows.sizes)}q", *numbers, *self.rows.sizes)

    @classmethod
    def from_bytes(cls, data: bytes) -> Header:
        kind, description_bytes, small_bytes, inline_bytes_ahead, genuine, *sizes = struct.unpack(
            f"<{len(data) // 8}q", data
        )
        rows = Rows(None if genuine == _NO_ROWS else genuine, tuple(sizes))
        return cls(Kind(kind), description_bytes, small_bytes, inline_bytes_ahead, rows)


def header_bytes(num_ranks: int) -> int:
    return 8 * (5 + num_ranks)


def one_piece(start: bytes, small: Sequence[torch.Tensor], num_bytes: int) -> torch.Tensor:
    """A message of `num_bytes` that begins with `start` and the bytes of `small`."""
    message = torch.empty(num_bytes, dtype=torch.uint8)
    position = 0
    for part in (torch.frombuffer(bytearray(start), dtype=torch.uint8), *small) if start else small:
        message[position : position + part.numel()].copy_(part)
        position += part.numel()
    return message
