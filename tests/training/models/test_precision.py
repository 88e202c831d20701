from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from accel_nb.errors import TrainingError
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.settings import GradScalerKwargs

from ..examples import NUM_FEATURES, regression_loader, small_model

RunRanks = Callable[..., list[Any]]


@dataclasses.dataclass
class Output:
    prediction: torch.Tensor
    dtype: torch.dtype


class Model(nn.Module):
    """Says in which dtype it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(NUM_FEATURES, 1)
        self.calls = 0

    def forward(self, features: torch.Tensor, scale: float = 1.0) -> Output:
        self.calls += 1
        prediction = self.layer(features) * scale
        return Output(prediction, prediction.dtype)

    def predict(self, features: torch.Tensor) -> Output:
        """As generate() of a language model does, a method that calls the model."""
        output = self(features)
        assert isinstance(output, Output)
        return output


def trained(model: nn.Module) -> tuple[nn.Module, nn.Module, list[float]]:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, regression_loader(16))
    losses = []
    for features, targets in loader:
        output = prepared(features)
        loss = nn.functional.mse_loss(output.prediction if isinstance(output, Output) else output, targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return prepared, accelerator.unwrap_model(prepared), losses


def test_forward_computes_in_bf16_and_returns_float32() -> None:
    prepared = Accelerator(cpu=True, mixed_precision="bf16").prepare(Model())

    output = prepared(torch.ones(2, NUM_FEATURES))

    assert output.dtype == torch.bfloat16
    assert output.prediction.dtype == torch.float32


def test_methods_that_call_the_model_compute_in_bf16_too() -> None:
    prepared = Accelerator(cpu=True, mixed_precision="bf16").prepare(Model())

    assert prepared.predict(torch.ones(2, NUM_FEATURES)).dtype == torch.bfloat16
    assert prepared.forward(torch.ones(2, NUM_FEATURES)).dtype == torch.bfloat16
    assert list(inspect.signature(prepared.forward).parameters) == ["features", "scale"]


def test_p07_the_unwrapped_model_is_the_very_original() -> None:
    model = Model()
    names = list(model.state_dict())

    prepared, unwrapped, _ = trained(model)

    assert unwrapped is model
    assert unwrapped.forward.__func__ is type(unwrapped).forward  # type: ignore[attr-defined]
    assert list(unwrapped.state_dict()) == list(prepared.state_dict()) == names
    assert unwrapped(torch.ones(2, NUM_FEATURES)).dtype == torch.float32


def test_p07_unwrapping_leaves_the_prepared_model_in_bf16() -> None:
    prepared, _, _ = trained(Model())

    assert prepared(torch.ones(2, NUM_FEATURES)).dtype == torch.bfloat16


def pickled(model: nn.Module) -> object:
    return pickle.loads(pickle.dumps(model))


def saved(model: nn.Module) -> object:
    torch.save(model, stream := io.BytesIO())
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.parametrize("which", ["prepared", "unwrapped"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved])
def test_p07_trained_models_can_be_copied_pickled_and_saved(which: str, duplicate: Callable[[Any], Any]) -> None:
    prepared, unwrapped, _ = trained(Model())
    model = {"prepared": prepared, "unwrapped": unwrapped}[which]
    model.eval()
    features = torch.randn(3, NUM_FEATURES)

    twin = duplicate(model)

    assert twin is not model
    assert not twin.training
    assert torch.equal(twin(features).prediction, model(features).prediction)
    assert twin(features).dtype == model(features).dtype


def test_the_prepared_model_is_of_the_models_class_and_shares_everything_with_it() -> None:
    model = Model()
    prepared = Accelerator(cpu=True, mixed_precision="bf16").prepare(model)

    prepared.eval()
    prepared.note = "seen"
    prepared(torch.ones(1, NUM_FEATURES))

    assert isinstance(prepared, Model)
    assert (model.training, model.__dict__["note"], model.calls) == (False, "seen", 1)
    assert repr(prepared) == repr(model)


def test_a_forward_put_on_the_instance_is_kept() -> None:
    model = nn.Linear(NUM_FEATURES, 1)
    vars(model)["forward"] = lambda features: (features @ features.t(),)

    prepared = Accelerator(cpu=True, mixed_precision="bf16").prepare(model)

    (product,) = prepared(torch.full((2, NUM_FEATURES), 1.001))
    assert product.dtype == torch.float32
    assert product[0, 0] == NUM_FEATURES  # 1.001 is 1 in bfloat16


def test_a_forward_put_on_the_prepared_model_computes_in_bf16() -> None:
    model = nn.Linear(NUM_FEATURES, 1)
    prepared = Accelerator(cpu=True, mixed_precision="bf16").prepare(model)

    prepared.forward = lambda features: features @ features.t()
    (product,) = prepared(torch.full((1, NUM_FEATURES), 1.001))

    assert (product.dtype, product.item()) == (torch.float32, NUM_FEATURES)  # 1.001 is 1 in bfloat16
    del prepared.forward
    assert prepared(torch.ones(1, NUM_FEATURES)).shape == (1, 1)
    assert "forward" not in vars(model)


def test_full_precision_prepares_the_model_itself() -> None:
    model = Model()

    assert Accelerator(cpu=True).prepare(model) is model


def train_on_ranks() -> tuple[bool, bool, list[str], list[float]]:
    model = small_model()
    prepared, unwrapped, losses = trained(model)
    names = list(Accelerator().get_state_dict(prepared))
    return unwrapped is model, pickle.loads(pickle.dumps(unwrapped)) is not None, names, losses


def test_p07_p10_ranks_train_in_bf16_and_give_the_original_back(run_ranks: RunRanks) -> None:
    for is_original, can_be_pickled, names, losses in run_ranks(train_on_ranks, 2):
        assert is_original
        assert can_be_pickled
        assert names == list(small_model().state_dict())
        assert len(losses) == 2


def losses_in(precision: str) -> list[float]:
    torch.manual_seed(0)
    # Small enough for the first gradients: else the first step is skipped, and the scale halved.
    scale = GradScalerKwargs(init_scale=1024.0)
    accelerator = Accelerator(cpu=True, mixed_precision=precision, kwargs_handlers=[scale])
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    features = torch.linspace(-1, 1, 32).reshape(8, 4)
    losses = []
    for _ in range(4):
        loss = (model(features) - 1).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_ranks_train_in_fp16_with_a_scaled_loss_on_the_cpu_too(run_ranks: RunRanks) -> None:
    in_float32 = run_ranks(losses_in, 2, "no")
    in_half = run_ranks(losses_in, 2, "fp16")

    assert in_half[0] == in_half[1] != in_float32[0]
    assert in_half[0] == pytest.approx(in_float32[0], rel=5e-3)
    assert in_half[0][-1] < in_half[0][0]


def test_autocast_covers_what_is_outside_the_model() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")

    with accelerator.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)

    assert product.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ("fp8", TrainingError, "mixed_precision='fp8' is not part of this version"),
        ("float16", ValueError, "mixed_precision='float16' is unknown; choose one of 'no', 'bf16', 'fp16'"),
    ],
)
def test_a_precision_that_cannot_be_had_is_refused(asked: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Accelerator(cpu=True, mixed_precision=asked)
