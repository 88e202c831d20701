"""What is left out when ranks write more than can be shown: O13."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_nb.launch.views.flow_limit import BACKLOG_BYTES, BURST_BYTES, FlowLimit, fair_shares


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


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 1000), min_size=1), st.floats(0, 5000, allow_nan=False))
def test_shares_are_fair(wanted: dict[int, int], limit: float) -> None:
    shares = fair_shares(wanted, limit)

    assert shares.keys() == wanted.keys()
    assert sum(shares.values()) == pytest.approx(min(limit, sum(wanted.values())))
    cut = [shares[source] for source in wanted if shares[source] < wanted[source]]
    assert all(share <= min(cut, default=0.0) + 1e-6 for share in shares.values() if cut)
    assert max(cut, default=0.0) == pytest.approx(min(cut, default=0.0))
