"""Values to bytes and back: msgpack frames between processes, JSON lines for recordings.

A frame is a 4-byte little-endian length and a msgpack body. Unknown fields are ignored and an unknown event is
`Skipped`, so that an older reader survives a newer writer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from .events import RunEvent

MAX_FRAME_BYTES = 256 << 20
"""A longer frame is a broken stream, not a message."""

_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
_event_json = msgspec.json.Decoder(RunEvent)
Message = TypeVar("Message")


class Skipped(msgspec.Struct, frozen=True):
    """A message of a kind this version does not know."""

    reason: str


def frame(value: msgspec.Struct | list[msgspec.Struct]) -> bytes:
    """One frame holding `value`."""
    body = _encoder.encode(value)
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[Message]):
    """Collects bytes and gives whole messages of one type (usually a tagged union)."""

    def __init__(self, kind: type[Message] | object) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Message | Skipped]:
        """Messages completed by `data`. Raises ValueError on a length that cannot be one of ours."""
        self._pending += data
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"frame of {length} bytes: the stream is broken")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                return
            body = bytes(self._pending[_LENGTH.size : end])
            del self._pending[:end]
            yield self._decode(body)

    def _decode(self, body: bytes) -> Message | Skipped:
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            return Skipped(str(error))


def event_line(event: RunEvent) -> bytes:
    """One line of ``run.jsonl``, newline included."""
    return msgspec.json.encode(event) + b"\n"


def event_from_line(line: bytes) -> RunEvent | Skipped:
    """The event of one line of ``run.jsonl``; `Skipped` when this version does not know it."""
    try:
        event: RunEvent = _event_json.decode(line)
    except msgspec.ValidationError as error:
        return Skipped(str(error))
    return event
