"""Shapes, dtypes, devices and lengths of nested data."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from typing import Any, NamedTuple

import pytest
import torch

from accel_nb.training.operations.structure import (
    TensorInformation,
    describe,
    find_batch_size,
    find_device,
    get_data_structure,
    get_shape,
    initialize_tensors,
    is_tensor_information,
)


class Point(NamedTuple):
    x: torch.Tensor
    label: object


@dataclasses.dataclass
class Output:
    logits: torch.Tensor


def test_a_structure_can_be_made_to_tensors_again() -> None:
    data = {"a": [torch.ones(2, 3, dtype=torch.int8), "text"], "b": Point(torch.tensor(1.0), None)}

    structure = get_data_structure(data)
    made = initialize_tensors(structure)

    assert structure["a"][0] == TensorInformation(torch.Size([2, 3]), torch.int8)
    assert is_tensor_information(structure["b"].x)
    assert not is_tensor_information(data["b"])
    assert isinstance(made["a"][0], torch.Tensor)
    assert (made["a"][0].shape, made["a"][0].dtype, made["a"][1]) == ((2, 3), torch.int8, "text")
    assert made["b"].x.shape == ()
    assert get_shape(data) == {"a": [[2, 3], "text"], "b": Point([], None)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (torch.ones(4, 2), "[4, 2] float32"),
        ({"x": torch.tensor(1), 3: None}, "{'x': [] int64, 3: None}"),
        (UserDict(x=[torch.ones(1).bool(), "a"]), "{'x': [[1] bool, str]}"),
        ((torch.ones(0), 1.5), "([0] float32, float)"),
        (Point(torch.ones(1), ()), "Point([1] float32, ())"),
        (Output(torch.ones(1)), "Output([1] float32)"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), "nested float32"),
    ],
    ids=str,
)
def test_data_is_described_in_one_line(data: object, text: str) -> None:
    assert describe(data) == text


def test_batch_size_is_that_of_the_first_tensor_with_a_dimension() -> None:
    assert find_batch_size({"scale": torch.tensor(1.0), "ids": ["a"], "x": [torch.ones(3, 2)]}) == 3


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        ([], ValueError, r"no batch size in \[\]: it is empty, or its tensors have no dimension"),
        (torch.tensor(1.0), ValueError, r"its tensors have no dimension"),
        ({"a": "text"}, TypeError, r"no batch size in \{'a': 'text'\}: it holds no tensor, but str"),
    ],
)
def test_data_without_a_batch_size_is_refused(data: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        find_batch_size(data)


def test_the_device_is_that_of_the_first_tensor() -> None:
    data: list[Any] = [1, {"a": torch.ones(1, device="meta")}, torch.ones(1)]

    assert find_device(data) == torch.device("meta")
    assert find_device([1, "a"]) is None
