"""Which batch size follows on which: pure."""

from __future__ import annotations

from typing import Any

import pytest

from accel_nb import find_executable_batch_size
from accel_nb.training.memory.reductions import choose_policy


def sizes_tried(reduction: Any, limit: int, *, start: int = 128, minimum: int = 1) -> list[int]:  # noqa: ANN401
    """By a search where everything up to `limit` fits; the size found is the last that fits."""
    policy = choose_policy(reduction, None, start=start, minimum=minimum)
    sizes: list[int] = []
    following: int | None = start
    while following is not None:
        sizes.append(following)
        following = policy.after_fit(following) if following <= limit else policy.after_failure(following)
        assert len(sizes) < 1000, "it does not end"
    return sizes


@pytest.mark.parametrize("limit", range(1, 129))
def test_m01_bisection_comes_close_in_few_tries(limit: int) -> None:
    sizes = sizes_tried("bisect", limit)

    found = max(size for size in sizes if size <= limit)
    assert limit - 3 <= found <= limit
    assert len(sizes) <= 8


@pytest.mark.parametrize(("start", "limit"), [(1, 1), (2, 1), (3, 2), (31, 17), (1000, 777)])
def test_m01_bisection_from_other_starts(start: int, limit: int) -> None:
    sizes = sizes_tried("bisect", limit, start=start)

    assert limit - start // 32 <= max(size for size in sizes if size <= limit) <= limit


def test_m01_bisection_ends_when_nothing_fits() -> None:
    assert sizes_tried("bisect", 0, start=16) == [16, 8, 4, 2, 1]
    assert sizes_tried("bisect", 0, start=16, minimum=4) == [16, 9, 6, 4]


@pytest.mark.parametrize(
    ("reduction", "sizes"),
    [
        (None, [128, 115, 103, 92]),
        (0.9, [128, 115, 103, 92]),
        (0.25, [128, 32]),
        ("halve", [128, 64]),
        pytest.param(lambda failed: failed - 10, [128, 118, 108, 98], id="a function"),
    ],
)
def test_m01_the_reduction_is_pluggable(reduction: object, sizes: list[int]) -> None:
    assert sizes_tried(reduction, 100) == sizes


@pytest.mark.parametrize("reduction", [None, 0.5, 0.999, 0.001, "halve", "bisect"])
@pytest.mark.parametrize("minimum", [1, 5])
def test_m03_every_reduction_comes_down_to_the_floor_and_ends(reduction: object, minimum: int) -> None:
    sizes = sizes_tried(reduction, 0, start=40, minimum=minimum)

    assert sizes[-1] == minimum
    assert sizes == sorted(set(sizes), reverse=True)


@pytest.mark.parametrize("reduction", ["double", 0, 1.0, -0.5, 2])
def test_m01_an_unknown_reduction_is_refused(reduction: Any) -> None:  # noqa: ANN401
    allowed = r"it may be 'halve', 'bisect', a factor between 0 and 1"
    with pytest.raises(ValueError, match=rf"^reduction={reduction!r} is none that there is; {allowed}"):
        find_executable_batch_size(reduction=reduction)
