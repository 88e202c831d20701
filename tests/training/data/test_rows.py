from __future__ import annotations

import dataclasses
from collections import UserDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from accel_nb.training.data.rows import CannotJoin, RowCounter, count_rows, cut, join

Pair = namedtuple("Pair", ["first", "second"])  # noqa: PYI024  as users write them


@dataclasses.dataclass
class Batch:
    images: torch.Tensor
    name: str


@pytest.mark.parametrize(
    ("batch", "usual", "num_rows"),
    [
        (torch.zeros(3, 2), None, 3),
        (np.zeros((4, 2)), None, 4),
        (torch.tensor(5), None, None),
        ("text", None, None),
        (7, None, None),
        (None, None, None),
        ([], None, 0),
        (["a", "b"], None, 2),
        (("a", "b"), None, 2),
        ({"text": ["a", "b", "c"], "x": torch.zeros(2)}, None, 2),
        ({"step": 3, "text": ["a", "b", "c"]}, None, 3),
        (Pair(None, torch.zeros(5)), None, 5),
        (Batch(torch.zeros(6), "x"), None, 6),
        (UserDict({"x": torch.zeros(2)}), None, 2),
        ([torch.zeros(4, 2), torch.zeros(4)], None, 4),
        ([torch.zeros(2, 4), torch.zeros(3, 4)], None, 2),
        ([torch.zeros(5, 4), torch.zeros(3, 4), torch.zeros(1, 4)], None, 3),
        ([torch.zeros(4, 2), torch.zeros(10)], None, 4),
        ([torch.zeros(10), torch.zeros(4, 2)], 2, 2),
        ([("a", "b", "c"), ("d", "e", "f")], 3, 3),
        ([("a", "b", "c"), ("d", "e", "f")], 2, 2),
        ([{"x": torch.zeros(2)}, {"x": torch.zeros(3)}], None, 2),
        ([torch.zeros(3, 8, 8)] * 4, 4, 4),
        ([{"x": torch.zeros(3)}] * 4, 4, 4),
        (((torch.zeros(3, 8, 8),) * 4, ({"boxes": torch.zeros(2, 4)},) * 4), 4, 4),
        ([torch.zeros(2, 5), torch.zeros(2, 5)], 2, 2),
    ],
)
def test_rows_of_a_batch(batch: Any, usual: int | None, num_rows: int | None) -> None:  # noqa: ANN401
    assert count_rows(batch, usual) == num_rows


@pytest.mark.parametrize(
    ("full", "short", "num_rows"),
    [
        ([torch.zeros(1), torch.zeros(2)], [torch.zeros(5)], 1),
        ([torch.zeros(2), torch.zeros(2)], [torch.zeros(1), torch.zeros(1)], 1),
        ({"boxes": [torch.zeros(3), torch.zeros(1)], "x": torch.zeros(2)}, {"boxes": [torch.zeros(2)]}, 1),
        (((torch.zeros(3, 8),) * 2, ({"y": torch.zeros(4)},) * 2), ((torch.zeros(3, 8),), ({"y": torch.zeros(4)},)), 1),
        ({"words": ["a", "b"], "step": 3}, {"words": ["c"], "step": 3}, 1),
        ({"x": torch.zeros(2)}, {"y": torch.zeros(4)}, 4),
    ],
    ids=["ragged", "fields", "boxes", "images and targets", "words", "another structure"],
)
def test_rows_of_a_short_batch_are_where_a_full_one_has_them(full: Any, short: Any, num_rows: int) -> None:  # noqa: ANN401
    counted = RowCounter(2)

    assert counted(full) == 2
    assert counted(short) == num_rows


def test_what_could_be_fields_are_rows_once_they_differ_in_length() -> None:
    counted = RowCounter(1)

    assert [counted([torch.zeros(length)]) for length in (1, 3, 1, 5)] == [1, 1, 1, 1]
    assert counted.row_lists == frozenset({()})


def everything(*numbers: int) -> dict[str, Any]:
    return {
        "tensor": torch.tensor(numbers),
        "array": np.array(numbers),
        "list": [str(number) for number in numbers],
        "tuple": tuple(numbers),
        "pair": Pair(torch.tensor(numbers), numbers[0] if numbers else 0),
        "boxes": [torch.zeros(number, 4) for number in numbers],
        "scalar": torch.tensor(1),
        "weights": torch.ones(10),
        "name": "all",
    }


def numbers_in(batch: dict[str, Any]) -> list[int]:
    numbers: list[int] = batch["tensor"].tolist()
    assert batch["array"].tolist() == numbers
    assert batch["list"] == [str(number) for number in numbers]
    assert batch["tuple"] == tuple(numbers)
    assert batch["pair"].first.tolist() == numbers
    assert [len(boxes) for boxes in batch["boxes"]] == numbers
    assert (batch["scalar"].item(), len(batch["weights"]), batch["name"]) == (1, 10, "all")
    return numbers


def test_cutting_takes_what_belongs_to_the_rows_and_repeats_the_rest() -> None:
    batch = everything(4, 5, 6)

    assert numbers_in(cut(batch, 1, 3, 3)) == [5, 6]
    assert numbers_in(batch) == [4, 5, 6]


def test_joining_puts_rows_one_behind_the_other() -> None:
    joined = join([everything(4, 5, 6), everything(7), everything(8, 9)], [3, 1, 2])

    assert numbers_in(joined) == [4, 5, 6, 7, 8, 9]


def test_what_is_cut_is_no_copy() -> None:
    tensor = torch.arange(4)

    assert cut([tensor], 1, 3, 4)[0].data_ptr() == tensor[1:].data_ptr()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 4)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64)),
        ({"x": torch.zeros(2)}, {"y": torch.zeros(2)}),
        ([torch.zeros(2), torch.zeros(2)], [torch.zeros(2)]),
        ({"x": torch.zeros(2), "mask": None}, {"x": torch.zeros(2), "mask": torch.zeros(2)}),
        ({"x": torch.zeros(2), "weights": torch.zeros(10)}, {"x": torch.zeros(2), "weights": torch.zeros(11)}),
    ],
)
def test_batches_that_differ_cannot_be_joined(first: Any, second: Any) -> None:  # noqa: ANN401
    with pytest.raises(CannotJoin):
        join([first, second], [2, 2])
