from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from torch import nn

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.steps.optimizer import AcceleratedOptimizer


class FakeScaler:
    """Says that gradients are not finite whenever `overflow` is set; records the order of calls."""

    def __init__(self) -> None:
        self.overflow = False
        self.calls: list[str] = []

    def unscale_(self, _: torch.optim.Optimizer) -> None:
        self.calls.append("unscale")

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.calls.append("step")
        if not self.overflow:
            optimizer.step()

    def update(self) -> None:
        self.calls.append("update")


def prepared(scaler: FakeScaler | None = None) -> tuple[AcceleratedOptimizer, nn.Parameter]:
    parameter = nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    given: Any = scaler
    return AcceleratedOptimizer(torch.optim.SGD([parameter], lr=0.5), scaler=given), parameter


def test_steps_and_clears_only_when_gradients_are_synchronised() -> None:
    optimizer, parameter = prepared()

    optimizer.gradient_state.sync_gradients = False
    optimizer.step()
    optimizer.zero_grad()
    assert (parameter.item(), parameter.grad) == (1.0, torch.ones(1))

    optimizer.gradient_state.sync_gradients = True
    optimizer.step()
    optimizer.zero_grad()
    assert (parameter.item(), parameter.grad) == (0.5, None)


def test_a01_a_step_that_the_scaler_skips_is_known() -> None:
    scaler = FakeScaler()
    optimizer, parameter = prepared(scaler)

    seen = []
    for overflow in (True, False):
        scaler.overflow = overflow
        optimizer.step()
        seen.append((optimizer.step_was_skipped, parameter.item()))

    assert seen == [(True, 1.0), (False, 0.5)]


def test_s07_gradients_are_unscaled_once_before_the_step() -> None:
    scaler = FakeScaler()
    optimizer, _ = prepared(scaler)

    optimizer.unscale()
    optimizer.unscale()
    optimizer.step()
    optimizer.unscale()

    assert scaler.calls == ["unscale", "step", "update", "unscale"]


def test_a01_a_scheduler_does_not_advance_after_a_skipped_step() -> None:
    accelerator = Accelerator(cpu=True)
    scaler: Any = FakeScaler()
    accelerator.scaler = scaler
    plain = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    optimizer, scheduler = accelerator.prepare(plain, torch.optim.lr_scheduler.LinearLR(plain, 1.0, 0.0, 10))

    scaler.overflow = True
    optimizer.step()
    scheduler.step()
    assert accelerator.optimizer_step_was_skipped
    assert scheduler.get_last_lr() == [1.0]

    scaler.overflow = False
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.9]


def test_a_closure_is_called() -> None:
    optimizer, parameter = prepared()

    loss = optimizer.step(lambda: 2.5)

    assert loss == 2.5
    assert parameter.item() == 0.5


def test_groups_state_and_defaults_are_the_wrapped_optimizers_own() -> None:
    optimizer, _ = prepared()

    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})

    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is optimizer.optimizer.param_groups
    assert optimizer.state is optimizer.optimizer.state
    assert optimizer.defaults["lr"] == 0.5
    assert len(optimizer.state_dict()["param_groups"]) == 2
    assert optimizer.optimizer.param_groups[0]["lr"] == 0.25


def test_a_prepared_optimizer_can_be_pickled_and_copied() -> None:
    optimizer, _ = prepared()

    for twin in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        assert isinstance(twin, AcceleratedOptimizer)
        assert twin.state_dict() == optimizer.state_dict()
