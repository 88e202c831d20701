"""Checkpoints that move between Hugging Face Accelerate and us, in both directions, on one rank and on two."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ..examples import small_model

RunRanks = Callable[..., list[Any]]


def trained(library: str, folder: Path, *, load: bool, safe: bool = True) -> dict[str, Any]:
    """Train two steps and save with one of the libraries, or load what was saved; what is known then, and after one
    more step.
    """
    if library == "accelerate":
        from accelerate import Accelerator
    else:
        from accel_nb import Accelerator
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(17 if load else 3)
    model = small_model()
    if load:
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

    def step(value: float) -> None:
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.full((2, 4), value)).square().mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    if load:
        accelerator.load_state(str(folder))
    else:
        random.seed(1 + accelerator.process_index)
        np.random.seed(2 + accelerator.process_index)  # noqa: NPY002
        torch.manual_seed(3 + accelerator.process_index)
        for value in (1.0, 2.0, 3.0, 4.0):
            step(value)
        accelerator.save_state(str(folder), safe_serialization=safe)
    drawn = (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: NPY002
    step(5.0)
    step(6.0)
    weights = [value for one in accelerator.unwrap_model(model).parameters() for value in one.flatten().tolist()]
    return {"drawn": drawn, "rate": scheduler.get_last_lr(), "weights": weights}


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("saving", ["accelerate", "accel_nb"])
def test_one_library_loads_what_the_other_saved(
    run_ranks: RunRanks, tmp_path: Path, saving: str, num_ranks: int, safe: bool
) -> None:
    loading = {"accelerate": "accel_nb", "accel_nb": "accelerate"}[saving]

    saved = run_ranks(lambda: trained(saving, tmp_path / "s", load=False, safe=safe), num_ranks)
    loaded = run_ranks(lambda: trained(loading, tmp_path / "s", load=True), num_ranks)

    assert [one["drawn"] for one in loaded] == [one["drawn"] for one in saved]
    assert [one["rate"] for one in loaded] == [one["rate"] for one in saved]
    assert loaded[0]["weights"] == pytest.approx(saved[0]["weights"], abs=1e-7)
    assert len({one["drawn"] for one in loaded}) == num_ranks


def count_of_upstream(folder: Path) -> int:
    from accel_nb import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    accelerator.prepare(small_model())
    accelerator.load_state(folder)
    steps = 0
    while True:
        steps += 1
        with accelerator.accumulate():
            if accelerator.sync_gradients:
                return steps


def save_with_upstream(folder: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    accelerator.prepare(small_model())
    for _ in range(5):
        with accelerator.accumulate():
            pass
    accelerator.save_state(str(folder))


def test_upstreams_count_of_micro_batches_is_taken_up(run_ranks: RunRanks, tmp_path: Path) -> None:
    run_ranks(save_with_upstream, 1, tmp_path / "s")

    assert run_ranks(count_of_upstream, 1, tmp_path / "s") == [3]


def test_upstreams_functions_move_states_too(run_ranks: RunRanks, tmp_path: Path) -> None:
    def save() -> list[float]:
        from accelerate.checkpointing import save_accelerator_state

        torch.manual_seed(5)
        model = small_model()
        save_accelerator_state(str(tmp_path), [model.state_dict()], [], [], [], 0, 7)
        return [torch.rand(1).item(), *first_bias(model)]

    def load() -> list[float]:
        from accel_nb import load_accelerator_state

        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        assert load_accelerator_state(tmp_path, [model], [], [], [], 0) == {"step": 7}
        return [torch.rand(1).item(), *first_bias(model)]

    def back() -> list[float]:
        from accel_nb import save_accelerator_state

        torch.manual_seed(6)
        model = small_model()
        save_accelerator_state(tmp_path, [model.state_dict()], [], [], [], 0, 7)
        return [torch.rand(1).item(), *first_bias(model)]

    assert run_ranks(save, 1) == run_ranks(load, 1)
    assert run_ranks(back, 1) == run_ranks(load, 1)


def first_bias(model: torch.nn.Module) -> list[float]:
    return next(parameter.tolist() for name, parameter in model.named_parameters() if name == "0.bias")


class Plain:
    value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


def test_custom_states_move_too(run_ranks: RunRanks, tmp_path: Path) -> None:
    def move() -> tuple[int, int]:
        import accelerate.checkpointing as theirs
        from accelerate import PartialState

        import accel_nb as ours

        PartialState(cpu=True)  # for its logging
        first, second = Plain(), Plain()
        first.value = 5
        theirs.save_custom_state(first, str(tmp_path), 0)
        ours.load_custom_state(second, tmp_path, 0)
        ours.save_custom_state(second, tmp_path, 1)
        third = Plain()
        theirs.load_custom_state(third, str(tmp_path), 1)
        return second.value, third.value

    assert run_ranks(move, 1) == [(5, 5)]
