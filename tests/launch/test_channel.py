"""Messages and descriptors over a socket that must not block its sender."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_nb.errors import StartError
from accel_nb.launch.channel import BlockingReader, Channel, receive_packet, send_packet, send_with_fds
from accel_nb.protocol.commands import EventBatch, KeeperHello, KeeperMessage, Pull, Release, RunCommand, Stop, Value
from accel_nb.protocol.events import LogLines
from accel_nb.protocol.wire import frame


def pair() -> tuple[Channel[RunCommand], Channel[KeeperMessage]]:
    keeper, kernel = socket.socketpair()
    return Channel(keeper, RunCommand), Channel(kernel, KeeperMessage)


def file_with(text: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, text)
    return fd


def num_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def content(fd: int) -> bytes:
    try:
        return os.pread(fd, 100, 0)
    finally:
        os.close(fd)


def test_messages_arrive_in_order() -> None:
    keeper, kernel = pair()

    kernel.send(Pull())
    kernel.send(Stop(by="handle", grace_s=1.0))

    assert keeper.receive() == ([Pull(), Stop(by="handle", grace_s=1.0)], False)
    keeper.close()
    kernel.close()


def test_descriptors_arrive_beside_their_messages() -> None:
    keeper, kernel = pair()
    for rank in range(3):
        fd = file_with(b"rank %d" % rank)
        keeper.send(Value(rank=rank), [fd])
        os.close(fd)

    messages, _ = kernel.receive()

    assert messages == [Value(rank=0), Value(rank=1), Value(rank=2)]
    assert [content(kernel.take_fd()) for _ in messages] == [b"rank 0", b"rank 1", b"rank 2"]
    keeper.close()
    kernel.close()


def test_a_peer_that_does_not_read_never_blocks_the_sender() -> None:
    keeper, kernel = pair()
    batch = EventBatch(events=(LogLines(rank=0, text="x" * 60_000),))

    for _ in range(50):
        keeper.send(batch)

    assert bool(keeper.wants_to_write)
    received: list[object] = []
    while keeper.wants_to_write or len(received) < 50:
        received += kernel.receive()[0]
        keeper.flush()
    assert received == [batch] * 50
    keeper.close()
    kernel.close()


def test_the_end_of_the_peer_is_told_after_what_it_said() -> None:
    keeper, kernel = pair()
    keeper.send(KeeperHello(pid=1))
    keeper.close()

    assert kernel.receive() == ([KeeperHello(pid=1)], True)
    kernel.close()


def test_sending_to_a_peer_that_is_gone_is_silent() -> None:
    keeper, kernel = pair()
    kernel.close()

    keeper.send(KeeperHello(pid=1))

    assert not keeper.wants_to_write
    keeper.close()


def test_closing_closes_descriptors_that_nobody_took() -> None:
    keeper, kernel = pair()
    fd = file_with(b"x")
    keeper.send(Value(rank=0), [fd])
    os.close(fd)
    kernel.receive()
    before = num_fds()

    kernel.close()

    assert num_fds() == before - 2
    keeper.close()


def test_packets_keep_their_bounds_and_descriptors() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = file_with(b"payload")
    with ours, theirs:
        send_packet(ours, Pull())
        send_packet(ours, Stop(by="x", grace_s=0.0), [fd])
        os.close(fd)

        _, none = receive_packet(theirs)
        _, fds = receive_packet(theirs)

        assert none == []
        assert content(fds[0]) == b"payload"
        ours.close()
        assert receive_packet(theirs) == (b"", [])


def test_a_blocking_reader_waits_for_one_whole_message() -> None:
    ours, theirs = socket.socketpair()
    fd = file_with(b"payload")
    with ours, theirs:
        send_with_fds(ours, frame(Pull()), [fd])
        os.close(fd)

        reader = BlockingReader[RunCommand](theirs, RunCommand)

        assert reader.next() == Pull()
        assert content(reader.take_fd()) == b"payload"
        ours.close()
        assert reader.next() is None


def test_a_blocking_reader_gives_messages_that_arrived_together_one_by_one() -> None:
    ours, theirs = socket.socketpair()
    fd = file_with(b"payload")
    with ours, theirs:
        send_with_fds(ours, frame(Pull()))
        send_with_fds(ours, frame(Release()), [fd])
        os.close(fd)
        reader = BlockingReader[RunCommand](theirs, RunCommand)

        assert (reader.next(), reader.next()) == (Pull(), Release())
        assert content(reader.take_fd()) == b"payload"


def test_taking_a_descriptor_that_did_not_come_is_an_error() -> None:
    keeper, kernel = pair()
    with pytest.raises(IndexError):
        kernel.take_fd()
    keeper.close()
    kernel.close()


@contextlib.contextmanager
def no_free_descriptors() -> Iterator[None]:
    """Every number that this process may use is taken."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)


def test_a_descriptor_for_which_there_is_no_room_is_told_not_lost() -> None:
    keeper, kernel = pair()
    fds = [file_with(b"x") for _ in range(2)]
    keeper.send(Value(rank=0), fds)
    for fd in fds:
        os.close(fd)
    before = num_fds()

    with no_free_descriptors(), pytest.raises(StartError) as raised:
        kernel.receive()

    assert str(raised.value) == (
        "This process has no free file descriptors for what ranks send. Close files, or raise the limit (ulimit -n)."
    )
    assert num_fds() == before
    keeper.close()
    kernel.close()
