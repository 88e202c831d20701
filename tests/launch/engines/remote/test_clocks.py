from __future__ import annotations

import pytest

from accel_nb.launch.engines.remote.joined_watch import by_clock
from tests.launch.keeper.noted import S, call, doing, notes

pytestmark = pytest.mark.engines
AHEAD_S = -10_000


def test_times_of_another_machine_are_by_the_kernels_clock_and_durations_stay() -> None:
    ended = by_clock(notes(0, call(3, begun_s=10_005, ended_s=10_007), own_ns=5 * S, input_ns=S), AHEAD_S * S)
    reads = by_clock(doing(1, "next batch", 10_009, step_ended_ns=10_008 * S), AHEAD_S * S)

    assert ended.call is not None
    assert (ended.call.begun_ns, ended.call.ended_ns) == (5 * S, 7 * S)
    assert (ended.own_ns, ended.input_ns) == (5 * S, S)
    assert (reads.activity_since_ns, reads.step_ended_ns) == (9 * S, 8 * S)


def test_what_has_not_ended_has_not_by_any_clock() -> None:
    moved = by_clock(notes(0, call(3, begun_s=10_005)), AHEAD_S * S)

    assert moved.call is not None
    assert moved.call.ended_ns == 0
    assert moved.step_ended_ns == moved.activity_since_ns == 0
