"""Hub and wire without anything around them, and the copies of files that go over them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_nb.launch.engines.remote.file_copies import PART_BYTES, FileCopies
from accel_nb.launch.engines.remote.hub import Hub
from accel_nb.launch.engines.remote.link import BEAT
from accel_nb.launch.engines.remote.wire import Wire
from accel_nb.protocol.commands import Pull
from accel_nb.protocol.remote import FilePart, Summons

from ...census import wait_until

pytestmark = pytest.mark.engines


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub(["127.0.0.1"], [(0,)], run_id="r")
    yield made
    made.close()


@pytest.fixture
def wire(hub: Hub) -> Iterator[Wire]:
    made = Wire(Summons(contact=hub.contact, seat=0), "127.0.0.1")
    yield made
    made.close(0.0)


def test_a_sign_of_life_is_an_answer(hub: Hub, wire: Wire) -> None:
    """Whoever has come waits for the others, and not only as long as for somebody that is none of ours."""
    wire.link.send(Pull())
    frames: list[tuple[bytes, bytes]] = []

    def has_come() -> bool:
        hub.wait([], 0.05)
        frames.extend(hub.receive())
        return bool(frames)

    wait_until(has_come, 30, lambda: "nothing has come")
    assert wire.receive() == []
    assert not wire.is_welcome

    assert hub.send(frames[0][0], BEAT)

    wait_until(lambda: wire.receive() == [] and wire.is_welcome, 30, lambda: "no sign of life")
    assert not wire.is_gone


def test_other_keys_are_not_let_in(hub: Hub) -> None:
    other = Hub(["127.0.0.1"], [(0,)], run_id="r")
    try:
        keys = other.contact
        contact = type(keys)(
            addresses=keys.addresses, port=hub.contact.port, hub_key=hub.contact.hub_key, agent_key=keys.agent_key,
            agent_secret=keys.agent_secret, run_id="r", place="", seats=((0,),),
        )  # fmt: skip
        wire = Wire(Summons(contact=contact, seat=0), "127.0.0.1")
        wire.link.send(Pull())

        def is_turned_away() -> bool:
            hub.wait([], 0.05)
            wire.receive()
            return wire.is_gone

        wait_until(is_turned_away, 30, lambda: "it is still connected")
        assert hub.receive() == []
        wire.close(0.0)
    finally:
        other.close()


def test_the_rest_of_a_file_goes_part_by_part_and_stops_where_nothing_moves(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_bytes(b"x" * (3 * PART_BYTES))
    sent: list[FilePart] = []
    copies = FileCopies(tmp_path, sent.append)

    copies.send_rest(lambda: len(sent) < 2)

    assert [part.offset for part in sent] == [0, PART_BYTES]
    copies.send_rest(lambda: True)
    assert [part.offset for part in sent] == [0, PART_BYTES, 2 * PART_BYTES]
