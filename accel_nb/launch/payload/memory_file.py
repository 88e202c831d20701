"""One anonymous memory file: written once by its sender, mapped copy-on-write by every reader.

sender  MemoryFileWriter ── write() by the pickler, append() per buffer, finish(header) ──> Packed (owns the fd)
─────────────────────────── process boundary: only the file descriptor crosses it ───────────────────────────
reader  read_header(fd) ──> Payload;  mapped(fd, header) or copied(fd, header) ──> pickle and buffers
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import sys
import tempfile
import weakref
from typing import Self, TypeAlias

import msgspec

from ...protocol.payload import BUFFER_ALIGNMENT_BYTES, MAGIC, PREAMBLE, Payload
from .free_memory import CHECKED_FROM_BYTES, require_room

_CHUNK_BYTES = 64 << 20
"""One system call: well below Linux's limit of 2 GiB - 4 KiB per write(2), and short enough to interrupt."""

Bytes: TypeAlias = bytes | bytearray | memoryview


class Packed:
    """A finished memory file. Whoever holds this object owns `fd`; it is closed by `close` or with the object."""

    def __init__(self, fd: int, size_bytes: int, notices: tuple[str, ...] = ()) -> None:
        self.fd = fd
        self.size_bytes = size_bytes
        """Pickle, buffers, padding and header."""
        self.notices = notices
        """Sentences the user should read once."""
        self._closing = weakref.finalize(self, os.close, fd)

    def close(self) -> None:
        """Close the descriptor. Maps made from it stay valid. A second call does nothing."""
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryFileWriter:
    """Writes one memory file. `write` makes it a file for a pickler; raises `NoRoom` before memory runs out."""

    def __init__(self) -> None:
        self._fd = new_file()
        self._end = PREAMBLE.size
        self._unchecked_bytes = 0

    def write(self, data: Bytes) -> int:
        """Append a part of the pickle."""
        num_bytes = memoryview(data).nbytes
        self._unchecked_bytes += num_bytes
        if self._unchecked_bytes >= CHECKED_FROM_BYTES:
            require_room(self._unchecked_bytes)
            self._unchecked_bytes = 0
        _write_at(self._fd, data, self._end)
        self._end += num_bytes
        return num_bytes

    @property
    def pickle_bytes(self) -> int:
        """Size of what `write` received. Meaningless after the first `append`."""
        return self._end - PREAMBLE.size

    @property
    def size_bytes(self) -> int:
        """What has been written so far, padding included."""
        return self._end

    def append(self, buffer: memoryview) -> tuple[int, int]:
        """Append an out-of-band buffer; its offset and size. The caller has checked that there is room."""
        offset = -(-self._end // BUFFER_ALIGNMENT_BYTES) * BUFFER_ALIGNMENT_BYTES
        _write_at(self._fd, buffer, offset)
        self._end = offset + buffer.nbytes
        return offset, buffer.nbytes

    def finish(self, header: Payload, notices: tuple[str, ...] = ()) -> Packed:
        """Write the header, forbid further changes and hand the file over."""
        body = msgspec.msgpack.encode(header)
        _write_at(self._fd, body, self._end)
        _write_at(self._fd, PREAMBLE.pack(MAGIC, self._end, len(body)), 0)
        _seal(self._fd)
        fd, self._fd = self._fd, -1
        # They may name files, whose names need not be UTF-8, and travel as text.
        sendable = tuple(notice.encode(errors="backslashreplace").decode() for notice in notices)
        return Packed(fd, self._end + len(body), sendable)

    def close(self) -> None:
        """Give the unfinished file up. After `finish`, or a second time, it does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def new_file() -> int:
    """Descriptor of a nameless file, closed on exec: a memfd, or where there is none an unlinked temporary file."""
    try:
        return os.memfd_create("accel_nb", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except AttributeError:
        # Not Linux, or a Python that was built for one before glibc 2.27.
        pass
    except OSError as error:
        # What sandboxes answer to calls that they do not know or allow.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    with tempfile.TemporaryFile(prefix="accel_nb_") as file:
        return os.dup(file.fileno())


def read_header(fd: int) -> Payload:
    """The header. Raises ValueError when the file is not one of ours."""
    preamble = os.pread(fd, PREAMBLE.size, 0)
    if preamble[: len(MAGIC)] != MAGIC or len(preamble) < PREAMBLE.size:
        raise ValueError(f"not a memory file of this version: it starts with {preamble[: len(MAGIC)]!r}")
    _, offset, num_bytes = PREAMBLE.unpack(preamble)
    return msgspec.msgpack.decode(os.pread(fd, num_bytes, offset), type=Payload)


def mapped(fd: int, header: Payload) -> tuple[Bytes, list[memoryview]]:
    """The pickle and its buffers as views of one private map: shared with all readers until written to.

    The views own the map; `fd` may be closed. Before Python 3.13 the map holds a duplicate of `fd` while it lives.
    """
    if not header.buffers and header.pickle_bytes < BUFFER_ALIGNMENT_BYTES:
        return _pickle_read(fd, header), []
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    size_bytes = os.fstat(fd).st_size
    if sys.version_info >= (3, 13):
        area = mmap.mmap(fd, size_bytes, flags=mmap.MAP_PRIVATE, prot=protection, trackfd=False)
    else:
        area = mmap.mmap(fd, size_bytes, flags=mmap.MAP_PRIVATE, prot=protection)
    view = memoryview(area)
    pickle_view = view[PREAMBLE.size : PREAMBLE.size + header.pickle_bytes]
    return pickle_view, [view[offset : offset + num_bytes] for offset, num_bytes in header.buffers]


def copied(fd: int, header: Payload) -> tuple[Bytes, list[memoryview]]:
    """The pickle and its buffers, each buffer in memory of its own that is freed with its last user."""
    return _pickle_read(fd, header), [_read_at(fd, offset, num_bytes) for offset, num_bytes in header.buffers]


def _pickle_read(fd: int, header: Payload) -> Bytes:
    return _read_at(fd, PREAMBLE.size, header.pickle_bytes)


def _read_at(fd: int, offset: int, num_bytes: int) -> memoryview:
    view = memoryview(bytearray(num_bytes))
    done = 0
    while done < num_bytes:
        step = os.preadv(fd, [view[done : done + _CHUNK_BYTES]], offset + done)
        if not step:
            raise ValueError(f"memory file ends at byte {offset + done}, {num_bytes - done} bytes too early")
        done += step
    return view


def _write_at(fd: int, data: Bytes, offset: int) -> None:
    view = memoryview(data).cast("B")
    done = 0
    while done < view.nbytes:
        done += os.pwrite(fd, view[done : done + _CHUNK_BYTES], offset + done)


def _seal(fd: int) -> None:
    """No process can change the file from here on. Only a memfd has seals; a temporary file does without."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
