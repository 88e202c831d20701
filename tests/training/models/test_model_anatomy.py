"""What a model is made of."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from accel_nb.errors import TrainingError
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.models.model_anatomy import (
    dtype_byte_size,
    get_module_children_bottom_up,
    get_module_class_from_name,
    is_peft_model,
    model_has_dtensor,
)


def test_modules_come_after_what_they_consist_of() -> None:
    model = nn.Sequential(nn.Sequential(nn.ReLU()), nn.Tanh())

    named = get_module_children_bottom_up(model, return_fqns=True)

    assert [name for name, _ in named] == ["0.0", "0", "1", ""]  # type: ignore[misc]
    assert get_module_children_bottom_up(model) == [model[0][0], model[0], model[1], model]  # type: ignore[index]


def test_a_class_is_found_by_name() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh())

    assert get_module_class_from_name(model, "Tanh") is nn.Tanh
    assert get_module_class_from_name(model, "Sequential") is nn.Sequential
    assert get_module_class_from_name(model, "Block") is None


def test_plain_parameters_are_not_spread() -> None:
    assert not model_has_dtensor(nn.Linear(1, 1))


def test_a_model_of_peft_is_told_if_peft_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class PeftModel(nn.Module):
        pass

    assert not is_peft_model(PeftModel())

    monkeypatch.setitem(sys.modules, "peft", types.SimpleNamespace(PeftModel=PeftModel))

    assert is_peft_model(PeftModel())
    assert not is_peft_model(nn.Linear(1, 1))


def test_bytes_of_a_number() -> None:
    assert [dtype_byte_size(one) for one in (torch.float32, torch.bfloat16, torch.int8, torch.bool)] == [4, 2, 1, 0.125]


class Mapped(nn.Sequential):
    """As ``device_map="auto"`` loads a model: it must not be moved."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 1))
        self.hf_device_map = {"0": "cpu", "1": "disk"}

    def to(self, *_: object, **__: object) -> Mapped:
        raise AssertionError


def test_a_single_process_leaves_a_model_where_its_map_says() -> None:
    accelerator, model = Accelerator(cpu=True), Mapped()

    assert accelerator.verify_device_map(model)
    assert accelerator.prepare(model) is model
    assert not accelerator.verify_device_map(nn.Linear(1, 1))


def _refused_by_ranks() -> list[str]:
    accelerator = Accelerator(cpu=True)
    sharded = nn.Linear(2, 2, bias=False)
    sharded.weight = nn.Parameter(distribute_tensor(sharded.weight, init_device_mesh("cpu", (2,)), [Shard(0)]))
    messages = []
    for model in (Mapped(), sharded):
        with pytest.raises(TrainingError) as raised:
            accelerator.prepare(model)
        messages.append(str(raised.value))
    assert accelerator.prepare_model(sharded, evaluation_mode=True) is sharded
    return messages


def test_several_ranks_refuse_a_model_of_which_they_cannot_have_copies(run_ranks: Callable[..., list[Any]]) -> None:
    mapped, sharded = run_ranks(_refused_by_ranks, 2)[1]

    assert mapped == (
        "Mapped is spread over 2 places (hf_device_map), as device_map='auto' loads it, but each of 2 ranks needs a "
        "copy on its own device. Load it whole, or start one rank."
    )
    assert sharded == (
        "Linear has parameters that are spread over ranks (DTensor), but each of 2 ranks trains a whole copy with "
        "DistributedDataParallel. Load it whole, or start one rank."
    )
