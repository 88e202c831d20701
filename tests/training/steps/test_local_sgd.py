from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accel_nb import Accelerator, LocalSGD

RunRanks = Callable[..., list[Any]]


def _prepared(accelerator: Accelerator, **options: Any) -> tuple[nn.Module, Any]:  # noqa: ANN401  of SGD
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0, **options))  # type: ignore[no-any-return]


def _weights(num_steps: int, local_sgd_steps: int, enabled: bool, accumulation: int = 1) -> list[float]:
    """The weight after each step in which rank r's gradient is r + 1, and after the block and a step behind it."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    model, optimizer = _prepared(accelerator)
    parameter = next(model.parameters())
    weights = []

    def train() -> None:
        with accelerator.accumulate(model):
            accelerator.backward(-model(torch.tensor([[accelerator.process_index + 1.0]])).sum())
            optimizer.step()
            optimizer.zero_grad()

    with LocalSGD(accelerator, model, local_sgd_steps, enabled=enabled) as local_sgd:
        for _ in range(num_steps):
            for _ in range(accumulation):
                train()
            local_sgd.step()
            weights.append(parameter.item())
    weights.append(parameter.item())
    for _ in range(accumulation):
        train()
    return [*weights, parameter.item()]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_ranks_train_by_themselves_and_average_every_few_steps(run_ranks: RunRanks, accumulation: int) -> None:
    # Steps of 1 and 2: apart after the first, averaged after the second, and at the block's end after the third.
    assert run_ranks(_weights, 2, 3, 2, True, accumulation) == [[1.0, 3.0, 4.0, 4.5, 6.0], [2.0, 3.0, 5.0, 4.5, 6.0]]


def test_switched_off_ranks_train_together(run_ranks: RunRanks) -> None:
    assert run_ranks(_weights, 2, 2, 2, False) == [[1.5, 3.0, 3.0, 4.5]] * 2


def test_one_process_trains_as_it_is() -> None:
    assert _weights(2, 1, True) == [1.0, 2.0, 2.0, 3.0]


def _left_by_an_error() -> list[bool]:
    accelerator = Accelerator(cpu=True)
    model, _ = _prepared(accelerator)
    if not accelerator.is_main_process:
        return []
    assert isinstance(model, DistributedDataParallel)
    apart = []

    def train() -> None:
        with LocalSGD(accelerator, model, 2) as local_sgd:
            apart.append(model.require_backward_grad_sync)
            local_sgd.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    return [*apart, model.require_backward_grad_sync]


def test_a_rank_that_leaves_by_an_error_waits_for_nobody(run_ranks: RunRanks) -> None:
    assert run_ranks(_left_by_an_error, 2) == [[False, True], []]


def test_a_number_of_steps_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="local_sgd_steps=0 must be at least 1"):
        LocalSGD(Accelerator(cpu=True), nn.Linear(1, 1), 0)
