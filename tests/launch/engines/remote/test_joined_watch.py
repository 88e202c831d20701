"""What the watch over several keepers tells them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_nb.launch.engines.engine import Attempt
from accel_nb.launch.engines.remote.joined_watch import JoinedWatch
from accel_nb.launch.engines.remote.mailbox import EventOutlet, Mailbox
from accel_nb.launch.engines.remote.merging import Merging
from accel_nb.launch.engines.remote.seat import Seat
from accel_nb.launch.keeper.event_stream import EventStream
from accel_nb.protocol.commands import (
    DescribeRanks,
    KeeperMessage,
    PartCommand,
    Pull,
    RanksDescribed,
    RanksNoted,
    Release,
    Stop,
    TakeUp,
)
from accel_nb.protocol.events import Stalled, Whereabouts
from accel_nb.protocol.remote import AgentHello, RunOver
from tests.launch.keeper.noted import doing
from tests.launch.keeper.orders import attempt_of

pytestmark = pytest.mark.engines


class ToldSeat(Seat):
    """Keeps what is sent there."""

    def __init__(self, number: int, *, has_kernel: bool) -> None:
        super().__init__(number, [number], lambda _peer, _data: True)
        self.told: list[Pull | Stop | Release | PartCommand | RunOver] = []
        now = time.monotonic()
        hello = AgentHello(
            seat=number, place="here", host="a", pid=1, versions={}, address="", interface="", monotonic_s=now,
            has_kernel=has_kernel,
        )  # fmt: skip
        self.welcome(b"peer", hello, now)

    def send(self, command: Pull | Stop | Release | PartCommand | RunOver) -> None:
        self.told.append(command)


def nothing() -> None:
    """What the ranks would run."""


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    with attempt_of(nothing, log_dir=tmp_path) as made:
        yield made


@pytest.fixture
def events() -> Iterator[EventStream]:
    said: Mailbox[KeeperMessage] = Mailbox()
    stream = EventStream(EventOutlet(said))
    yield stream
    stream.close()
    said.close()


def test_the_stacks_of_a_stall_go_only_where_another_kernel_shows_them(attempt: Attempt, events: EventStream) -> None:
    seats = [ToldSeat(0, has_kernel=False), ToldSeat(1, has_kernel=True)]
    watch = JoinedWatch(attempt.plan, seats, Merging(attempt, watches=True), events)
    watch.begin(attempt.plan)
    since_s = time.monotonic() - 1000
    for seat in seats:
        watch.take(seat, RanksNoted(notes=(doing(seat.number, "next batch", since_s),)))

    watch.look(time.monotonic())
    assert all(any(isinstance(one, DescribeRanks) for one in seat.told) for seat in seats)
    for seat in seats:
        place = Whereabouts(rank=seat.number, state="waits", stack="a stack")
        again = doing(seat.number, "next batch", since_s)
        watch.take(seat, RanksDescribed(notes=(again,), places=(place,)))
    watch.look(time.monotonic())

    taken_up = [[one for one in seat.told if isinstance(one, TakeUp)] for seat in seats]
    assert taken_up[0] == []
    (stalled,) = taken_up[1][0].events
    assert isinstance(stalled, Stalled)
    assert [one.stack for one in stalled.ranks] == ["a stack"] * 2
