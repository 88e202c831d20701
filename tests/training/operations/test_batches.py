"""Cutting, joining and filling up batches."""

from __future__ import annotations

import pickle
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from accel_nb.training.operations.batches import (
    concatenate,
    convert_outputs_to_fp32,
    listify,
    pad_input_tensors,
    slice_tensors,
)


class Pair(NamedTuple):
    x: torch.Tensor
    y: list[torch.Tensor]


def test_all_tensors_are_cut_alike() -> None:
    part = slice_tensors({"x": torch.arange(4), "y": [torch.arange(8).reshape(4, 2)], "z": "text"}, slice(1, 3))

    assert part["x"].tolist() == [1, 2]
    assert part["y"][0].tolist() == [[2, 3], [4, 5]]
    assert part["z"] == "text"


def test_batches_are_joined_tensor_by_tensor() -> None:
    batches = [{"a": Pair(torch.full((2, 1), one), [torch.ones(one)])} for one in (1, 2)]

    joined = concatenate(batches)

    assert isinstance(joined["a"], Pair)
    assert joined["a"].x.tolist() == [[1], [1], [2], [2]]
    assert joined["a"].y[0].shape == (3,)
    assert concatenate([torch.ones(2, 1), torch.ones(2, 2)], dim=1).shape == (2, 3)
    assert concatenate(["text"]) == "text"


@dataclass
class Boxes:
    corners: torch.Tensor


def test_joined_containers_keep_their_types() -> None:
    row = torch.ones(1)

    joined = concatenate([defaultdict(list, a=row, b=Boxes(row)), defaultdict(list, b=Boxes(row), a=row)])

    assert joined == defaultdict(list, a=joined["a"], b=joined["b"])
    assert joined.default_factory is list
    assert joined["a"].shape == joined["b"].corners.shape == (2,)


@pytest.mark.parametrize(
    ("batches", "kind", "message"),
    [
        ([], ValueError, "at least one batch"),
        (["a", "b"], TypeError, "joins tensors, also nested ones; it was given a str: 'a'"),
        ([[torch.ones(1)], [torch.ones(1)] * 2], ValueError, r"their lengths are \[1, 2\]"),
        ([{"a": torch.ones(1)}, {"b": torch.ones(1)}], ValueError, r"their keys are \[\['a'\], \['b'\]\]"),
    ],
)
def test_batches_that_cannot_be_joined_are_refused(batches: list[Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        concatenate(batches)


@pytest.mark.parametrize(
    ("num_rows", "num_ranks", "expected"), [(1, 2, 2), (4, 2, 4), (4, 3, 6), (8, 2, 8), (2, 6, 6), (61, 6, 66)]
)
def test_rows_are_filled_up_to_what_ranks_can_share(num_rows: int, num_ranks: int, expected: int) -> None:
    rows = torch.arange(num_rows, dtype=torch.int16)[:, None]

    filled = pad_input_tensors([rows], num_rows, num_ranks)[0]

    assert filled.dtype == torch.int16
    assert filled[:, 0].tolist() == [*range(num_rows), *[num_rows - 1] * (expected - num_rows)]
    assert pad_input_tensors(rows.T, num_rows, num_ranks, dim=1).shape == (1, expected)


def test_what_is_no_tensor_cannot_be_filled_up() -> None:
    with pytest.raises(TypeError, match=r"pad_input_tensors works on tensors, .* given a str \('a'\)"):
        pad_input_tensors(["a"], 1, 2)


def test_tensors_become_numbers() -> None:
    data = {"a": torch.tensor([[1, 2]]), "b": (torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), None)}

    assert listify(data) == {"a": [[1, 2]], "b": (0.5, None)}


def test_half_precision_results_become_float32_and_the_function_can_be_pickled() -> None:
    layer = nn.Linear(2, 1).to(torch.bfloat16)
    converted = convert_outputs_to_fp32(layer.forward)

    again = pickle.loads(pickle.dumps(converted))

    given = torch.ones(1, 2, dtype=torch.bfloat16)
    assert converted(given).dtype == torch.float32
    assert converted.__wrapped__ == layer.forward  # type: ignore[attr-defined]
    assert torch.equal(again(given), converted(given))
