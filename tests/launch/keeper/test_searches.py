"""When ranks that search a batch size must start again: pure, the clock given."""

from __future__ import annotations

import pytest

from accel_nb.launch.keeper.searches import LEFT_S, SearchWatch
from accel_nb.protocol.batch_sizes import SearchHistory
from accel_nb.protocol.events import BatchSizeBegun, BatchSizeTried, CellEnded, RankFailed, RanOutOfMemory, RunEvent
from accel_nb.protocol.failure import RankFailure


def begun(size: int) -> RunEvent:
    return BatchSizeBegun(function="train", batch_size=size)


def out(size: int) -> RunEvent:
    return RanOutOfMemory(function="train", batch_size=size)


def left(size: int, *, fits: bool = False) -> RunEvent:
    return BatchSizeTried(function="train", batch_size=size, fits=fits, duration_s=1)


def watch_of_two(*events: tuple[int, RunEvent], history: SearchHistory | None = None) -> SearchWatch:
    watch = SearchWatch(2, history or SearchHistory())
    for rank, event in events:
        watch.note(rank, event, 0.0)
    return watch


def death(rank: int, signal: str | None = "SIGKILL") -> RankFailure:
    return RankFailure(rank=rank, kind="died", message="killed.", signal=signal)


def test_ranks_that_leave_a_try_in_time_go_on() -> None:
    watch = watch_of_two((0, begun(8)), (1, begun(8)), (1, out(8)), (1, left(8)), (0, left(8)))

    assert not watch.is_overdue(2 * LEFT_S)
    assert watch.reason == ""


def test_ranks_that_do_not_leave_a_try_start_again() -> None:
    watch = watch_of_two((0, begun(8)), (1, begun(8)), (1, out(8)), (1, left(8)))

    assert not watch.is_overdue(LEFT_S - 1)
    assert watch.is_overdue(LEFT_S)
    assert not watch.is_overdue(LEFT_S + 1), "told once"
    assert watch.dead_end() is None
    again = watch.restart_after(0, 0)
    assert again is not None
    assert again.searches == SearchHistory(failed={"train": (8,)}, restarts=1)
    assert again.reason.startswith("train: batch size 8 does not fit, and the ranks could not go on within 10 s")


def test_kept_ranks_that_do_not_leave_a_try_end() -> None:
    watch = watch_of_two((0, begun(8)), (1, begun(8)), (1, out(8)), (1, left(8)))
    watch.are_kept = True

    assert watch.is_overdue(LEFT_S)
    failure = watch.dead_end()
    assert failure is not None
    assert failure.rank == 1
    assert failure.message.startswith("train: batch size 8 does not fit, and the ranks could not go on within 10 s")
    assert watch.restart_after(0, 0) is None


def test_m05_kept_ranks_stay_when_a_cell_ends_within_a_try() -> None:
    watch = watch_of_two((0, begun(8)), (1, begun(8)), (1, out(8)), (1, CellEnded(cell=3)), (0, CellEnded(cell=3)))
    watch.are_kept = True

    assert not watch.is_overdue(2 * LEFT_S)
    assert watch.rank_died(death(1)) == death(1), "it tries nothing any more"
    assert watch.reason == ""


def test_a_search_within_a_try_does_not_end_it() -> None:
    inner = (
        BatchSizeBegun(function="inner", batch_size=3),
        BatchSizeTried(function="inner", batch_size=3, fits=True, duration_s=1),
    )
    watch = watch_of_two((1, begun(8)), *((1, event) for event in inner))

    watch.rank_died(death(1))

    assert watch.reason == "train: batch size 8 does not fit: rank 1 was ended by SIGKILL while trying it"


def test_a_search_within_the_try_that_is_left_does_not_count_as_leaving_it() -> None:
    inner = BatchSizeTried(function="inner", batch_size=3, fits=True, duration_s=1)
    watch = watch_of_two((1, out(8)), (0, inner), (1, left(8)))

    assert watch.is_overdue(LEFT_S)


def test_ranks_that_leave_a_try_have_left_the_search_within() -> None:
    inner = RanOutOfMemory(function="inner", batch_size=3)
    watch = watch_of_two((0, inner), (1, out(8)), (1, left(8)), (0, left(8)))

    assert not watch.is_overdue(2 * LEFT_S)


def test_a_rank_that_fails_ends_the_wait() -> None:
    failed = RankFailed(failure=RankFailure(rank=0, kind="raised"))
    watch = watch_of_two((1, out(8)), (0, failed))

    assert not watch.is_overdue(2 * LEFT_S)
    assert watch.restart_after(0, 0) is None


def test_m09_a_death_in_a_try_counts_once() -> None:
    watch = watch_of_two((0, begun(8)), (1, begun(8)))

    assert watch.rank_died(death(1)) == death(1)
    assert watch.rank_died(death(0)) == death(0), "both died of it"
    again = watch.restart_after(0, 0)
    assert again is not None
    assert again.searches == SearchHistory(failed={"train": (8,)}, died=("train",), restarts=1)


def test_m09_the_second_death_is_told() -> None:
    watch = watch_of_two((1, begun(4)), history=SearchHistory(failed={"train": (8,)}, died=("train",), restarts=1))

    told = watch.rank_died(death(1))

    assert told.message == (
        "killed. It was trying batch size 4 in the search of train, in which a rank had died before (8 did not fit). "
        "Begin with a much smaller starting_batch_size."
    )
    assert watch.restart_after(1, 0) is None


@pytest.mark.parametrize("events", [(), ((1, begun(8)), (1, left(8, fits=True)))])
def test_a_death_outside_a_try_is_no_matter_of_the_search(events: tuple[tuple[int, RunEvent], ...]) -> None:
    watch = watch_of_two(*events)

    assert watch.rank_died(death(1)) == death(1)
    assert watch.restart_after(0, 0) is None


def test_an_exit_without_a_signal_is_no_matter_of_the_search() -> None:
    watch = watch_of_two((1, begun(8)))

    assert watch.rank_died(death(1, signal=None)) == death(1, signal=None)
    assert watch.restart_after(0, 0) is None


def test_what_failed_is_remembered_also_for_the_users_restarts() -> None:
    watch = watch_of_two((0, left(8)), (1, left(8)), history=SearchHistory(failed={"train": (16,)}, restarts=1))

    again = watch.restart_after(1, 1)

    assert again is not None
    assert again.reason == ""
    assert again.searches == SearchHistory(failed={"train": (16, 8)}, restarts=1)
