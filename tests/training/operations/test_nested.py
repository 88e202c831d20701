from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import pytest
import torch
from transformers import BatchEncoding

from accel_nb.training.operations.nested import (
    convert_to_fp32,
    honor_type,
    ignorant_find_batch_size,
    is_namedtuple,
    is_torch_tensor,
    leaves,
    map_tensors,
    recursively_apply,
    send_to_device,
)


class Point(NamedTuple):
    x: torch.Tensor
    label: str


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    name: str = "out"


class SelfMoving:
    device: object = None

    def to(self, device: object) -> SelfMoving:
        moved = SelfMoving()
        moved.device = device
        return moved


def example() -> dict[str, Any]:
    return {
        "list": [torch.ones(2), "text", None],
        "tuple": (torch.ones(2), 3),
        "named": Point(torch.ones(1), "a"),
        "ordered": OrderedDict(z=torch.ones(1)),
        "default": defaultdict(list, q=torch.ones(1)),
        "dataclass": Output(torch.ones(1)),
    }


def test_containers_keep_their_types_and_inputs_are_unchanged() -> None:
    data = example()

    doubled = map_tensors(lambda tensor: tensor * 2, data)

    assert {key: type(value) for key, value in doubled.items()} == {key: type(value) for key, value in data.items()}
    assert doubled["list"][1:] == ["text", None]
    assert doubled["named"].label == "a"
    assert doubled["dataclass"] == Output(torch.tensor([2.0]))
    assert doubled["default"].default_factory is list
    assert float(doubled["ordered"]["z"]) == 2
    assert float(data["named"].x) == 1


@dataclasses.dataclass(frozen=True)
class Scaled:
    x: torch.Tensor
    scale: dataclasses.InitVar[float]
    mask: torch.Tensor = dataclasses.field(init=False)
    unset: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self, scale: float) -> None:
        object.__setattr__(self, "x", self.x * scale)
        object.__setattr__(self, "mask", self.x > 1)


def test_a_dataclass_is_not_initialised_again() -> None:
    data = Scaled(torch.ones(1), 3.0)

    doubled = map_tensors(lambda tensor: tensor + tensor, data)

    assert doubled.x.tolist() == [6.0]
    assert doubled.mask.tolist() == [True]
    assert data.x.tolist() == [3.0]
    assert not hasattr(doubled, "unset")


def test_only_half_precision_becomes_float32() -> None:
    data = [torch.ones(1, dtype=dtype) for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int8)]

    dtypes = [tensor.dtype for tensor in convert_to_fp32(data)]

    assert dtypes == [torch.float32, torch.float32, torch.float64, torch.int8]


def test_batch_size_is_that_of_the_first_tensor_with_a_dimension() -> None:
    assert ignorant_find_batch_size({"scale": torch.tensor(1.0), "ids": ["a"], "x": [torch.ones(3, 2)]}) == 3
    assert ignorant_find_batch_size(["a", torch.tensor(1.0)]) is None


def test_objects_that_move_themselves_are_asked_to() -> None:
    moved = send_to_device({"tokens": SelfMoving(), "x": torch.ones(1)}, torch.device("meta"))

    assert moved["tokens"].device == torch.device("meta")
    assert moved["x"].device.type == "meta"


class OnlyADevice:
    """Whose method `to` does not know torch's further parameters."""

    def to(self, device: object) -> object:
        return device


def test_further_arguments_are_passed_to_who_takes_them() -> None:
    encoding = BatchEncoding({"ids": torch.ones(1)})

    moved = send_to_device([encoding, OnlyADevice()], "meta", non_blocking=True)

    assert isinstance(moved[0], BatchEncoding)
    assert moved[0]["ids"].device.type == moved[1] == "meta"


@pytest.mark.parametrize("skipped", ["ids", ["ids", "absent"]])
def test_what_is_under_skipped_keys_stays_where_it_is(skipped: str | list[str]) -> None:
    data = [{"ids": torch.ones(1), "x": {"ids": torch.ones(1), "y": torch.ones(1)}}, Output(torch.ones(1))]
    data.append(BatchEncoding({"ids": torch.ones(1), "x": torch.ones(1)}))

    moved = send_to_device(data, "meta", skip_keys=skipped)

    assert [tensor.device.type for tensor in leaves(moved) if is_torch_tensor(tensor)] == [
        "cpu", "cpu", "meta", "meta", "cpu", "meta",
    ]  # fmt: skip
    assert isinstance(moved[2], BatchEncoding)


def test_a_function_is_applied_to_the_leaves_that_pass_the_test() -> None:
    data = {"a": [1, "text"], "b": Point(torch.ones(1), "c")}

    changed = recursively_apply(lambda leaf, more, times=1: (leaf + more) * times, data, 2, times=3,
                                test_type=lambda leaf: isinstance(leaf, int | torch.Tensor))  # fmt: skip

    assert changed["a"] == [9, "text"]
    assert changed["b"] == Point(torch.tensor([9.0]), "c")


def test_other_leaves_are_refused_if_asked() -> None:
    with pytest.raises(TypeError, match=r"neg cannot be applied to a int \(1\), only to what is_torch_tensor accepts"):
        recursively_apply(torch.neg, (torch.ones(1), 1), error_on_other_type=True)


def test_a_dataclass_is_a_leaf_only_if_it_passes_the_test() -> None:
    data = {"a": [Output(torch.ones(1))]}

    assert recursively_apply(lambda one: one.name, data, test_type=lambda leaf: isinstance(leaf, Output)) == {
        "a": ["out"]
    }
    assert recursively_apply(torch.neg, data)["a"][0] == Output(torch.tensor([-1.0]))
    assert recursively_apply(str, [1], test_type=bool) == ["1"]


def test_sequences_are_made_of_the_same_type() -> None:
    assert honor_type(Point(torch.ones(1), "a"), iter([1, 2])) == Point(1, 2)  # type: ignore[arg-type]
    assert honor_type([], iter([1, 2])) == [1, 2]
    assert is_namedtuple(Point(torch.ones(1), "a"))
    assert not is_namedtuple((1, 2))
