"""Messages with files over a connection that carries no descriptors: what `Channel` is on one machine.

A frame of ZeroMQ's begins with one byte that says what it is: a message, a part of a file, or a file's end. Files come
before the message that they belong to.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from ....protocol.wire import Skipped
from ...payload.memory_file import new_file

PART_BYTES = 1 << 20
"""Of a file in one frame: what is on its way takes little memory, and messages get their turn."""
_MESSAGE, _PART, _END = b"m", b"p", b"e"
BEAT = b"."
"""A frame that says nothing: whether it can be sent tells whether the peer is there."""
Message = TypeVar("Message")
Send = Callable[[bytes], bool]
"""One frame; False when the connection takes none now. A connection that is gone swallows all."""


class Link(Generic[Message]):
    """One end, of whose connection `send` is the way out. Owns the files received but not yet taken. One thread."""

    def __init__(self, send: Send, kind: object) -> None:
        self._send = send
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)
        self._outgoing: deque[bytes | _Outgoing] = deque()
        self._incoming: int | None = None
        self._received: deque[int] = deque()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outgoing)

    def send(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        """Queue copies of the files `fds` and `message`, and send what the connection takes now."""
        self._outgoing.extend(_Outgoing(os.dup(fd)) for fd in fds)
        self._outgoing.append(_MESSAGE + msgspec.msgpack.encode(message))
        self.flush()

    def flush(self) -> None:
        """Send what the connection takes now."""
        while self._outgoing:
            first = self._outgoing[0]
            if isinstance(first, bytes):
                if not self._send(first):
                    return
            elif not first.send_by(self._send):
                return
            self._outgoing.popleft()

    def take(self, data: bytes) -> Message | Skipped | None:
        """What a frame that has come says; None when it was of a file, or nothing."""
        kind, body = data[:1], memoryview(data)[1:]
        if kind == _MESSAGE:
            try:
                return self._decoder.decode(body)
            except msgspec.ValidationError as error:
                return Skipped(str(error))
        if kind == BEAT:
            return None
        if self._incoming is None:
            self._incoming = new_file()
        if kind == _PART:
            _write_all(self._incoming, body)
        else:
            self._received.append(self._incoming)
            self._incoming = None
        return None

    def take_fd(self) -> int:
        """The oldest file received and not yet taken; the caller owns it. Raises IndexError without one."""
        return self._received.popleft()

    def close(self) -> None:
        """Drop what was not sent and not taken."""
        for waiting in self._outgoing:
            if isinstance(waiting, _Outgoing):
                waiting.close()
        self._outgoing.clear()
        if self._incoming is not None:
            os.close(self._incoming)
            self._incoming = None
        while self._received:
            os.close(self._received.popleft())


class _Outgoing:
    """A file on its way out; owns the descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._sent_bytes = 0
        self._size_bytes = os.fstat(fd).st_size

    def send_by(self, send: Send) -> bool:
        """Go on; whether all of it is sent."""
        while self._sent_bytes < self._size_bytes:
            part = os.pread(self._fd, PART_BYTES, self._sent_bytes)
            if not send(_PART + part):
                return False
            self._sent_bytes += len(part)
        if not send(_END):
            return False
        self.close()
        return True

    def close(self) -> None:
        os.close(self._fd)


def _write_all(fd: int, data: memoryview) -> None:
    rest = data
    while rest:
        rest = rest[os.write(fd, rest) :]
