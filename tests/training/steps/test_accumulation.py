from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accel_nb.training.accelerator import Accelerator

from ..examples import Numbers

RunRanks = Callable[..., list[Any]]


def updates(num_samples: int, steps: int, *, validate: bool = False) -> list[float]:
    """The gradient of each update, where micro-batch i has the gradient i (batches of one sample)."""
    accelerator = Accelerator(gradient_accumulation_steps=steps)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    loaders = DataLoader(Numbers(num_samples), 1), DataLoader(Numbers(3), 1)
    model, optimizer, loader, validation = accelerator.prepare(model, plain, *loaders)
    gradients = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch.float().reshape(1, 1)).sum())
            if accelerator.sync_gradients:
                gradients.append(next(model.parameters()).grad.item())
            optimizer.step()
            optimizer.zero_grad()
        for _ in validation if validate else ():
            pass
        for _ in validation if validate else ():
            break
    return gradients


def test_s04_s05_the_tail_is_the_mean_of_what_it_has() -> None:
    Accelerator(cpu=True)

    assert updates(10, 4) == pytest.approx([1.5, 5.5, 8.5])
    assert updates(8, 4) == pytest.approx([1.5, 5.5])
    assert updates(2, 4) == pytest.approx([0.5])


def test_s05_a_tail_of_one_leaves_gradients_from_before_it_alone() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, loader = accelerator.prepare(nn.Linear(1, 1, bias=False), DataLoader(Numbers(3), 1))

    for batch in loader:
        model.weight.grad = torch.tensor([[10.0]])
        with accelerator.accumulate(model):
            accelerator.backward(model(batch.float().reshape(1, 1)).sum())

    assert model.weight.grad.item() == 12.0


def test_s03_a_validation_loop_in_between_changes_nothing() -> None:
    Accelerator(cpu=True)

    assert updates(10, 4, validate=True) == updates(10, 4)


def test_s05_the_tail_is_exact_on_two_ranks(run_ranks: RunRanks) -> None:
    # ranks read 0 2 4 6 8 and 1 3 5 7 9
    for gradients in run_ranks(updates, 2, 10, 2):
        assert gradients == pytest.approx([1.5, 5.5, 8.5])


def test_s08_two_optimizers_step_together() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    first, second = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    optimizers = accelerator.prepare(*(torch.optim.SGD(one.parameters(), lr=0.1) for one in (first, second)))
    first, second, loader = accelerator.prepare(first, second, DataLoader(Numbers(5), 1))
    changes: list[tuple[bool, bool]] = []

    for batch in loader:
        before = [one.weight.item() for one in (first, second)]
        with accelerator.accumulate(first, second):
            accelerator.backward((first(batch.float() + 1) * second(batch.float() + 1)).sum())
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        changes.append((first.weight.item() != before[0], second.weight.item() != before[1]))

    assert changes == [(False, False), (True, True), (False, False), (True, True), (True, True)]


def test_s07_clipping_waits_for_the_whole_gradient() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    parameter = nn.Parameter(torch.zeros(1))
    norms = []

    for _ in range(2):
        with accelerator.accumulate():
            accelerator.backward((6 * parameter).sum())
            norms.append(accelerator.clip_grad_norm_([parameter], 1.0))
            accelerator.clip_grad_value_([parameter], 0.5)

    assert norms == [None, torch.tensor(6.0)]
    assert parameter.grad == torch.tensor([0.5])


def test_without_accumulation_every_step_counts() -> None:
    accelerator = Accelerator(cpu=True)
    parameter = nn.Parameter(torch.zeros(1))

    with accelerator.accumulate():
        accelerator.backward((2 * parameter).sum())

    assert accelerator.sync_gradients
    assert parameter.grad == torch.tensor([2.0])


def test_a_new_accelerator_begins_with_complete_gradients() -> None:
    with Accelerator(cpu=True, gradient_accumulation_steps=3).accumulate():
        pass

    assert Accelerator(cpu=True).sync_gradients


def unsynchronised() -> tuple[float, float]:
    accelerator = Accelerator()
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    (parameter,) = model.parameters()
    own = torch.full((1, 1), float(accelerator.process_index))
    with accelerator.no_sync(model):
        accelerator.backward(model(own).sum())
    alone = parameter.grad.item()
    accelerator.backward(model(own).sum())
    return alone, parameter.grad.item()


def test_no_sync_leaves_gradients_to_each_rank_until_the_next_backward(run_ranks: RunRanks) -> None:
    assert run_ranks(unsynchronised, 2) == [(0.0, 1.0), (1.0, 1.0)]
