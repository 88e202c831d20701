"""Which rank holds the others up: told once, when it is sure."""

from __future__ import annotations

import pytest

from accel_nb.launch.keeper.straggling import MIN_STEPS, SLOWEST_EVERY_S, StragglerWatch, straggler_of
from accel_nb.protocol.events import StepTimes, Straggler
from accel_nb.protocol.ledger import RankNotes
from tests.launch.keeper.noted import S, stepped

LABELS = ["cuda:0", "cuda:1", "cuda:2"]


def times(*own_s: float, input_s: tuple[float, ...] = (0.0, 0.0, 0.0)) -> list[StepTimes]:
    return [
        StepTimes(rank=rank, num_steps=20, step_s=1.0, own_s=own, input_s=input_s[rank])
        for rank, own in enumerate(own_s)
    ]


def watched(
    watch: StragglerWatch, own_s: list[float], end_s: float, start_s: float = 0.0
) -> list[StepTimes | Straggler]:
    """What `watch` tells of ranks whose steps all take half a second, from `start_s` to `end_s`."""
    told: list[StepTimes | Straggler] = []
    for quarter in range(round(start_s * 4), round(end_s * 4)):
        now_s = quarter / 4
        picture: list[RankNotes] = [stepped(rank, int(now_s * 2), 0.5, own) for rank, own in enumerate(own_s)]
        told += watch.look(picture, round(now_s * S))
    return told


def test_step_times_are_told_at_a_slow_clock() -> None:
    told = watched(StragglerWatch(LABELS), [0.1, 0.1, 0.1], 20)

    assert {event.rank for event in told} == {0, 1, 2}
    assert 7 <= sum(event.rank == 0 for event in told) <= 10
    assert all(isinstance(event, StepTimes) for event in told)
    newest = told[-1]
    assert isinstance(newest, StepTimes)
    assert (newest.step_s, newest.own_s, newest.input_s) == pytest.approx((0.5, 0.1, 0.0))


def test_a_long_run_is_measured_less_often() -> None:
    watch = StragglerWatch(LABELS)
    watched(watch, [0.1, 0.1, 0.1], 600)

    told = watched(watch, [0.1, 0.1, 0.1], 700, start_s=600)

    assert sum(event.rank == 0 for event in told) == pytest.approx(100 / SLOWEST_EVERY_S, abs=1)


def test_nothing_is_told_while_no_steps_are_made() -> None:
    watch = StragglerWatch(LABELS)

    assert watch.look([stepped(rank, 0, 0, 0) for rank in range(3)], 10 * S) == []


def test_a_straggler_is_told_once() -> None:
    told = [event for event in watched(StragglerWatch(LABELS), [0.1, 0.3, 0.1], 60) if isinstance(event, Straggler)]

    assert [event.rank for event in told] == [1]
    assert told[0].factor == pytest.approx(3.0)


def test_a_straggler_among_several_keepers_is_told_whose_notes_are_of_different_moments() -> None:
    watch = StragglerWatch(LABELS)
    told: list[StepTimes | Straggler] = []
    for quarter in range(4 * 60):
        now_s = quarter / 4
        # Each keeper tells a moment of every 1.25 s, of its own.
        moments = [max(0.0, now_s - (now_s - 0.5 * rank) % 1.25) for rank in range(3)]
        picture = [stepped(rank, int(moments[rank] / 0.05), 0.05, 0.045 if rank == 1 else 0.01) for rank in range(3)]
        told += watch.look(picture, round(now_s * S))

    assert [event.rank for event in told if isinstance(event, Straggler)] == [1]


def test_a_rank_that_is_slow_once_is_no_straggler() -> None:
    watch = StragglerWatch(LABELS)
    watched(watch, [0.1, 0.1, 0.1], 12)
    picture = [stepped(rank, 40, 0.5, 0.3 if rank == 1 else 0.1) for rank in range(3)]
    told = watch.look(picture, 20 * S)

    later = [stepped(rank, 80, 0.5, 0.2 if rank == 1 else 0.1) for rank in range(3)]

    assert [event for event in [*told, *watch.look(later, 40 * S)] if isinstance(event, Straggler)] == []


def test_ranks_that_do_not_wait_for_each_other_have_no_straggler() -> None:
    """A sweep: each trains a model of its own, one of them a larger one."""
    watch = StragglerWatch(LABELS)
    told: list[StepTimes | Straggler] = []
    for second in range(60):
        step_s = [1.0, 0.5, 0.5]
        picture = [stepped(rank, int(second / each_s), each_s, each_s) for rank, each_s in enumerate(step_s)]
        told += watch.look(picture, second * S)

    assert told
    assert not any(isinstance(event, Straggler) for event in told)


def test_few_steps_are_not_judged() -> None:
    watch = StragglerWatch(LABELS)
    told: list[StepTimes | Straggler] = []
    for step in range(1, MIN_STEPS):
        told += watch.look([stepped(rank, step, 5.0, 1.0 + rank) for rank in range(3)], step * 5 * S)

    assert not any(isinstance(event, Straggler) for event in told)


def test_it_says_how_much_and_why_computation() -> None:
    found = straggler_of(times(0.1, 0.1, 0.31), LABELS)

    assert found is not None
    assert (found.rank, found.by) == (2, "computation")
    assert found.text == (
        "rank 2 (cuda:2) holds the others up by 0.21 s in each step: its own part takes 0.31 s, that of the others "
        "0.10 s; in computation: look at what else uses its device or its CPUs, whether its batches are larger, and "
        "what it alone does between steps."
    )


def test_it_says_how_much_and_why_input() -> None:
    found = straggler_of(times(0.1, 0.3, input_s=(0.01, 0.2, 0.0)), LABELS)

    assert found is not None
    assert (found.rank, found.by) == (1, "input")
    assert found.text == (
        "rank 1 (cuda:1) holds the others up by 0.20 s in each step: its own part takes 0.30 s, that of the other rank "
        "0.10 s; it waits for its batches: give its DataLoader more workers, and look at where its data lies."
    )


@pytest.mark.parametrize("own_s", [(0.1, 0.12, 0.1), (0.010, 0.025, 0.010), (1.0,)])
def test_who_keeps_pace_is_no_straggler(own_s: tuple[float, ...]) -> None:
    assert straggler_of(times(*own_s), LABELS) is None
