"""Runs that anybody can take part in: nothing of theirs is loaded here."""

from __future__ import annotations

import os

import pytest

from accel_nb.errors import StartError
from accel_nb.launch.engines.remote.seat import Seat
from accel_nb.launch.engines.remote.trust import Trust
from accel_nb.protocol.remote import FilePart

from ...launching import launch, start
from .conftest import Install

pytestmark = pytest.mark.engines
OWN = {0: "only we know"}


def number() -> int:
    return int(os.environ["RANK"])


def fails_on_one() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("no such colour")


def test_values_of_others_stay_where_they_are(loopback: Install) -> None:
    loopback(words=OWN, trust=Trust(words=OWN))

    assert launch(number, backend="loopback").values == [0, None]


def test_the_exception_of_another_is_text_only(loopback: Install) -> None:
    loopback(words=OWN, trust=Trust(words=OWN))

    launched = launch(fails_on_one, backend="loopback")

    failure = launched.failure
    assert (failure.rank, failure.exc_type) == (1, "ValueError")
    assert not (launched.run.log_dir / "rank_1.exception").exists()
    with pytest.raises(FileNotFoundError):
        failure.original()


def test_who_says_to_be_our_own_agent_must_know_our_word(loopback: Install) -> None:
    loopback(words={0: "a guess"}, trust=Trust(words=OWN), start_s=5.0)

    run = start(number, backend="loopback")

    assert run.wait(60)
    with pytest.raises(StartError, match="missing: seat 0"):
        run.result()


def test_a_value_of_a_rank_that_an_agent_does_not_hold_is_not_taken() -> None:
    """Whoever sends it."""
    own, other = (Seat(seat, (seat,), lambda *_: True) for seat in (0, 1))
    trust = Trust(words=OWN)

    assert [trust.takes_value(own, 0), trust.takes_value(other, 1), trust.takes_value(other, 0)] == [True, False, False]
    assert [Trust().takes_value(other, 1), Trust().takes_value(other, 0)] == [True, False]


def test_of_files_of_others_only_text_is_taken() -> None:
    other, trust = Seat(1, (1,), lambda *_: True), Trust(words=OWN)

    taken = {
        name: trust.takes_file(other, FilePart(name=name, offset=0, data=b""))
        for name in ("rank_1.log", "rank_1.stack", "rank_1.exception", "rank_1.memory_snapshot.pickle")
    }

    assert [name for name, is_taken in taken.items() if is_taken] == ["rank_1.log", "rank_1.stack"]
