from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR
from torch.utils.data import DataLoader

from accel_nb.errors import TrainingError
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.data.loader import DataLoaderShard
from accel_nb.training.settings import DistributedDataParallelKwargs
from accel_nb.training.steps.optimizer import AcceleratedOptimizer
from accel_nb.training.steps.scheduler import AcceleratedScheduler

from .examples import NUM_FEATURES, Numbers, regression_data, regression_loader, small_model

RunRanks = Callable[..., list[Any]]


def parts() -> dict[str, Any]:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "model": model,
        "optimizer": optimizer,
        "loader": regression_loader(8),
        "scheduler": ConstantLR(optimizer),
        "other": "passed on",
    }


KINDS = {
    "model": nn.Module, "optimizer": AcceleratedOptimizer, "loader": DataLoaderShard, "scheduler": AcceleratedScheduler,
    "other": str,
}  # fmt: skip


@pytest.mark.parametrize("names", list(permutations(KINDS)))
def test_prepare_keeps_order_and_kinds(names: tuple[str, ...]) -> None:
    accelerator, given = Accelerator(cpu=True), parts()

    prepared = accelerator.prepare(*(given[name] for name in names))

    assert [isinstance(one, KINDS[name]) for name, one in zip(names, prepared, strict=True)] == [True] * 5
    by_name = dict(zip(names, prepared, strict=True))
    assert by_name["scheduler"].optimizers == (by_name["optimizer"],)


def test_prepare_takes_one_object_or_many_and_prepared_ones() -> None:
    accelerator, given = Accelerator(cpu=True), parts()

    optimizer = accelerator.prepare(given["optimizer"])
    again = accelerator.prepare(optimizer, given["loader"], given["loader"], None)

    assert isinstance(optimizer, AcceleratedOptimizer)
    assert again[0] is optimizer
    assert again[3] is None
    assert accelerator.prepare(again[1]) is again[1]


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("by_another", [False, True])
def test_what_was_prepared_before_belongs_to_the_accelerator_that_prepares_it_again(
    tmp_path: Path, *, by_another: bool, precision: str
) -> None:
    given = parts()
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    prepared = accelerator.prepare(given["model"], given["optimizer"], given["scheduler"])
    if by_another:
        accelerator = Accelerator(cpu=True, mixed_precision=precision)
    else:
        accelerator.free_memory()

    again = accelerator.prepare(*prepared)
    accelerator.prepare(*again)

    assert [one is other for one, other in zip(again, prepared, strict=True)] == [True] * 3
    names = {file.name for file in Path(accelerator.save_state(tmp_path / "saved")).iterdir()}
    assert {"model.safetensors", "optimizer.bin", "scheduler.bin"} <= names
    assert not any("_1." in name for name in names)


def test_device_placement_can_be_given_per_object() -> None:
    accelerator = Accelerator(cpu=True)
    model, loader = nn.Linear(1, 1, device="meta"), DataLoader(Numbers(2), 2)

    prepared, placed = accelerator.prepare(model, loader, device_placement=[False, False])

    assert next(prepared.parameters()).device.type == "meta"
    assert placed.device is None
    with pytest.raises(ValueError, match="device_placement has 1 entries for 2 objects"):
        accelerator.prepare(model, loader, device_placement=[True])


class Talking(nn.Linear):
    config = "settings"

    def generate(self) -> str:
        return "text"


def message_of(action: Callable[[], object]) -> str:
    try:
        return str(action())
    except (AttributeError, TrainingError) as error:
        return str(error)


def prepared_on_ranks() -> dict[str, Any]:
    accelerator, model = Accelerator(), Talking(1, 1)
    prepared = accelerator.prepare(model)
    frozen = nn.Linear(1, 1).requires_grad_(False)
    other = nn.Linear(1, 1)
    return {
        "config": prepared.config,
        "in_features": prepared.in_features,
        "generate": message_of(lambda: prepared.generate),
        "nothing": message_of(lambda: prepared.nothing),
        "unwrapped": accelerator.unwrap_model(prepared) is model,
        "frozen": accelerator.prepare(frozen) is frozen,
        "for_evaluation": accelerator.prepare_model(other, evaluation_mode=True) is other,
        "again": accelerator.prepare(prepared) is prepared,
        "base": type(prepared).__bases__[0].__name__,
        "names": list(accelerator.get_state_dict(prepared)),
        "copies": [type(one).__name__ for one in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared)))],
    }


def test_s11_the_models_attributes_are_reached_and_its_methods_where_the_error_says(run_ranks: RunRanks) -> None:
    for seen in run_ranks(prepared_on_ranks, 2):
        assert (seen["config"], seen["in_features"]) == ("settings", 1)
        assert (
            "has no method 'generate'; the model inside has: use accelerator.unwrap_model(model).generate"
            in seen["generate"]
        )
        assert "no attribute 'nothing'" in seen["nothing"]
        assert seen["names"] == ["weight", "bias"]


def test_models_are_wrapped_where_gradients_are_to_be_averaged(run_ranks: RunRanks) -> None:
    for seen in run_ranks(prepared_on_ranks, 2):
        assert [seen[name] for name in ("unwrapped", "frozen", "for_evaluation", "again")] == [True] * 4
        assert seen["base"] == "DistributedDataParallel"


def test_p07_a_model_prepared_on_ranks_can_be_copied_and_pickled(run_ranks: RunRanks) -> None:
    for seen in run_ranks(prepared_on_ranks, 2):
        assert seen["copies"] == ["PreparedDistributedDataParallel"] * 2


class TwoBranches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.frozen, self.unused = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
        self.frozen.requires_grad_(False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.used(features)
        return output


def unused_parameters(**settings: bool) -> str:
    handlers = [DistributedDataParallelKwargs(**settings)] if settings else None  # type: ignore[arg-type]
    accelerator = Accelerator(kwargs_handlers=handlers)
    model = accelerator.prepare(TwoBranches())

    def two_steps() -> str:
        for _ in range(2):
            accelerator.backward(model(torch.ones(1, 1)).sum())
        return "trained"

    return message_of(two_steps)


def test_k11_unused_parameters_are_named_with_the_remedies(run_ranks: RunRanks) -> None:
    for message in run_ranks(unused_parameters, 2):
        assert "no gradient to 2 parameters of TwoBranches: 'unused.weight', 'unused.bias'." in message
        assert "requires_grad_(False)" in message
        assert "DistributedDataParallelKwargs(find_unused_parameters=True)" in message


def with_the_remedy() -> str:
    return unused_parameters(find_unused_parameters=True)


def test_k11_the_remedy_works(run_ranks: RunRanks) -> None:
    assert run_ranks(with_the_remedy, 2) == ["trained", "trained"]


def prepare_different_models(kind: str) -> str:
    accelerator = Accelerator()
    is_first = accelerator.is_main_process
    models = {
        "shape": nn.Linear(2, 3 if is_first else 4),
        "number": nn.Sequential(nn.Linear(2, 2), *([] if is_first else [nn.Linear(2, 2)])),
        "dtype": nn.Linear(2, 2, dtype=torch.float32 if is_first else torch.float64),
        "frozen": nn.Linear(2, 2).requires_grad_(is_first),
        "alike": nn.Linear(2, 2),
    }
    return message_of(lambda: accelerator.prepare(models[kind]) and "alike")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("shape", "Parameter number 0 of Linear is, on rank 0: weight (3, 2) float32; rank 1: weight (4, 2) float32."),
        ("number", "number 2 of Sequential is, on rank 0: none; rank 1: 1.weight (2, 2) float32."),
        ("dtype", "rank 0: weight (2, 2) float32; rank 1: weight (2, 2) float64."),
        ("frozen", "rank 0: weight (2, 2) float32; rank 1: weight (2, 2) float32, frozen."),
        ("alike", "alike"),
    ],
)
def test_k12_models_that_differ_are_refused_on_every_rank(run_ranks: RunRanks, kind: str, words: str) -> None:
    for message in run_ranks(prepare_different_models, 2, kind):
        assert words in message


def losses_per_update(
    batch_size: int, num_updates: int, kind: str, accumulation: int = 1, clip: float | None = None, length: int = 64
) -> list[float]:
    """One loss per update, over the data of all ranks and micro-batches."""
    accelerator = Accelerator(gradient_accumulation_steps=accumulation, scheduler_steps="per_call")
    model = small_model()
    plain = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind](model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(plain, num_updates)
    model, optimizer, loader, scheduler = accelerator.prepare(
        model, plain, regression_loader(batch_size, length), scheduler
    )
    losses: list[float] = []
    micro: list[torch.Tensor] = []
    while len(losses) < num_updates:
        for features, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(features), targets)
                accelerator.backward(loss)
                if clip is not None:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            micro.append(loss.detach())
            if accelerator.sync_gradients:
                losses.append(accelerator.reduce(torch.stack(micro).mean(), "mean").item())
                micro.clear()
    return losses[:num_updates]


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_s10_two_ranks_with_half_the_batch_train_like_one(run_ranks: RunRanks, kind: str) -> None:
    (alone,) = run_ranks(losses_per_update, 1, 16, 20, kind)

    first, second = run_ranks(losses_per_update, 2, 8, 20, kind)

    assert first == second
    assert first == pytest.approx(alone, abs=1e-5)
    assert alone[-1] < alone[0] / 2


def test_s10_accumulation_and_clipping_change_nothing(run_ranks: RunRanks) -> None:
    (alone,) = run_ranks(losses_per_update, 1, 16, 20, "adamw", 1, 0.5)

    (accumulated,) = run_ranks(losses_per_update, 1, 4, 20, "adamw", 4, 0.5)
    first, second = run_ranks(losses_per_update, 2, 4, 20, "adamw", 2, 0.5)

    assert accumulated == pytest.approx(alone, abs=1e-5)
    assert first == second
    assert first == pytest.approx(alone, abs=1e-5)


def gathered_once() -> int:
    """What the parity tests stand on: a prepared model's gradients are averaged over the ranks."""
    accelerator = Accelerator()
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    accelerator.backward(model(torch.full((1, 1), float(accelerator.process_index))).sum())
    (parameter,) = model.parameters()
    return int(parameter.grad.item() == 0.5)


def test_gradients_are_averaged_over_the_ranks(run_ranks: RunRanks) -> None:
    assert run_ranks(gathered_once, 2) == [1, 1]


def saved(path: str) -> bool:
    accelerator = Accelerator()
    accelerator.save({"rank": accelerator.process_index}, path)
    accelerator.wait_for_everyone()
    return torch.load(path) == {"rank": 0}  # type: ignore[no-any-return]


def test_save_writes_once_from_the_main_process(run_ranks: RunRanks, tmp_path: Path) -> None:
    assert run_ranks(saved, 2, str(tmp_path / "model.pt")) == [True, True]
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


def test_a_save_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    accelerator, path = Accelerator(cpu=True), tmp_path / "model.pt"
    accelerator.save("old", path)

    with pytest.raises(AttributeError, match="local object"):
        accelerator.save(lambda: None, path)

    assert torch.load(path) == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


def test_save_writes_into_a_file_object() -> None:
    stream = io.BytesIO()

    Accelerator(cpu=True).save([1], stream)

    assert torch.load(io.BytesIO(stream.getvalue())) == [1]


def test_print_is_print_on_the_main_process(capsys: pytest.CaptureFixture[str]) -> None:
    Accelerator(cpu=True).print("a", 1, sep="-")

    assert capsys.readouterr().out == "a-1\n"


@pytest.mark.parametrize(
    "name",
    [
        "deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "torch_tp_plugin", "megatron_lm_plugin",
    ],
)  # fmt: skip
def test_d13_an_argument_that_has_not_landed_is_refused(name: str) -> None:
    given: dict[str, Any] = {name: "x"}

    with pytest.raises(
        TrainingError, match=rf"Accelerator\({name}='x'\) is not part of this version of accel_nb\. [A-Z]"
    ):
        Accelerator(cpu=True, **given)
    given[name] = None
    Accelerator(cpu=True, **given)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_ranks": 2}, TypeError, "unexpected keyword argument 'num_ranks'"),
        ({"scheduler_steps": "twice"}, ValueError, "scheduler_steps='twice' is unknown; choose one of 'per_process'"),
        ({"rng_types": ["numpy"]}, ValueError, "rng_types holds 'numpy'"),
        ({"gradient_accumulation_steps": 0}, ValueError, "gradient_accumulation_steps=0 must be at least 1"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Accelerator(cpu=True, **arguments)


def test_the_example_data_is_what_the_tests_think() -> None:
    assert len(regression_data()) == 64
    assert regression_data()[0][0].shape == (NUM_FEATURES,)
