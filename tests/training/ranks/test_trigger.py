"""A flag of any rank, seen by all at the same step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from accel_nb.training.accelerator import Accelerator

RunRanks = Callable[..., list[Any]]


def last_step(set_at: dict[int, list[int]], num_steps: int) -> tuple[int, bool]:
    """Loops until the flag is seen; `set_at`: at which steps each rank raises it."""
    accelerator = Accelerator()
    for step in range(num_steps):
        if step in set_at.get(accelerator.process_index, []):
            accelerator.set_trigger()
            accelerator.set_trigger()
        if accelerator.check_trigger():
            return step, accelerator.check_trigger()
    return num_steps, accelerator.check_breakpoint()


@pytest.mark.parametrize(
    ("set_at", "expected"),
    [({1: [5]}, 5), ({0: [3], 1: [3]}, 3), ({0: [6], 1: [2]}, 2), ({}, 8)],
    ids=["by one", "by both", "by the other later", "by none"],
)
def test_k03_all_ranks_stop_at_the_same_step(
    run_ranks: RunRanks, set_at: dict[int, list[int]], expected: int
) -> None:  # fmt: skip
    assert run_ranks(last_step, 2, set_at, 8) == [(expected, False)] * 2


def test_k03_one_process_sees_its_own_flag_once() -> None:
    accelerator = Accelerator(cpu=True)
    assert accelerator.check_trigger() is False

    accelerator.set_breakpoint()

    assert accelerator.check_breakpoint() is True
    assert accelerator.check_trigger() is False
