"""Ranks of different keepers that wait for each other: told, compared and ended as those of one keeper are."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from accel_nb.launch.recording import recorded_events
from accel_nb.launch.run import Run
from accel_nb.protocol.events import Stalled, StallEnded, StepTimes
from accel_nb.protocol.plan import Timeouts

from ...census import wait_until
from ...launching import launch, start
from .conftest import Install

pytestmark = [pytest.mark.engines, pytest.mark.faults]
THIS = Path(__file__).name


def line_of(text: str) -> int:
    """Of the first line of this file that ends in `text`."""
    return next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(text))


def waits_for_the_other(go_on: str, end: str) -> str:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    while os.environ["RANK"] == "1" and not Path(go_on).exists():
        time.sleep(0.05)  # as long as it takes
    dist.barrier()  # for rank 1
    while not Path(end).exists():
        time.sleep(0.05)
    return "went on"


def calls_differ() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    if os.environ["RANK"] == "2":
        dist.barrier()  # alone
    else:
        dist.all_reduce(torch.ones(1))  # without rank 2


def returns_early_on_one() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for _ in range(3 if os.environ["RANK"] == "1" else 5):
        dist.all_reduce(torch.ones(1))  # in turn


def returns_on_two_while_three_computes() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    if os.environ["RANK"] == "2":
        return
    while os.environ["RANK"] == "3":
        time.sleep(0.05)
    dist.all_reduce(torch.ones(1))


def trains(enough: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    going = torch.ones(1)
    while going.item():
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        going.fill_(not Path(enough).exists())
        dist.broadcast(going, 0)


def test_k02_who_waits_where_is_told_across_keepers(loopback: Install, tmp_path: Path) -> None:
    loopback()
    go_on, end = tmp_path / "go_on", tmp_path / "end"
    run = start(waits_for_the_other, str(go_on), str(end), backend="loopback", timeouts=Timeouts(stalled_s=1.0))
    # A busy machine may have joined the ranks so slowly that this was told before.
    wait_until(lambda: "barrier" in told_of(run), 60, lambda: str(run.state))

    go_on.touch()

    wait_until(lambda: run.state.stalled is None, 60, lambda: str(run.state))
    end.touch()
    assert run.wait(60)
    assert list(run.result()) == ["went on"] * 2
    events = list(recorded_events(run.log_dir))
    stalled = next(event for event in events if isinstance(event, Stalled) and "barrier" in event.text)
    assert f"rank 0 waits in torch.distributed.barrier ({THIS}, line {line_of('# for rank 1')}) for" in stalled.text
    assert f"rank 1 is at {THIS}, line {line_of('# as long as it takes')} (`time.sleep(0.05)" in stalled.text
    where = {one.rank: one for one in stalled.ranks}
    assert (where[0].state, where[1].state) == ("waits", "runs")
    assert "waits_for_the_other" in where[1].stack
    assert any(isinstance(event, StallEnded) for event in events[events.index(stalled) :])


def test_w22_operations_that_differ_across_keepers_end_the_run_with_all_of_them(loopback: Install) -> None:
    loopback((0, 1), (2,))

    launched = launch(calls_differ, backend="loopback", num_processes=3)

    failure = launched.failure
    told = str(failure)
    assert "the ranks are in operations that do not fit together: rank 0 in torch.distributed.all_reduce(" in told
    assert f"rank 2 in torch.distributed.barrier() ({THIS}, line {line_of('# alone')})" in told
    assert {one.kind for one in failure.failures if not one.consequence} == {"dead_end"}


def test_k02_a_rank_that_has_returned_elsewhere_is_the_cause(loopback: Install) -> None:
    loopback()

    launched = launch(returns_early_on_one, backend="loopback")

    assert launched.failure.rank == 0
    assert "rank 1 has returned" in str(launched.failure)
    assert f"{THIS}, line {line_of('# in turn')}" in launched.failure.cause.location


def test_k02_a_rank_that_has_just_returned_is_the_cause_though_others_of_its_keeper_go_on(loopback: Install) -> None:
    """Its keeper, which stays, tells what its ranks have noted without waiting for its turn."""
    loopback((0,), (1, 2, 3))

    launched = launch(returns_on_two_while_three_computes, backend="loopback", num_processes=4)

    assert "rank 2 has returned" in str(launched.failure)


def test_steps_of_ranks_of_several_keepers_are_measured(loopback: Install, tmp_path: Path) -> None:
    loopback()
    enough = tmp_path / "enough"

    run = start(trains, str(enough), backend="loopback")

    wait_until(lambda: measured_ranks(run) == {0, 1}, 60, lambda: str(run.state))
    enough.touch()
    assert run.wait(60)


def told_of(run: Run) -> str:
    """What is known of a wait that goes on."""
    return run.state.stalled.text if run.state.stalled is not None else ""


def measured_ranks(run: Run) -> set[int | None]:
    """Of which ranks the times of steps are told."""
    return {event.rank for event in recorded_events(run.log_dir) if isinstance(event, StepTimes) and event.num_steps}
