"""Messages with descriptors from one thread to another, which waits on a descriptor."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from ....protocol.commands import EventBatch, KeeperMessage

Message = TypeVar("Message")


class Mailbox(Generic[Message]):
    """Any thread may put, one takes. Owns the descriptors that have not been taken."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        """Readable while something waits."""
        self._waiting: deque[tuple[Message, tuple[int, ...]]] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def put(self, message: Message, fds: Sequence[int] = ()) -> None:
        """`fds` are duplicated here. Nothing happens after `close`."""
        with self._lock:
            if self._closed:
                return
            if not self._waiting:
                os.write(self._write_fd, b"!")
            self._waiting.append((message, tuple(os.dup(fd) for fd in fds)))

    def take_all(self) -> list[tuple[Message, tuple[int, ...]]]:
        """What waits; the descriptors are the caller's from now on."""
        with self._lock:
            taken = list(self._waiting)
            if taken:
                os.read(self.fd, 1)
                self._waiting.clear()
        return taken

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _, fds in self._waiting:
                for fd in fds:
                    os.close(fd)
            self._waiting.clear()
            os.close(self.fd)
            os.close(self._write_fd)


class EventOutlet:
    """A mailbox, as `EventStream` wants it."""

    wants_to_write = False

    def __init__(self, said: Mailbox[KeeperMessage]) -> None:
        self._said = said

    def flush(self) -> None:
        """Nothing waits."""

    def send(self, message: msgspec.Struct) -> None:
        assert isinstance(message, EventBatch)
        self._said.put(message)
