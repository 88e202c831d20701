"""One set from its order to its end, by a clock of the test's own. Its ranks are processes that say they are ready."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterator

import msgspec
import pytest

from accel_nb.launch.channel import BlockingReader, receive_packet, send_packet, send_with_fds
from accel_nb.launch.keeper.rank_process import RankProcess
from accel_nb.launch.keeper.standby_set import ASKING_S, LOOKING_S, WARMING_S, StandbySet
from accel_nb.protocol.commands import (
    Confirm,
    GetReady,
    RankMessage,
    RankReady,
    RunOrder,
    StandbyNews,
    StandbyOrder,
    StartKeeper,
    Surroundings,
)
from accel_nb.protocol.plan import LaunchPlan, RankPlan
from accel_nb.protocol.wire import frame
from tests.launch.keeper.fake_devices import GIB, FakeDevice

IDLE_S = 300.0
ANSWERS_S = 60.0
"""A busy machine may take its time; by the set's own clock nothing passes."""


def _start(_rank: int, write_fd: int, sock: socket.socket) -> int:
    """A process that says it is ready whenever it is asked."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(write_fd)
        reader = BlockingReader[RankMessage](sock, RankMessage)
        while isinstance(reader.next(), GetReady | Confirm):
            send_with_fds(sock, frame(RankReady()))
    finally:
        os._exit(0)


@pytest.fixture
def ranks() -> Iterator[list[RankProcess]]:
    started = [RankProcess(rank, _start) for rank in range(2)]
    yield started
    for rank in started:
        os.kill(rank.pid, signal.SIGKILL)
        os.waitpid(rank.pid, 0)
        rank.close()


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice({})


class Kernel:
    """Its end of the set's socket."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(ANSWERS_S)
        self.sets_fd = theirs.detach()

    def news(self) -> StandbyNews:
        return msgspec.msgpack.decode(receive_packet(self.socket)[0], type=StandbyNews)

    def hand_over(self) -> socket.socket:
        """The kernel's end of a run's channel."""
        ours, theirs = socket.socketpair()
        with theirs:
            send_packet(self.socket, StartKeeper(num_ranks=2), [theirs.fileno()])
        ours.settimeout(ANSWERS_S)
        return ours


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.socket.close()


def made(kernel: Kernel, ranks: list[RankProcess], device: FakeDevice) -> StandbySet:
    """A set that has just been ordered."""
    plan = LaunchPlan(
        run_id="run",
        function_name="train",
        engine="local",
        device_kind="fake",
        process_group="gloo",
        ranks=tuple(RankPlan(rank=rank, local_rank=rank, device_label=f"fake:{rank}") for rank in range(2)),
    )
    around = Surroundings(variables={}, cwd=b"/", sys_path=(), argv=(), umask=0o022, locale="C")
    order = StandbyOrder(like=RunOrder(plan=plan, surroundings=around, log_dir="/"), idle_s=IDLE_S, free_times=2.0)
    file = os.memfd_create("order")
    os.write(file, msgspec.msgpack.encode(order))
    return StandbySet(file, kernel.sets_fd, ranks, 0, device)


def go_on(one: StandbySet, now: float) -> bool:
    """Let it act on what is readable; whether it has come to an end."""
    poll = select.poll()
    for fd in one.fds():
        poll.register(fd, select.POLLIN)
    return one.act({fd for fd, _ in poll.poll(20)}, now)


def ready(kernel: Kernel, ranks: list[RankProcess], device: FakeDevice) -> StandbySet:
    """At the time 1."""
    one = made(kernel, ranks, device)
    end = time.monotonic() + ANSWERS_S
    while not select.select([kernel.socket], [], [], 0)[0]:
        assert not go_on(one, 1.0)
        assert time.monotonic() < end
    assert kernel.news() == StandbyNews(state="ready", keeper_pid=os.getpid())
    return one


def over(reason: str) -> StandbyNews:
    return StandbyNews(state="over", keeper_pid=os.getpid(), reason=reason)


def test_a_run_is_taken_when_all_ranks_have_said_again_that_they_are_ready(
    kernel: Kernel, ranks: list[RankProcess], device: FakeDevice
) -> None:
    one = ready(kernel, ranks, device)
    run = kernel.hand_over()

    end = time.monotonic() + ANSWERS_S
    while not go_on(one, 2.0):
        assert time.monotonic() < end

    assert one.run is not None
    one.run.sendall(b"hello")
    assert run.recv(5) == b"hello"
    one.run.close()
    run.close()
    one.give_up("")


def test_a_run_starts_elsewhere_when_a_rank_does_not_answer(
    kernel: Kernel, ranks: list[RankProcess], device: FakeDevice
) -> None:
    one = ready(kernel, ranks, device)
    os.kill(ranks[1].pid, signal.SIGSTOP)
    run = kernel.hand_over()
    assert not go_on(one, 2.0)

    assert go_on(one, 2.0 + ASKING_S)

    assert one.run is None
    assert run.recv(1) == b""
    run.close()
    assert kernel.news() == over("a rank no longer answered")


def test_a_set_that_nobody_takes_ends(kernel: Kernel, ranks: list[RankProcess], device: FakeDevice) -> None:
    one = ready(kernel, ranks, device)

    assert not go_on(one, 0.9 + IDLE_S)
    assert go_on(one, 1.1 + IDLE_S)

    assert kernel.news() == over("no launch came within 300 s")


def test_a_set_that_the_kernel_lets_go_ends(kernel: Kernel, ranks: list[RankProcess], device: FakeDevice) -> None:
    one = ready(kernel, ranks, device)

    kernel.socket.shutdown(socket.SHUT_RDWR)

    assert go_on(one, 2.0)
    assert one.run is None


def test_a_set_ends_when_somebody_else_uses_its_devices(
    kernel: Kernel, ranks: list[RankProcess], device: FakeDevice
) -> None:
    one = ready(kernel, ranks, device)
    device.holders = [((1, GIB), (2, GIB))] * 2

    assert go_on(one, 3.0)

    assert kernel.news() == over("somebody else has begun to use fake:0")


def test_ranks_do_not_get_ready_on_devices_that_stay_in_use(
    kernel: Kernel, ranks: list[RankProcess], device: FakeDevice
) -> None:
    device.holders = [((1, GIB),)] * 2
    one = made(kernel, ranks, device)

    assert not go_on(one, 1.0)
    assert go_on(one, 1.1 + LOOKING_S)

    assert kernel.news() == over("fake:0 is in use")


def test_ranks_that_do_not_get_ready_are_given_up(kernel: Kernel, ranks: list[RankProcess], device: FakeDevice) -> None:
    os.kill(ranks[0].pid, signal.SIGSTOP)
    one = made(kernel, ranks, device)

    assert not go_on(one, 1.0)
    assert not go_on(one, 2.0)
    assert go_on(one, 1.1 + WARMING_S)

    assert kernel.news() == over("the ranks were not ready after 45 s")
