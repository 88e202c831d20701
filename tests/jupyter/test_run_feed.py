"""What a page is told of a run: since when it goes on, and how much of it is not shown."""

from __future__ import annotations

from accel_nb.jupyter.run_feed import RunFeed
from accel_nb.protocol.events import LogLines, Restarting, RunEvent, RunStarted
from accel_nb.protocol.run_state import RunState, advance_all
from tests.fixtures.recorded import recorded_events


def test_the_clock_of_a_later_cell_of_kept_ranks_begins_with_its_own_first_event() -> None:
    feed = RunFeed()

    feed.add([LogLines(rank=0, text="a", sequence=7, time_s=1e9)])
    feed.add([LogLines(rank=0, text="b", sequence=8, time_s=1e9 + 1)])

    assert feed.whole(RunState(), None, can_hear=True).started_s == 1e9


def test_lines_left_out_are_counted_until_the_ranks_begin_again() -> None:
    feed = RunFeed()
    state = RunState()
    counts = []
    begun = [event for event in recorded_events("success") if isinstance(event, RunStarted)]
    flood: list[RunEvent] = [LogLines(rank=1, text="\n".join(["x" * 100] * 3000))]
    turns: list[list[RunEvent]] = [[*begun], flood, flood, [Restarting(attempt=1)], flood]
    for now, events in enumerate(turns):
        feed.add(events)
        state = advance_all(state, events)
        feed.take(float(now))
        counts.append(feed.whole(state, None, can_hear=True).state.ranks[1].dropped_lines)

    once = counts[1]
    assert 2000 < once < 3000
    assert counts == [0, once, 2 * once, 0, once]


def shown_of(feed: RunFeed, rank: int) -> list[str]:
    return [line.text for line in feed.whole(RunState(), None, can_hear=True).lines if line.rank == rank]


def test_o13_the_last_lines_of_a_rank_are_shown_beside_the_flood_of_another() -> None:
    feed = RunFeed()
    flood = LogLines(rank=1, text="\n".join(["x" * 100] * 3000))

    feed.add([LogLines(rank=0, text="nearly\nlast"), flood])
    feed.take(0.0)

    assert shown_of(feed, 0) == ["nearly", "last"]
    assert 900 < len(shown_of(feed, 1)) < 1000


def test_o13_what_comes_right_after_a_flood_is_shown_when_it_is_the_end() -> None:
    feed = RunFeed()
    feed.add([LogLines(rank=0, text="\n".join(["x" * 100] * 3000))])
    feed.take(0.0)
    feed.add([LogLines(rank=0, text=f"{'trace' * 30}\nlast")])

    feed.take(0.0, is_last=True)

    assert shown_of(feed, 0)[-2:] == ["trace" * 30, "last"]
