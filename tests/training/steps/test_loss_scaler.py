"""The loss scale, with torch's own scaler, which also works on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from accel_nb.errors import TrainingError
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.models.precision import PRECISIONS, refuse_half_weights
from accel_nb.training.settings import GradScalerKwargs
from accel_nb.training.steps.loss_scaler import LossScaler, make_scaler

CPU = torch.device("cpu")


def scaled(num_optimizers: int = 1, **settings: float) -> tuple[Accelerator, list[nn.Parameter], list[Any]]:
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = LossScaler("cpu", **{"init_scale": 8.0, **settings})
    parameters = [nn.Parameter(torch.ones(1)) for _ in range(num_optimizers)]
    optimizers = [accelerator.prepare(torch.optim.SGD([one], lr=1.0)) for one in parameters]
    return accelerator, parameters, optimizers


def test_gradients_are_scaled_and_the_step_is_not() -> None:
    accelerator, (parameter,), (optimizer,) = scaled()

    accelerator.backward((0.25 * parameter).sum())
    assert parameter.grad == torch.tensor([2.0])
    optimizer.step()

    assert parameter.item() == 0.75
    assert (optimizer.step_was_skipped, accelerator.update_count) == (False, 1)


@pytest.mark.parametrize("fused", [False, True])
def test_a01_a_step_with_infinite_gradients_is_skipped_and_known(*, fused: bool) -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = LossScaler("cpu", init_scale=8.0)
    parameter = nn.Parameter(torch.ones(1))
    plain = torch.optim.SGD([parameter], lr=1.0, fused=fused)
    optimizer, scheduler = accelerator.prepare(plain, torch.optim.lr_scheduler.LinearLR(plain, 1.0, 0.0, 4))

    seen = []
    for factor in (float("inf"), 0.25):
        accelerator.backward((factor * parameter).sum())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        seen.append((accelerator.optimizer_step_was_skipped, parameter.item(), scheduler.get_last_lr()[0]))

    assert seen == [(True, 1.0, 1.0), (False, 0.75, 0.75)]
    assert accelerator.scaler.get_scale() == 4.0
    assert accelerator.update_count == 1


def test_s07_clipping_looks_at_true_gradients_once() -> None:
    accelerator, (parameter,), (optimizer,) = scaled()

    accelerator.backward((6 * parameter).sum())
    norm = accelerator.clip_grad_norm_([parameter], 2.0)
    accelerator.clip_grad_value_(iter([parameter]), 1.5)
    optimizer.step()

    assert norm == torch.tensor(6.0)
    assert parameter.item() == pytest.approx(-0.5, abs=1e-5)


def test_s07_s08_clipping_one_model_leaves_the_others_gradients_alone() -> None:
    accelerator, (first, second), (optimizer, other) = scaled(2)

    accelerator.backward((2 * first).sum())
    accelerator.clip_grad_norm_(first, 10.0)
    optimizer.step()
    accelerator.backward((3 * second).sum())
    assert second.grad == torch.tensor([24.0])
    norm = accelerator.clip_grad_norm_(second, 10.0)
    other.step()

    assert norm == torch.tensor(3.0)
    assert (first.item(), second.item()) == (-1.0, -2.0)


def test_s08_gradients_unscaled_before_another_optimizers_step_are_not_unscaled_again() -> None:
    accelerator, (first, second), (optimizer, other) = scaled(2)

    accelerator.backward((2 * first + 3 * second).sum())
    accelerator.unscale_gradients()
    optimizer.step()
    other.step()

    assert (first.item(), second.item()) == (-1.0, -2.0)


@pytest.mark.parametrize("by_hand", [False, True])
def test_s07_a_step_that_the_loop_leaves_out_leaves_the_next_one_right(*, by_hand: bool) -> None:
    accelerator, (parameter,), (optimizer,) = scaled()
    scaler: Any = accelerator.scaler

    accelerator.backward((float("inf") * parameter).sum())
    if by_hand:
        scaler.unscale_(optimizer)
    norm = accelerator.clip_grad_norm_(parameter, 10.0)
    assert norm is not None
    assert not norm.isfinite()
    optimizer.zero_grad()  # "norm is not finite: continue"
    assert scaler.get_scale() == 4.0
    accelerator.backward((2 * parameter).sum())
    assert accelerator.clip_grad_norm_(parameter, 10.0) == torch.tensor(2.0)
    optimizer.step()

    assert parameter.item() == -1.0


def test_s07_a_step_left_out_by_an_optimizer_without_gradients_is_no_update() -> None:
    accelerator, (first, _), (optimizer, other) = scaled(2)

    accelerator.backward((2 * first).sum())
    accelerator.unscale_gradients()
    optimizer.step()
    other.zero_grad()

    assert first.item() == -1.0
    accelerator.backward((2 * first).sum())
    assert first.grad == torch.tensor([18.0]), "the old gradient, 2, and 8 times the new one"


def test_memory_that_is_freed_between_unscaling_and_step_leaves_the_scale_to_others() -> None:
    accelerator, (parameter,), (optimizer,) = scaled()
    accelerator.backward((2 * parameter).sum())
    accelerator.clip_grad_norm_(parameter, 10.0)
    accelerator.free_memory(optimizer)
    optimizer = accelerator.prepare(torch.optim.SGD([parameter], lr=1.0))
    optimizer.zero_grad()

    accelerator.backward((float("inf") * parameter).sum())
    optimizer.step()

    assert accelerator.scaler is not None
    assert accelerator.scaler.get_scale() == 4.0


def test_a02_a_backward_past_the_accelerator_is_told() -> None:
    accelerator, (parameter,), (optimizer,) = scaled()
    accelerator.backward(parameter.sum())
    optimizer.step()

    (2 * parameter).sum().backward()
    with pytest.raises(TrainingError, match=r"SGD.step\(\): .*Call accelerator.backward\(loss\) instead of loss.back"):
        optimizer.step()


def test_a02_a_step_without_any_gradient_is_told() -> None:
    accelerator, _, (optimizer,) = scaled()
    accelerator.backward((2 * nn.Parameter(torch.ones(1))).sum())

    with pytest.raises(TrainingError, match=r"SGD.step\(\): none of its parameters has a gradient"):
        optimizer.step()


def test_a02_the_scaler_may_be_used_by_hand() -> None:
    accelerator, (parameter,), (optimizer,) = scaled()
    scaler: Any = accelerator.scaler

    scaler.scale((2 * parameter).sum()).backward()
    scaler.unscale_(optimizer)
    assert accelerator.clip_grad_norm_(parameter, 10.0) == torch.tensor(2.0)
    optimizer.step()

    assert parameter.item() == -1.0


def test_the_scale_grows_as_its_settings_say() -> None:
    accelerator, (parameter,), (optimizer,) = scaled(growth_interval=1, growth_factor=4.0)
    scaler: Any = accelerator.scaler

    accelerator.backward((0.25 * parameter).sum())
    optimizer.step()

    assert scaler.get_scale() == 32.0


def test_only_fp16_scales_and_its_settings_are_heard() -> None:
    scaler = make_scaler(PRECISIONS["fp16"], CPU, GradScalerKwargs(init_scale=4.0, growth_interval=7))

    assert scaler is not None
    assert (scaler.get_scale(), scaler.get_growth_interval(), scaler.get_growth_factor()) == (4.0, 7, 2.0)
    assert make_scaler(PRECISIONS["bf16"], CPU) is None


def test_a03_half_weights_are_named_before_the_first_step() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).half())

    with pytest.raises(TrainingError, match=r"2 parameters of Sequential are float16, '1.weight' first\. Load"):
        refuse_half_weights(model, PRECISIONS["fp16"])

    refuse_half_weights(model.requires_grad_(False), PRECISIONS["fp16"])
    refuse_half_weights(nn.Linear(1, 1).half(), PRECISIONS["bf16"])
