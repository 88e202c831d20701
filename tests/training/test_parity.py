"""The same training on other numbers of ranks: one global batch of 64, spread in three ways, for 50 updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .test_accelerator import losses_per_update

RunRanks = Callable[..., list[Any]]

NUM_UPDATES = 50
GLOBAL_BATCH = 64
LENGTH = 256
CLIP = 0.5


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_s10_ranks_and_accumulation_change_no_loss(run_ranks: RunRanks, kind: str) -> None:
    (alone,) = run_ranks(losses_per_update, 1, GLOBAL_BATCH, NUM_UPDATES, kind, 1, CLIP, LENGTH)

    two = run_ranks(losses_per_update, 2, GLOBAL_BATCH // 2, NUM_UPDATES, kind, 1, CLIP, LENGTH)
    accumulated = run_ranks(losses_per_update, 2, GLOBAL_BATCH // 4, NUM_UPDATES, kind, 2, CLIP, LENGTH)

    assert len(alone) == NUM_UPDATES
    assert alone[-1] < alone[0] / 2
    for losses in (*two, *accumulated):
        assert losses == pytest.approx(alone, abs=1e-5)
