"""The search in launched ranks: what is shown of it, and when the ranks are started again."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from torch import distributed

from accel_nb import Accelerator, find_executable_batch_size
from tests.launch.launching import launch

from .one_rank_out import accelerator_outside

pytestmark = pytest.mark.faults


def run_out() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.10 GiB.")


@pytest.mark.parametrize("debug", [False, True])
def test_m05_in_a_launch(*, debug: bool) -> None:
    launched = launch(accelerator_outside, "backward", debug=debug)

    assert [result["tried"] for result in launched.values] == [[16, 8]] * 2
    lines = launched.text.splitlines()
    assert (
        lines.count(
            "[r0-r1] train: batch size 16 does not fit on rank 1, trying again with 8 "
            "(CUDA out of memory. Tried to allocate 2.10 GiB.)"
        )
        == 1
    )
    assert lines.count("[r0-r1] train: batch size 8 fits") == 1
    tries = [[event.batch_size for event in rank.batch_sizes] for rank in launched.run.state.ranks.values()]
    assert tries == [[16, 8]] * 2


def makes_its_accelerator_within() -> tuple[list[int], float]:
    tried = []

    @find_executable_batch_size(starting_batch_size=16, reduction="halve")
    def train(batch_size: int) -> float:
        tried.append(batch_size)
        if batch_size > 8 and os.environ["RANK"] == "1":
            time.sleep(0.5)
            run_out()
        return float(Accelerator().reduce(torch.ones(1)))

    return tried, train()


def test_m05_memory_runs_out_before_the_ranks_are_connected() -> None:
    launched = launch(makes_its_accelerator_within)

    assert launched.values == [([16, 8], 2.0)] * 2, "without a restart, which would forget what was tried"


def waits_in_an_operation(operation: str) -> tuple[list[int], float]:
    accelerator = Accelerator()
    tried = []

    @find_executable_batch_size(starting_batch_size=16, reduction="halve")
    def train(batch_size: int) -> float:
        tried.append(batch_size)
        if batch_size > 8 and not accelerator.is_main_process:
            time.sleep(0.5)
            run_out()
        value = torch.ones(1)
        if operation == "reduce":
            return float(accelerator.reduce(value))
        distributed.all_reduce(value)
        return value.item()

    return tried, train()


@pytest.mark.parametrize("operation", ["reduce", "all_reduce"])
@pytest.mark.parametrize("debug", [False, True])
def test_m05_while_the_other_rank_waits_in_an_operation(operation: str, *, debug: bool) -> None:
    launched = launch(waits_in_an_operation, operation, debug=debug)

    assert launched.values == [([16, 8], 2.0)] * 2
    assert launched.run.state.attempt == 0


def computes_on_and_on() -> tuple[str, list[int]]:
    """Rank 0 never notices that rank 1 has run out of memory."""
    accelerator = Accelerator()
    tried = []

    @find_executable_batch_size(starting_batch_size=16, reduction="halve")
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        while accelerator.is_main_process and batch_size > 4:
            time.sleep(0.01)
        if batch_size > 4:
            run_out()

    train()
    return os.environ["TORCHELASTIC_RESTART_COUNT"], tried


def test_m05_ranks_that_cannot_leave_a_try_start_again_below_it() -> None:
    launched = launch(computes_on_and_on)

    assert launched.values == [("2", [4])] * 2
    text = "train: batch size 16 does not fit, and the ranks could not go on within 10 s"
    assert f"accel_nb: {text}" in launched.text
    assert "train begins with batch size 8: before the restart, 16 did not fit." in launched.text
    assert "train begins with batch size 4: before the restart, 16, 8 did not fit." in launched.text


def dies_above(limit: int, *, fails_afterwards: bool = False) -> tuple[str, list[int]]:
    accelerator = Accelerator()
    tried = []

    @find_executable_batch_size(starting_batch_size=16, reduction="halve")
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        if batch_size > limit and not accelerator.is_main_process:
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.all_reduce(torch.ones(1))

    train()
    if fails_afterwards:
        raise ValueError("boom")
    return os.environ["TORCHELASTIC_RESTART_COUNT"], tried


def test_m09_a_rank_that_dies_in_a_try_counts_as_does_not_fit_once() -> None:
    launched = launch(dies_above, 8)

    assert launched.values == [("1", [8])] * 2
    what = "train: batch size 16 does not fit: rank 1 was ended by SIGKILL while trying it"
    assert f"accel_nb: {what}. Starting all ranks again, without this size" in launched.text


def test_m09_the_second_death_ends_the_run() -> None:
    failure = launch(dies_above, 1).failure

    assert failure.attempts == 2
    assert "killed by SIGKILL (signal 9)" in str(failure)
    assert (
        "It was trying batch size 8 in the search of train, in which a rank had died before (16 did not fit). "
        "Begin with a much smaller starting_batch_size."
    ) in str(failure)


def test_m09_such_a_restart_is_none_of_the_users() -> None:
    launched = launch(dies_above, 8, kwargs={"fails_afterwards": True}, max_restarts=1)

    assert "starting all ranks again, attempt 2 of 2" in launched.text
    assert launched.failure.attempts == 3
    assert "ValueError: boom" in str(launched.failure)
