"""The public launchers: what they make of their arguments."""

from __future__ import annotations

import os

import numpy as np
import pytest

from accel_nb import debug_launcher, notebook_launcher
from accel_nb.errors import InvalidArgument


def number_of_ranks() -> str:
    return os.environ["WORLD_SIZE"]


def test_numbers_of_numpy_are_numbers() -> None:
    result = notebook_launcher(number_of_ranks, num_processes=np.int64(2), max_restarts=np.int32(0), device="cpu")  # type: ignore[arg-type]  # users have them

    assert list(result) == ["2", "2"]


@pytest.mark.parametrize("value", [True, np.True_])
def test_a_truth_value_is_no_number_of_ranks(value: int) -> None:
    with pytest.raises(InvalidArgument, match=r"num_processes=.*True.*: give a whole number of at least 1"):
        notebook_launcher(number_of_ranks, num_processes=value)


@pytest.mark.parametrize("launcher", [notebook_launcher, debug_launcher])
def test_one_argument_that_is_no_sequence_is_told(launcher: object) -> None:
    assert callable(launcher)

    with pytest.raises(InvalidArgument, match=r"args=5 is one argument, .* write args=\(5,\)"):
        launcher(print, 5)


@pytest.mark.parametrize(
    "given", [{"timeouts": 0}, {"timeouts": 30}, {"devices": 3}, {"kwargs": 0}, {"kwargs": [1]}, {"env": "A=b"}]
)
def test_a_wrong_type_is_refused_before_anything_is_made_of_it(given: dict[str, object]) -> None:
    (name,) = given

    with pytest.raises(InvalidArgument, match=f"^{name}=.*: write "):
        notebook_launcher(number_of_ranks, **given)  # type: ignore[arg-type]  # that is the point
