"""D01's grid over real ranks: a sample of it, in one launch for each number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.data.preparing import prepare_data_loader

from ..examples import Numbers

RunRanks = Callable[..., list[Any]]


class Cell(NamedTuple):
    length: int
    batch_size: int | None
    even: bool
    split: bool
    drop_last: bool

    def kept(self, num_ranks: int) -> int:
        """How many samples are counted: all, or with `drop_last` those of full steps."""
        if not self.drop_last or self.batch_size is None:
            return self.length
        step_size = self.batch_size if self.split else self.batch_size * num_ranks
        return self.length // step_size * step_size


LENGTHS = (0, 1, 2, 3, 5, 8, 9, 13, 16, 40)


def cells(num_ranks: int) -> list[Cell]:
    batched = product(LENGTHS, (1, 2, 3, 4, 6), (True, False), (True, False), (True, False))
    splittable = [Cell(*cell) for cell in batched if not cell[3] or cell[1] % num_ranks == 0]
    return splittable + [Cell(length, None, even, False, False) for length in LENGTHS for even in (True, False)]


def read_cells(num_ranks: int) -> list[tuple[list[int], list[str], int, int]]:
    accelerator = Accelerator()
    results = []
    for cell in cells(num_ranks):
        loader = prepare_data_loader(
            DataLoader(Numbers(cell.length), cell.batch_size, drop_last=cell.drop_last, collate_fn=torch.tensor),
            accelerator.device, put_on_device=True, even_batches=cell.even, split_batches=cell.split,
        )  # fmt: skip
        numbers: list[int] = []
        texts: list[str] = []
        num_batches = 0
        for batch in loader:
            numbers += accelerator.gather_for_metrics(batch).reshape(-1).tolist()
            texts += accelerator.gather_for_metrics([str(number) for number in batch.reshape(-1).tolist()])
            num_batches += 1
        results.append((numbers, texts, num_batches, len(loader)))
    return results


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_d01_d02_every_sample_is_counted_once_and_in_order(run_ranks: RunRanks, num_ranks: int) -> None:
    for rank, results in enumerate(run_ranks(read_cells, num_ranks, num_ranks)):
        for cell, (numbers, texts, num_batches, announced) in zip(cells(num_ranks), results, strict=True):
            expected = list(range(cell.kept(num_ranks)))
            if cell.even or rank == 0:
                assert numbers == expected, cell
            else:  # a rank that has no batch in the last step has left the loop before it
                assert numbers == expected[: len(numbers)], cell
            assert texts == [str(number) for number in numbers], cell
            assert num_batches == announced, cell


def read_batches_that_differ() -> list[int]:
    accelerator = Accelerator()
    batches = [[0], [1, 2], [3, 4, 5], [6], [7, 8], [9, 10], [11]]
    loader = accelerator.prepare(DataLoader(Numbers(12), batch_sampler=batches))
    return [number for batch in loader for number in accelerator.gather_for_metrics(batch).tolist()]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_d01_batches_that_differ_in_size_are_counted_once_and_in_order(run_ranks: RunRanks, num_ranks: int) -> None:
    assert run_ranks(read_batches_that_differ, num_ranks) == [list(range(12))] * num_ranks


def train_to_an_uneven_end() -> tuple[int, float]:
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(1, 1))
    loader = prepare_data_loader(DataLoader(Numbers(5), 1), even_batches=False)
    num_batches = 0
    with model.join():
        for batch in loader:
            model(batch.float().unsqueeze(1)).sum().backward()
            num_batches += 1
    accelerator.wait_for_everyone()
    weight: float = model.module.weight.grad.item()
    return num_batches, weight


def test_d16_an_uneven_end_works_with_join(run_ranks: RunRanks) -> None:
    (first, _), (second, _) = run_ranks(train_to_an_uneven_end, 2)

    assert (first, second) == (3, 2)


def lengths_of_uneven_loops(even: bool) -> list[int]:
    accelerator = Accelerator()
    loader = prepare_data_loader(DataLoader(Numbers(7), 2), even_batches=even)
    lengths = []
    for _ in range(2):
        lengths.append(sum(1 for _ in loader))
        accelerator.wait_for_everyone()
    return lengths


@pytest.mark.parametrize("even", [True, False])
def test_d16_ranks_that_read_unequally_much_meet_again_after_each_pass(run_ranks: RunRanks, even: bool) -> None:
    assert run_ranks(lengths_of_uneven_loops, 3, even) == ([[2, 2]] * 3 if even else [[2, 2], [1, 1], [1, 1]])
