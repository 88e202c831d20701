from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel_nb.launch.payload.packing import pack, pack_value, unpack_value
from tests.launch.payload.notebook_stand_in import Notebook

Mapped = Any
"""np.memmap; its stubs say that a part of one is an ordinary array."""
NUM_ROWS, NUM_COLUMNS = 1000, 300


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    with Notebook() as notebook:
        yield notebook


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "train.bin"
    np.arange(NUM_ROWS * NUM_COLUMNS, dtype=np.int32).tofile(path)
    return path


PARTS: dict[str, Callable[[Mapped], Mapped]] = {
    "whole": lambda array: array,
    "rows": lambda array: array[100:200],
    "rows of rows": lambda array: array[100:200][10:],
    "transposed": lambda array: array.T,
    "one row": lambda array: array[17],
}


@pytest.mark.parametrize("offset", [0, 4, 4096, 5000], ids=lambda offset: f"from byte {offset}")
@pytest.mark.parametrize("part", PARTS)
def test_p06_a_mapped_file_is_mapped_again(path: Path, part: str, offset: int) -> None:
    whole: Mapped = np.memmap(path, np.int32, "r", offset, (NUM_ROWS - 10, NUM_COLUMNS))
    array = PARTS[part](whole)

    with pack_value({"a": array}) as packed:
        value: Any = unpack_value(packed.fd)
        assert packed.size_bytes < 2000

    assert type(value["a"]) is np.memmap
    np.testing.assert_array_equal(value["a"], array)


def test_p06_a_rank_reads_the_file_and_may_write_where_the_kernel_may(notebook: Notebook, path: Path) -> None:
    notebook.run("def train(data):\n    data[0] = -5\n    return int(data[1:].sum())")
    data = np.memmap(path, np.int32, "r+")

    assert notebook.launch("train", data) == int(data[1:].sum())
    assert data[0] == -5


def _private(path: Path) -> Mapped:
    array: Mapped = np.memmap(path, np.int32, "c")
    array[0] = 77
    return array


def _with_gaps(path: Path) -> Mapped:
    return np.memmap(path, np.int32, "r")[::2]


def _deleted(path: Path) -> Mapped:
    array: Mapped = np.memmap(path, np.int32, "r")
    path.unlink()
    return array


@pytest.mark.parametrize("make", [_private, _with_gaps, _deleted])
def test_p06_what_the_file_does_not_hold_travels_by_value(path: Path, make: Callable[[Path], Mapped]) -> None:
    array = make(path)

    with pack(len, (array,)) as packed:
        assert packed.size_bytes > array.nbytes
    with pack_value(array) as packed:
        value: Any = unpack_value(packed.fd)

    assert type(value) is np.ndarray
    np.testing.assert_array_equal(value, array)
