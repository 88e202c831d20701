"""What a page is told of a run: since when it goes on."""

from __future__ import annotations

from accel_nb.jupyter.run_feed import RunFeed
from accel_nb.protocol.events import LogLines
from accel_nb.protocol.run_state import RunState


def test_the_clock_of_a_later_cell_of_kept_ranks_begins_with_its_own_first_event() -> None:
    feed = RunFeed()

    feed.add([LogLines(rank=0, text="a", sequence=7, time_s=1e9)])
    feed.add([LogLines(rank=0, text="b", sequence=8, time_s=1e9 + 1)])

    assert feed.whole(RunState(), None, can_hear=True).started_s == 1e9
