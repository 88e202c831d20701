from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.steps.scheduler import describe_pace, horizon

RunRanks = Callable[..., list[Any]]


def optimizer() -> SGD:
    return SGD([nn.Parameter(torch.ones(1))], lr=1.0)


def rates(num_steps: int, options: dict[str, Any], make: Callable[[SGD], LRScheduler]) -> list[float]:
    accelerator = Accelerator(**options)
    scheduler, prepared = accelerator.prepare(make(plain := optimizer()), plain)
    trace = []
    for _ in range(num_steps):
        prepared.step()
        scheduler.step()
        trace.append(scheduler.get_last_lr()[0])
    return trace


def linear(plain: SGD, total: int = 20) -> LRScheduler:
    return lr_scheduler.LinearLR(plain, 1.0, 0.0, total_iters=total)


def one_cycle(plain: SGD) -> LRScheduler:
    return lr_scheduler.OneCycleLR(plain, max_lr=1.0, total_steps=5)


def test_s01_per_call_gives_the_rates_of_one_process(run_ranks: RunRanks) -> None:
    options = {"cpu": True, "scheduler_steps": "per_call"}

    alone = rates(10, options, linear)

    assert run_ranks(rates, 2, 10, options, linear) == [alone, alone]


def test_s01_by_default_a_schedule_advances_once_per_rank(run_ranks: RunRanks) -> None:
    alone = rates(20, {"cpu": True}, linear)

    for trace in run_ranks(rates, 2, 10, {}, linear):
        assert trace == pytest.approx(alone[1::2])


def test_s01_with_split_batches_a_schedule_advances_once_per_call(run_ranks: RunRanks) -> None:
    alone = rates(10, {"cpu": True}, linear)

    assert run_ranks(rates, 2, 10, {"split_batches": True}, linear) == [alone, alone]


def test_one_cycle_may_run_out_before_the_loop_ends(run_ranks: RunRanks) -> None:
    traces = run_ranks(rates, 2, 6, {}, one_cycle)

    assert traces[0] == traces[1]
    assert traces[0][2] == traces[0][5]


def printed(options: dict[str, Any]) -> str:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as out:
        rates(1, options, partial(linear, total=1000))
    return out.getvalue()


def test_s01_prepare_says_both_horizons_in_one_line(run_ranks: RunRanks) -> None:
    first, second = run_ranks(printed, 2, {})

    assert "schedule of 1,000 steps ends after 500 updates on 2 ranks" in first
    assert 'Accelerator(scheduler_steps="per_call")' in first
    assert first.count("\n") == 1
    assert second == ""


@pytest.mark.parametrize("options", [{"scheduler_steps": "per_call"}, {"split_batches": True}])
def test_s01_nothing_is_said_when_one_call_is_one_step(run_ranks: RunRanks, options: dict[str, Any]) -> None:
    assert run_ranks(printed, 2, options) == ["", ""]


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda plain: lr_scheduler.CosineAnnealingLR(plain, T_max=7), 7),
        (lambda plain: lr_scheduler.OneCycleLR(plain, 1.0, total_steps=9), 9),
        (lambda plain: lr_scheduler.PolynomialLR(plain, total_iters=4), 4),
        (lambda plain: lr_scheduler.StepLR(plain, 3), None),
        (lambda plain: lr_scheduler.LambdaLR(plain, lambda _: 1.0), None),
    ],
)
def test_horizon_of_a_schedule(make: Callable[[SGD], LRScheduler], steps: int | None) -> None:
    assert horizon(make(optimizer())) == steps


def test_horizon_of_transformers_schedules() -> None:
    def warm_up(step: int, *, num_training_steps: int) -> float:
        return step / num_training_steps

    scheduler = lr_scheduler.LambdaLR(optimizer(), partial(warm_up, num_training_steps=12))

    assert horizon(scheduler) == 12


def test_a_schedule_without_an_end_is_described_by_its_pace() -> None:
    assert "StepLR advances 3 steps at each update on 3 ranks" in describe_pace(
        lr_scheduler.StepLR(optimizer(), 2), 3, 3
    )


def test_a_schedule_waits_for_its_optimizer() -> None:
    accelerator = Accelerator(cpu=True)
    scheduler, prepared = accelerator.prepare(linear(plain := optimizer()), plain)

    accelerator.gradient_state.sync_gradients = False
    prepared.step()
    scheduler.step()

    assert scheduler.get_last_lr() == [1.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda plain: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(plain, 0.5)]),
        lambda plain: lr_scheduler.SequentialLR(
            plain, [lr_scheduler.ExponentialLR(plain, 0.5), lr_scheduler.ConstantLR(plain, 1.0)], [9]
        ),
        lambda plain: lr_scheduler.ReduceLROnPlateau(plain, factor=0.5, patience=0, threshold=0.0),
        lambda plain: lr_scheduler.ExponentialLR(plain, 0.5),
    ],
)
def test_every_kind_of_schedule_waits_for_the_last_micro_batch(make: Callable[[SGD], LRScheduler]) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    scheduler, prepared = accelerator.prepare(make(plain := optimizer()), plain)
    metric = (1.0,) if isinstance(scheduler.scheduler, lr_scheduler.ReduceLROnPlateau) else ()

    trace = []
    for _ in range(6):
        with accelerator.accumulate():
            prepared.step()
            scheduler.step(*metric)
        trace.append(plain.param_groups[0]["lr"])

    assert trace in ([1.0, 0.5, 0.5, 0.25, 0.25, 0.125], [1.0, 1.0, 1.0, 0.5, 0.5, 0.25])


def on_a_plateau() -> list[float]:
    accelerator = Accelerator()
    plain = optimizer()
    scheduler, prepared = accelerator.prepare(lr_scheduler.ReduceLROnPlateau(plain, factor=0.5, patience=1), plain)
    trace = []
    for metric in (5.0, 4.0, 4.0, 3.0, 3.0, 3.0):
        prepared.step()
        scheduler.step(metric)
        trace.append(plain.param_groups[0]["lr"])
    return trace


def test_s01_a_metric_is_counted_once_on_any_number_of_ranks(run_ranks: RunRanks) -> None:
    assert run_ranks(on_a_plateau, 2) == [[1.0, 1.0, 1.0, 1.0, 1.0, 0.5]] * 2


def test_a_schedule_may_advance_whatever_its_optimizer_does() -> None:
    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
    scheduler, prepared = accelerator.prepare(linear(plain := optimizer()), plain)
    prepared.step()

    accelerator.gradient_state.sync_gradients = False
    scheduler.step()

    assert scheduler.get_last_lr() == [0.95]


def test_a_schedule_made_for_a_prepared_optimizer_follows_it() -> None:
    accelerator = Accelerator(cpu=True)
    prepared, other = accelerator.prepare(optimizer(), optimizer())

    scheduler = accelerator.prepare(linear(prepared))

    assert scheduler.optimizers == (prepared,)
    assert accelerator.prepare(scheduler) is scheduler
    assert other not in scheduler.optimizers


def test_state_travels_through_the_wrapper() -> None:
    accelerator = Accelerator(cpu=True)
    scheduler, prepared = accelerator.prepare(linear(plain := optimizer()), plain)
    prepared.step()
    scheduler.step()

    fresh = accelerator.prepare(linear(optimizer()))
    fresh.load_state_dict(scheduler.state_dict())

    assert fresh.get_last_lr() == scheduler.get_last_lr() == [0.95]
