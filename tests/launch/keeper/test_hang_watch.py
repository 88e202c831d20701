"""Who waits in vain, by the notes alone: told at the right time, and not again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from accel_nb.launch.keeper.hang_watch import (
    DIFFERENT_SETTLE_S,
    RETURNED_SETTLE_S,
    DeadEnd,
    Decision,
    HangWatch,
    TellEnd,
    TellStall,
    all_in_one_call,
)
from accel_nb.protocol.ledger import ENDED, GENERATION_BITS, RankNotes
from tests.launch.keeper.noted import S, call, doing, notes

STALLED_S = 30.0


def looks(watch: HangWatch, picture: Sequence[RankNotes], start_s: float, end_s: float) -> list[tuple[float, Decision]]:
    """What `watch` decides while nothing changes, four times a second."""
    times = [start_s + step / 4 for step in range(round((end_s - start_s) * 4))]
    return [(now, found) for now in times if (found := watch.look(picture, round(now * S))) is not None]


@pytest.fixture
def watch() -> HangWatch:
    return HangWatch(STALLED_S, 2)


def test_k02_a_rank_that_waits_for_one_in_other_code_is_told_after_stalled_s(watch: HangWatch) -> None:
    ((told_s, found),) = looks(watch, [notes(0, call(3, begun_s=1)), notes(1, call(2, ended_s=1))], 1, 60)

    assert told_s == pytest.approx(31, abs=0.3)
    assert isinstance(found, TellStall)
    assert found.wait.rank == 0
    assert found.waits_s == pytest.approx(30, abs=0.3)


def test_it_is_told_again_at_each_doubling(watch: HangWatch) -> None:
    told = looks(watch, [notes(0, call(1, begun_s=0.1)), notes(1)], 0.1, 300)

    assert [round(now) for now, _ in told] == [30, 60, 120, 240]


def test_a_picture_that_has_changed_is_told_once_it_rests(watch: HangWatch) -> None:
    waits = notes(0, call(1, begun_s=0.1))
    looks(watch, [waits, notes(1)], 0.1, 50)

    told = looks(watch, [waits, doing(1, "next batch", 50)], 50, 90)

    assert [round(now) for now, _ in told] == [80]


def test_a_rank_that_goes_on_ends_the_stall_and_makes_the_next_one_later(watch: HangWatch) -> None:
    looks(watch, [notes(0, call(1, begun_s=0.1)), notes(1)], 0.1, 40)

    ((_, found),) = looks(watch, [notes(0, call(1, ended_s=40)), notes(1, call(1, ended_s=40))], 40, 100)
    again = looks(watch, [notes(0, call(2, begun_s=100)), notes(1, call(1, ended_s=40))], 100, 200)

    assert isinstance(found, TellEnd)
    assert found.waited_s == pytest.approx(40, abs=0.3)
    assert [round(now - 100) for now, _ in again] == [60], "one and a half times as long as what ended by itself"


def test_a_long_computation_while_nobody_waits_is_no_stall(watch: HangWatch) -> None:
    both = [notes(rank, call(4, ended_s=1)) for rank in range(2)]

    assert looks(watch, both, 1, 500) == []


def test_k02_another_thread_that_waits_is_told_when_nothing_else_happens(watch: HangWatch) -> None:
    listens: dict[str, Any] = {"elsewhere": "torch.distributed.broadcast", "num_elsewhere": 1, "elsewhere_since_ns": S}
    told_while_busy = [
        found
        for step in range(1, 30)
        for found in looks(watch, [notes(0, num_steps=step, **listens), notes(1)], step * 10, step * 10 + 10)
    ]

    ((told_s, found),) = looks(watch, [notes(0, num_steps=30, **listens), notes(1)], 300, 340)

    assert told_while_busy == []
    assert told_s == pytest.approx(330, abs=0.3)
    assert isinstance(found, TellStall)
    assert (found.wait.rank, found.wait.elsewhere) == (0, True)
    waits = notes(1, call(1, begun_s=340))
    assert watch.lasts(found, [notes(0, num_steps=30, **listens), waits])
    ((_, ended),) = looks(watch, [notes(0, num_steps=30), waits], 340, 341)
    assert isinstance(ended, TellEnd)


def test_numbers_are_no_dead_end_where_other_threads_have_called_some(watch: HangWatch) -> None:
    different = [notes(0, call(3)), notes(1, call(3, signature=8))]
    returned = [notes(0, call(3)), notes(1, life=ENDED, number=2)]

    for picture in (different, returned):
        assert any(isinstance(found, DeadEnd) for _, found in looks(HangWatch(STALLED_S, 2), picture, 0, 5))
        picture[1] = replace(picture[1], num_elsewhere=1)
        assert looks(watch, picture, 0, 5) == []


def test_calls_before_which_other_threads_had_called_unequally_many_do_not_belong_together(watch: HangWatch) -> None:
    first, second = call(3), replace(call(3, signature=8), num_elsewhere=1)
    picture = [replace(notes(0, first), num_elsewhere=1), replace(notes(1, second), num_elsewhere=1)]

    assert looks(watch, picture, 0, 5) == []
    assert all_in_one_call([picture[0], replace(picture[1], call=replace(first, num_elsewhere=1))]) is None
    assert all_in_one_call([picture[0], replace(picture[1], call=first)]) == first


def test_a_rank_that_goes_on_alone_after_all_operations_is_no_stall(watch: HangWatch) -> None:
    """Rank 0 has returned and closed its group; rank 1 saves what it has."""
    generation = 1 << GENERATION_BITS
    returned = notes(0, life=ENDED, number=2 * generation, number_before=generation + 4)

    assert looks(watch, [returned, notes(1, call(generation + 4, ended_s=1))], 1, 500) == []


def test_a_rank_that_comes_further_gives_the_others_more_patience(watch: HangWatch) -> None:
    waits = notes(0, call(1, begun_s=0.1))
    told: list[float] = []
    for step in range(4 * 140):
        now = 0.1 + step / 4
        reads = doing(1, "next batch", now)
        told += [now for _ in [watch.look([waits, reads], round(now * S))] if _ is not None]

    assert [round(now) for now in told] == [120]


def test_k02_on_gpus_the_wait_is_where_the_result_is_used(watch: HangWatch) -> None:
    """The operation has returned at once; the other rank has not come to it."""
    picture = [notes(0, call(5, begun_s=1, ended_s=1)), notes(1, call(4, begun_s=0.5, ended_s=0.5))]

    ((told_s, found),) = looks(watch, picture, 1, 60)

    assert told_s == pytest.approx(31, abs=0.3)
    assert isinstance(found, TellStall)


@pytest.mark.parametrize(
    ("activity", "num_ranks", "told"), [("backward", 1, 0), ("backward", 2, 1), ("next batch", 1, 1)]
)
def test_what_ranks_do_alone_and_what_others_may_wait_for(activity: str, num_ranks: int, told: int) -> None:
    watch = HangWatch(STALLED_S, num_ranks)

    assert len(looks(watch, [doing(0, activity, 1), *map(notes, range(1, num_ranks))], 1, 50)) == told


def test_k02_a_rank_that_waits_for_one_that_has_returned_is_a_dead_end(watch: HangWatch) -> None:
    picture = [notes(0, call(8, begun_s=1)), notes(1, call(7, ended_s=1), life=ENDED)]

    (told_s, found), *_ = looks(watch, picture, 1, 10)

    assert found == DeadEnd((0,), (1,))
    assert told_s == pytest.approx(1 + RETURNED_SETTLE_S, abs=0.3)


def test_a_rank_that_has_closed_the_group_before_is_absent_too(watch: HangWatch) -> None:
    first, second = 1 << GENERATION_BITS, 2 << GENERATION_BITS
    closed = notes(1, life=ENDED, number=second, number_before=first + 7)

    assert looks(watch, [notes(0, call(first + 8, begun_s=1)), closed], 1, 10)[0][1] == DeadEnd((0,), (1,))
    assert looks(watch, [notes(0, call(first + 7, begun_s=1)), closed], 10, 20) == [], "that one it has called"


def test_ranks_in_different_operations_are_a_dead_end(watch: HangWatch) -> None:
    picture = [notes(0, call(3, signature=5, begun_s=1)), notes(1, call(3, signature=6, begun_s=1))]

    (told_s, found), *_ = looks(watch, picture, 1, 10)

    assert found == DeadEnd((0, 1), ())
    assert told_s == pytest.approx(1 + DIFFERENT_SETTLE_S, abs=0.3)


@pytest.mark.parametrize(
    "picture",
    [
        pytest.param([notes(0, call(3, signature=0)), notes(1, call(3, signature=6))], id="one is not compared"),
        pytest.param([notes(0, call(3, signature=5)), notes(1, call(2, signature=6))], id="different turns"),
        pytest.param([notes(0, call(3)), notes(1, call(3, ended_s=1), life=ENDED)], id="the other made it"),
        pytest.param([notes(0, call(3)), notes(1, call(2, ended_s=1))], id="the other still runs"),
    ],
)
def test_what_may_end_is_no_dead_end(watch: HangWatch, picture: list[RankNotes]) -> None:
    assert looks(watch, picture, 0.0, 20) == []


def test_a_dead_end_that_dissolves_within_the_settle_is_none(watch: HangWatch) -> None:
    looks(watch, [notes(0, call(8, begun_s=1)), notes(1, life=ENDED)], 1, 1.5)

    assert looks(watch, [notes(0, call(8, begun_s=1, ended_s=2)), notes(1, life=ENDED)], 1.5, 3) == []


def test_what_was_found_can_be_looked_at_again(watch: HangWatch) -> None:
    dead = [notes(0, call(8, begun_s=1)), notes(1, life=ENDED)]
    alive = [notes(0, call(8, begun_s=1, ended_s=2)), notes(1, life=ENDED)]
    ((_, stall),) = looks(watch, [notes(0, call(8, begun_s=1)), notes(1)], 1, 35)
    assert isinstance(stall, TellStall)

    assert watch.lasts(DeadEnd((0,), (1,)), dead)
    assert not watch.lasts(DeadEnd((0,), (1,)), alive)
    assert watch.lasts(stall, dead)
    assert not watch.lasts(stall, alive)


def test_k13_all_in_one_call() -> None:
    first = call(1)

    assert all_in_one_call([notes(0, first), notes(1, call(1))]) == first
    assert all_in_one_call([notes(0, first), notes(1, call(1, ended_s=1))]) is None
    assert all_in_one_call([notes(0, first), notes(1, call(2))]) is None
    assert all_in_one_call([notes(0, first), notes(1, call(1, signature=8))]) is None
    assert all_in_one_call([notes(0, first), notes(1)]) is None
