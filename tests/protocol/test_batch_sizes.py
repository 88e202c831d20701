"""What is told, kept and handed on of the searches for a batch size."""

from __future__ import annotations

from typing import Any

import pytest

from accel_nb.protocol import environment
from accel_nb.protocol.events import BatchSizeBegun, BatchSizeTried, RanOutOfMemory, Restarting
from accel_nb.protocol.run_state import RunState, advance_all


def test_m03_the_try_under_way_is_known_by_rank() -> None:
    begun = BatchSizeBegun(rank=1, function="train", batch_size=8)
    out = RanOutOfMemory(rank=1, function="train", batch_size=8)
    tried = BatchSizeTried(rank=1, function="train", batch_size=8, fits=False, duration_s=0.1)

    assert advance_all(RunState(), [begun, out]).ranks[1].batch_size == begun
    assert advance_all(RunState(), [begun, out, tried]).ranks[1].batch_size is None


@pytest.mark.parametrize(("reason", "num_kept"), [("train: 8 does not fit", 1), ("", 0)])
def test_m05_what_was_tried_outlives_a_restart_that_the_search_needs(reason: str, num_kept: int) -> None:
    tried = BatchSizeTried(rank=0, function="train", batch_size=8, fits=False, duration_s=0.1)

    state = advance_all(RunState(), [tried, Restarting(attempt=1, reason=reason)])

    assert len(state.ranks[0].batch_sizes) == num_kept


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"fits": True}, "train: batch size 8 fits"),
        ({"fits": True, "accumulation": 4}, "train: batch size 8 fits with 4 times the accumulation steps"),
        ({"fits": True, "next_batch_size": 12}, "train: batch size 8 fits, trying 12"),
        ({}, "train: batch size 8 does not fit, giving up (no room)"),
        (
            {"on_ranks": (1, 3), "next_batch_size": 4},
            "train: batch size 8 does not fit on rank 1, 3, trying again with 4 (no room)",
        ),
        (
            {"next_batch_size": 4, "next_accumulation": 2},
            "train: batch size 8 does not fit, trying again with 4 and 2 times the accumulation steps (no room)",
        ),
        (
            {"num_updates": 7, "on_ranks": (0,), "next_batch_size": 4},
            "train: batch size 8 ran out of memory on rank 0 after 7 steps, starting it from its beginning with 4 (no room)",  # noqa: E501
        ),
    ],
)  # fmt: skip
def test_m03_what_is_told_of_a_try(changes: dict[str, Any], sentence: str) -> None:
    told = {"fits": False, "reason": "no room", **changes}

    assert BatchSizeTried(function="train", batch_size=8, duration_s=1, **told).sentence == sentence


def test_m09_what_failed_is_handed_to_ranks_that_are_started_again() -> None:
    variables = environment.failed_batch_sizes_variable({"train": (16, 8), "evaluate": (4,)})

    with environment.changed(variables):
        assert environment.failed_batch_sizes("train") == (16, 8)
        assert environment.failed_batch_sizes("other") == ()
    assert environment.failed_batch_sizes("train") == ()
    assert environment.failed_batch_sizes_variable({}) == {}
