"""What is left out when ranks write more than can be shown: O13."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from accel_nb.launch.views.flow_limit import BACKLOG_BYTES, BURST_BYTES, FlowLimit, newest_within


def test_o13_the_few_lines_of_a_rank_are_not_lost_among_the_many_of_another() -> None:
    flow = FlowLimit()
    flow.add("of rank 0", [0])
    for number in range(5000):
        flow.add(f"{number} {'x' * 100}", [1])

    shown = flow.take(0.0) + flow.rest()

    assert shown[0] == "of rank 0"
    assert shown[-1].startswith("4999 ")
    assert [int(line.split()[0]) for line in shown[1:]] == list(range(5000 - len(shown) + 1, 5000)), "the newest"
    assert flow.gaps(0.0, last=True) == {1: 5000 - len(shown) + 1}
    assert 0.98 * (BURST_BYTES + BACKLOG_BYTES) < sum(len(line) + 1 for line in shown) <= BURST_BYTES + BACKLOG_BYTES


def test_o13_ranks_that_write_too_much_are_shown_alike_and_lines_of_ours_always() -> None:
    flow = FlowLimit()
    flow.add("a line of ours")
    for number in range(9000):
        flow.add("x" * 99, [number % 3])
    for _ in range(20):
        flow.add("y" * 99, [0, 1, 2])

    shown = flow.rest()

    assert shown[0] == "a line of ours"
    assert shown[-20:] == ["y" * 99] * 20
    missing = flow.gaps(0.0, last=True)
    assert max(missing.values()) - min(missing.values()) <= 1
    assert len(shown) - 21 == 9000 - sum(missing.values())


def test_o13_a_long_line_of_each_of_many_ranks_is_not_shown_as_nothing() -> None:
    flow = FlowLimit()
    for rank in range(64):
        flow.add("x" * 3500, [rank])

    shown = flow.rest()

    assert len(shown) == BACKLOG_BYTES // 3501
    assert sum(flow.gaps(0.0, last=True).values()) == 64 - len(shown)


@given(st.dictionaries(st.integers(0, 9), st.lists(st.integers(1, 1000)), min_size=1), st.integers(0, 5000))
def test_shares_are_fair_and_leave_no_room(sizes: dict[int, list[int]], limit: int) -> None:
    counts = newest_within(sizes, limit)

    used = {source: sum(sizes[source][:count]) for source, count in counts.items()}
    next_one = {source: sizes[source][count] for source, count in counts.items() if count < len(sizes[source])}
    assert sum(used.values()) <= limit
    assert all(sum(used.values()) + size > limit for size in next_one.values())


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 50), min_size=1), st.integers(0, 200))
def test_shares_of_equal_pieces_are_equal(numbers: dict[int, int], limit: int) -> None:
    counts = newest_within({source: [1] * number for source, number in numbers.items()}, limit)

    cut = [count for source, count in counts.items() if count < numbers[source]]
    assert max(cut, default=0) - min(cut, default=0) <= 1
    assert all(count <= min(cut, default=count) + 1 for count in counts.values())
