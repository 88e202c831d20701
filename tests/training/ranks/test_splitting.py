"""Parts of what is at hand, without any rank."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel_nb.training.ranks.splitting import split

from ..examples import Numbers


@given(st.integers(0, 20), st.integers(1, 5))
def test_parts_joined_are_the_whole_and_lengths_differ_by_one(length: int, num_ranks: int) -> None:
    whole = list(range(length))

    parts = [split(whole, num_ranks, rank, padded=False) for rank in range(num_ranks)]
    padded = [split(whole, num_ranks, rank, padded=True) for rank in range(num_ranks)]

    assert [item for part in parts for item in part] == whole
    lengths = [len(part) for part in parts]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1
    assert {len(part) for part in padded} == {max(lengths)}
    for part, filled in zip(parts, padded, strict=True):
        assert filled == part + whole[-1:] * (max(lengths) - len(part))


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        (list("abc"), ["c", "c"]),
        (tuple("abc"), ("c", "c")),
        ("abc", "cc"),
        (range(3), [2, 2]),
        (deque([0, 1, 2]), [2, 2]),
        (torch.arange(3), [2, 2]),
        (np.arange(3), [2, 2]),
        (Numbers(3), [2, 2]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_every_kind_is_filled_up_by_its_last_item(whole: Any, part: Any) -> None:  # noqa: ANN401
    own = split(whole, 2, 1, padded=True)
    plain = split(whole, 2, 1, padded=False)

    as_given = own if isinstance(part, tuple | str) else [own[index] for index in range(len(own))]
    assert as_given == part
    assert len(plain) == 1


def test_a_dataset_of_the_package_datasets_is_filled_up_too() -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list([{"k": index} for index in range(3)])

    own = split(whole, 2, 1, padded=True)

    assert [own[index] for index in range(len(own))] == [{"k": 2}, {"k": 2}]
    assert len(split(whole, 2, 1, padded=False)) == 1


def test_values_of_a_mapping_are_split_alike_and_keep_its_type() -> None:
    whole = defaultdict(list, x=[1, 2, 3], deep={"y": torch.arange(3)})

    part = split(whole, 2, 0, padded=False)

    assert part.default_factory is list
    assert part["x"] == [1, 2]
    assert part["deep"]["y"].tolist() == [0, 1]
    assert whole["x"] == [1, 2, 3]


def test_values_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"needs values of one length, got \{'x': 2, 'deep': 1\}"):
        split({"x": [1, 2], "deep": {"y": [1]}}, 2, 0, padded=False)


@pytest.mark.parametrize(
    "whole", [{1, 2}, 5, iter([1]), {"x": {1, 2}}, torch.tensor(1)], ids=lambda one: type(one).__name__
)
def test_what_cannot_be_split_is_refused(whole: object) -> None:
    with pytest.raises(TypeError, match=r"cannot split a \w+; give a list, tuple"):
        split(whole, 2, 0, padded=False)
