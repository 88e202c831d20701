"""Framed messages with file descriptors over a Unix stream socket, without ever blocking the sender's loop."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from ..errors import StartError
from ..protocol.wire import FrameReader, Skipped, frame
from .processes import is_readable

_READ_BYTES = 1 << 18
_MAX_FDS = 16
_FD_BYTES = array.array("i").itemsize
Message = TypeVar("Message")


class Channel(Generic[Message]):
    """One end. Used by one thread at a time; owns the socket and the descriptors received but not yet taken."""

    def __init__(self, sock: socket.socket, kind: object) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._reader: FrameReader[Message] = FrameReader(kind)
        self._outgoing: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._received_fds: deque[int] = deque()

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outgoing)

    def send(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        """Queue `message` and write what the socket takes now. The descriptors are duplicated here."""
        self._outgoing.append((memoryview(frame(message)), tuple(os.dup(fd) for fd in fds)))
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes now. A peer that is gone swallows the rest: its death is seen elsewhere."""
        while self._outgoing:
            data, fds = self._outgoing[0]
            try:
                sent = self.socket.sendmsg([data], _rights(fds))
            except BlockingIOError:
                return
            except OSError:
                self._drop_outgoing()
                return
            _close_all(fds)
            if sent == len(data):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (data[sent:], ())

    def receive(self) -> tuple[list[Message | Skipped], bool]:
        """All messages that have arrived, and whether the peer has closed its end.

        Raises StartError when descriptors came for which this process has no room.
        """
        messages: list[Message | Skipped] = []
        while True:
            try:
                data, ancillary, flags, _ = self.socket.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_MAX_FDS * _FD_BYTES))
            except BlockingIOError:
                return messages, False
            except OSError:
                return messages, True
            self._received_fds.extend(_fds_of(ancillary))
            if flags & socket.MSG_CTRUNC:
                raise StartError(
                    "This process has no free file descriptors for what ranks send. Close files, or raise the limit "
                    "(ulimit -n)."
                )
            if not data:
                return messages, True
            messages.extend(self._reader.feed(data))

    def take_fd(self) -> int:
        """The oldest descriptor received and not yet taken; the caller owns it. Raises IndexError without one."""
        return self._received_fds.popleft()

    def close(self) -> None:
        self._drop_outgoing()
        _close_all(self._received_fds)
        self._received_fds.clear()
        self.socket.close()

    def _drop_outgoing(self) -> None:
        for _, fds in self._outgoing:
            _close_all(fds)
        self._outgoing.clear()


def send_packet(sock: socket.socket, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
    """One message as one packet of a SOCK_SEQPACKET socket. Raises OSError when the peer is gone."""
    sock.sendmsg([msgspec.msgpack.encode(message)], _rights(fds))


def receive_packet(sock: socket.socket) -> tuple[bytes, list[int]]:
    """The next packet, empty when the peer has closed, and the descriptors beside it; the caller owns them."""
    try:
        data, ancillary, _, _ = sock.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_MAX_FDS * _FD_BYTES))
    except ConnectionResetError:
        # The peer died with packets of ours unread.
        return b"", []
    return data, _fds_of(ancillary)


def _rights(fds: Sequence[int]) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []


def _fds_of(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    for fd in fds:
        os.set_inheritable(fd, False)
    return list(fds)


def _close_all(fds: Sequence[int] | deque[int]) -> None:
    for fd in fds:
        os.close(fd)


def send_with_fds(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Write all of `data` to a blocking stream socket, the descriptors beside its first byte."""
    sent = sock.sendmsg([data], _rights(fds))
    if sent < len(data):
        sock.sendall(data[sent:])


class BlockingReader(Generic[Message]):
    """Reads a stream socket message by message, waiting for each. Owns the descriptors not yet taken."""

    def __init__(self, sock: socket.socket, kind: object) -> None:
        self._socket = sock
        self._reader: FrameReader[Message] = FrameReader(kind)
        self._waiting: deque[Message | Skipped] = deque()
        self._fds: deque[int] = deque()

    def next(self) -> Message | Skipped | None:
        """The next message; None when the peer closes before it is whole."""
        while not self._waiting:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_MAX_FDS * _FD_BYTES))
            self._fds.extend(_fds_of(ancillary))
            if not data:
                return None
            self._waiting.extend(self._reader.feed(data))
        return self._waiting.popleft()

    def next_after(self, meanwhile: Iterator[None]) -> Message | Skipped | None:
        """As `next`, taking steps of `meanwhile` as long as no message has come."""
        while not self._waiting and not is_readable(self._socket.fileno()):
            try:
                next(meanwhile)
            except StopIteration:
                break
        return self.next()

    def take_fd(self) -> int:
        """The oldest descriptor received and not yet taken; the caller owns it. Raises IndexError without one."""
        return self._fds.popleft()
