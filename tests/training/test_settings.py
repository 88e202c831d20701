from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import nn

import accel_nb
from accel_nb.training import choices, settings
from accel_nb.training.choices import DynamoBackend, PrecisionType
from accel_nb.training.settings import (
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
    ProjectConfiguration,
    TorchDynamoPlugin,
)

SETTINGS = [
    "AutocastKwargs", "DataLoaderConfiguration", "DistributedDataParallelKwargs", "GradScalerKwargs",
    "GradientAccumulationPlugin", "InitProcessGroupKwargs", "ProfileKwargs", "ProjectConfiguration",
    "TorchDynamoPlugin",
]  # fmt: skip
CHOICES = [
    "ComputeEnvironment", "CustomDtype", "DDPCommunicationHookType", "DynamoBackend", "LoggerType", "PrecisionType",
    "RNGType",
]  # fmt: skip


def upstream(name: str) -> Any:  # noqa: ANN401
    return getattr(pytest.importorskip("accelerate.utils.dataclasses"), name)


@pytest.mark.parametrize("name", SETTINGS)
def test_fields_and_defaults_are_those_of_upstream(name: str) -> None:
    ours, theirs = getattr(settings, name), upstream(name)

    assert [one.name for one in dataclasses.fields(ours)] == [one.name for one in dataclasses.fields(theirs)]
    for field in dataclasses.fields(ours):
        our_value, their_value = getattr(ours(), field.name), getattr(theirs(), field.name)
        assert str(our_value) == str(their_value)
    assert getattr(accel_nb, name) is ours


@pytest.mark.parametrize("name", CHOICES)
def test_members_and_values_are_those_of_upstream(name: str) -> None:
    ours, theirs = getattr(choices, name), upstream(name)

    assert [(one.name, one.value) for one in ours] == [(one.name, one.value) for one in theirs]
    assert getattr(accel_nb, name) is ours


def test_choices_list_their_values_and_know_them() -> None:
    assert PrecisionType.list() == ["no", "fp8", "fp16", "bf16"]
    assert "bf16" in PrecisionType
    assert "float16" not in PrecisionType
    assert str(PrecisionType.BF16) == "bf16"


@dataclasses.dataclass
class Handler(KwargsHandler):
    number: int = 0
    flag: bool = False


def test_to_kwargs_gives_what_differs_from_the_defaults() -> None:
    assert Handler().to_kwargs() == {}
    assert Handler(number=2).to_kwargs() == {"number": 2}
    assert GradScalerKwargs(init_scale=4.0, growth_factor=2.0).to_kwargs() == {"init_scale": 4.0}


def test_k05_the_timeout_alone_is_handed_on() -> None:
    assert InitProcessGroupKwargs().to_kwargs() == {}
    assert InitProcessGroupKwargs(timeout=timedelta(seconds=7)).to_kwargs() == {"timeout": timedelta(seconds=7)}
    assert InitProcessGroupKwargs(backend="gloo").timeout == timedelta(minutes=30)


def test_dynamo_settings_come_from_the_launch_where_they_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "aot_eager")
    monkeypatch.setenv("ACCELERATE_DYNAMO_MODE", "reduce-overhead")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_DYNAMIC", "yes")
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "true")

    plugin = TorchDynamoPlugin()

    assert plugin.backend is DynamoBackend.AOT_EAGER
    assert plugin.use_regional_compilation
    assert plugin.to_kwargs() == {"backend": "aot_eager", "mode": "reduce-overhead", "dynamic": True}
    assert TorchDynamoPlugin(backend="inductor", mode="default", dynamic=False).to_kwargs() == {
        "backend": "inductor",
        "dynamic": False,
    }


def test_a_dynamo_backend_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="dynamo backend 'fast' is unknown; choose one of 'no', 'eager'"):
        TorchDynamoPlugin(backend="fast")


def test_a_project_logs_into_its_folder_unless_it_says_otherwise() -> None:
    assert ProjectConfiguration("runs").logging_dir == "runs"
    assert ProjectConfiguration("runs", logging_dir="logs").logging_dir == "logs"


def test_a_profile_knows_its_activities() -> None:
    assert isinstance(ProfileKwargs(activities=["cpu"], schedule_option={"wait": 1, "warmup": 1, "active": 1}).build(),
                      torch.profiler.profile)  # fmt: skip
    with pytest.raises(ValueError, match=r"ProfileKwargs\(activities=...\) holds 'tpu'; torch knows 'cpu'"):
        ProfileKwargs(activities=["tpu"]).build()  # type: ignore[list-item]


def test_a_hook_can_only_be_wrapped_in_half_precision() -> None:
    given: Any = nn.Linear(1, 1)

    with pytest.raises(ValueError, match="cannot wrap a hook; choose NO, FP16 or BF16"):
        DistributedDataParallelKwargs(comm_wrapper=choices.DDPCommunicationHookType.POWER_SGD).register_comm_hook(given)


def test_plain_settings_can_be_compared() -> None:
    assert GradientAccumulationPlugin(num_steps=2) == GradientAccumulationPlugin(2)
