"""How `Accelerator`'s arguments are honoured or refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.choices import DynamoBackend, RNGType
from accel_nb.training.ranks.state import AcceleratorState, GradientState
from accel_nb.training.settings import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    ProfileKwargs,
    ProjectConfiguration,
    TorchDynamoPlugin,
)


def accelerator(**arguments: Any) -> Accelerator:  # noqa: ANN401
    return Accelerator(cpu=True, **arguments)


def test_handlers_are_told_apart_by_their_kind() -> None:
    given: list[Any] = [
        ProfileKwargs(), AutocastKwargs(), GradScalerKwargs(), DistributedDataParallelKwargs(),
        InitProcessGroupKwargs(timeout=timedelta(seconds=5)),
    ]  # fmt: skip

    made = accelerator(kwargs_handlers=given)

    assert [
        made.profile_handler, made.autocast_handler, made.scaler_handler, made.ddp_handler, made.init_handler,
    ] == given  # fmt: skip
    assert accelerator().autocast_handler is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kwargs_handlers": ["x"]}, TypeError, "kwargs_handlers holds 'x'; it may hold one of each of Distributed"),
        (
            {"kwargs_handlers": [AutocastKwargs(), AutocastKwargs()]}, ValueError,
            "kwargs_handlers holds more than one AutocastKwargs; give one",
        ),
        (
            {"gradient_accumulation_steps": 2, "gradient_accumulation_plugin": GradientAccumulationPlugin(3)},
            ValueError, "gradient_accumulation_steps=2 and gradient_accumulation_plugin=.*num_steps=3.* exclude each",
        ),
        (
            {"gradient_accumulation_plugin": GradientAccumulationPlugin(0)}, ValueError,
            "gradient_accumulation_steps=0 must be at least 1",
        ),
        (
            {"dynamo_backend": "eager", "dynamo_plugin": TorchDynamoPlugin(backend="eager")}, ValueError,
            "dynamo_backend='eager' and dynamo_plugin=.* exclude each other",
        ),
        (
            {"project_dir": "a", "project_config": ProjectConfiguration("b")}, ValueError,
            "project_dir='a' contradicts project_config.project_dir='b'",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        accelerator(**arguments)


def test_accumulation_is_what_is_given_else_what_the_launch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3")

    assert accelerator().gradient_accumulation_steps == 3
    assert accelerator(gradient_accumulation_steps=2).gradient_accumulation_steps == 2
    assert accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(4)).gradient_accumulation_steps == 4
    assert accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin()).gradient_accumulation_steps == 1


def test_accumulation_can_be_changed_and_is_seen_in_the_state() -> None:
    made = accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(2, sync_with_dataloader=False))

    made.gradient_accumulation_steps = 5

    state = GradientState()
    assert (made.gradient_accumulation_steps, state.num_steps) == (5, 5)
    assert (state.sync_with_dataloader, state.adjust_scheduler) == (False, True)
    with pytest.raises(ValueError, match="gradient_accumulation_steps=0 must be at least 1"):
        made.gradient_accumulation_steps = 0


def test_sync_gradients_can_be_said_by_hand() -> None:
    made = accelerator()

    made.sync_gradients = False

    assert GradientState().sync_gradients is False


def test_d13_split_batches_may_be_said_in_either_place() -> None:
    assert accelerator(split_batches=True).split_batches
    assert accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True)).split_batches
    assert accelerator(split_batches=True, dataloader_config=DataLoaderConfiguration(even_batches=False)).split_batches
    assert not accelerator().split_batches


def test_loading_is_as_configured() -> None:
    configuration = DataLoaderConfiguration(
        dispatch_batches=True, even_batches=False, use_seedable_sampler=True, non_blocking=True
    )

    made = accelerator(dataloader_config=configuration)

    assert made.dataloader_config is configuration
    assert (made.dispatch_batches, made.even_batches, made.use_seedable_sampler) == (True, False, True)
    assert (made.non_blocking, made.use_stateful_dataloader) == (True, False)
    made.even_batches = True
    assert configuration.even_batches


def test_a_project_may_be_said_in_either_place(tmp_path: Path) -> None:
    configuration = ProjectConfiguration(logging_dir="logs", iteration=3)

    made = accelerator(project_dir=tmp_path, project_config=configuration)

    assert made.project_configuration is configuration
    assert (made.project_dir, made.logging_dir, made.save_iteration) == (str(tmp_path), "logs", 3)
    assert accelerator(project_dir="runs").logging_dir == "runs"


def test_generators_may_be_named_by_their_kind() -> None:
    assert accelerator(rng_types=[RNGType.TORCH, "generator"]).rng_types == ("torch", "generator")


def test_l16_compilation_is_that_of_the_newest_accelerator() -> None:
    accelerator(dynamo_backend="eager")
    assert AcceleratorState().dynamo_plugin.backend is DynamoBackend.EAGER

    accelerator()

    assert AcceleratorState().dynamo_plugin.backend is DynamoBackend.NO


def test_l16_a_cell_that_makes_another_accelerator_can_be_run_again() -> None:
    for steps in (1, 4, 2):
        assert accelerator(gradient_accumulation_steps=steps).gradient_accumulation_steps == steps
        assert GradientState().num_steps == steps
        assert GradientState().sync_gradients


@pytest.mark.parametrize("num_steps", [2.5, "4"])
def test_a_number_of_micro_batches_that_is_not_whole_is_refused(num_steps: object) -> None:
    with pytest.raises(ValueError, match=f"gradient_accumulation_steps={num_steps!r} must be at least 1, a whole numb"):
        accelerator(gradient_accumulation_steps=num_steps)
