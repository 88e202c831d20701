from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.data.batch_sampler import BatchSamplerShard
from accel_nb.training.data.loader import DataLoaderShard
from accel_nb.training.data.preparing import prepare_data_loader
from accel_nb.training.ranks.state import GradientState

from ..examples import Numbers

RunRanks = Callable[..., list[Any]]


def shard(
    loader: DataLoader[Any], num_processes: int = 2, process_index: int = 0, split_batches: bool = False
) -> DataLoaderShard:
    """As a rank of two would see it, except for what ranks do together."""
    prepared = prepare_data_loader(
        loader, num_processes=num_processes, process_index=process_index, split_batches=split_batches
    )
    assert isinstance(prepared, DataLoaderShard)
    return prepared


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(5)


def test_prepared_loader_is_a_data_loader_over_the_same_data() -> None:
    loader = DataLoader(Numbers(10), 4, collate_fn=list, num_workers=0, pin_memory=False, timeout=0)

    prepared = shard(loader)

    assert isinstance(prepared, DataLoader)
    assert prepared.dataset is loader.dataset
    assert prepared.collate_fn is list
    assert list(prepared) == [[0, 1, 2, 3], [8, 9, 0, 1]]


def test_d09_batch_size_is_per_rank_and_len_is_the_number_of_iterations() -> None:
    sizes: list[int] = []

    def collate(samples: list[int]) -> list[int]:
        sizes.append(len(samples))
        return samples

    prepared = shard(DataLoader(Numbers(20), 6, collate_fn=collate))

    assert len(prepared) == len(list(prepared)) == 2
    assert sizes == [6, 6]
    assert prepared.total_batch_size == 12
    assert prepared.total_dataset_length == 20


def test_d09_with_split_batches_the_batch_size_is_that_of_all_ranks() -> None:
    prepared = shard(DataLoader(Numbers(20), 6, collate_fn=list), split_batches=True)

    assert prepared.total_batch_size == 6
    assert len(prepared) == len(list(prepared)) == 4


@pytest.mark.parametrize(("length", "remainder"), [(10, 2), (8, 0), (3, 3)])
def test_end_and_remainder_are_known_while_the_last_batch_is_worked_on(length: int, remainder: int) -> None:
    prepared = shard(DataLoader(Numbers(length), 2, collate_fn=list))
    progress = GradientState()

    seen = [(progress.end_of_dataloader, progress.remainder) for _ in prepared]

    assert seen[:-1] == [(False, -1)] * (len(seen) - 1)
    assert seen[-1] == (True, remainder)
    assert not progress.in_dataloader
    assert (progress.end_of_dataloader, progress.remainder) == (False, -1)


def test_a_loop_left_by_break_leaves_the_outer_loop_active() -> None:
    outer, inner = shard(DataLoader(Numbers(6), 1)), shard(DataLoader(Numbers(8), 1))
    progress = GradientState()

    for _ in outer:
        for _ in inner:
            assert progress.active_dataloader is inner
            break
        assert progress.active_dataloader is outer

    assert progress.active_dataloader is None


def test_an_empty_loader_gives_no_batch() -> None:
    assert list(shard(DataLoader(Numbers(0), 2))) == []


def test_a_batch_sampler_of_the_users_own_makes_the_indices() -> None:
    class Pairs(Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            yield from ([9, 8], [7], [6, 5])

        def __len__(self) -> int:
            return 3

    pairs = Pairs()

    prepared = shard(DataLoader(Numbers(10), batch_sampler=pairs, collate_fn=list), process_index=1)

    assert isinstance(prepared.batch_sampler, BatchSamplerShard)
    assert prepared.batch_sampler.batch_sampler is pairs
    assert list(prepared) == [[7], [9, 8]]
    assert len(prepared) == 2
    assert prepared.total_batch_size is None


def test_set_epoch_reaches_the_sampler() -> None:
    class Epochs(SequentialSampler):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    sampler = Epochs(Numbers(4))
    prepared = shard(DataLoader(Numbers(4), 2, sampler=sampler))

    prepared.set_epoch(3)

    assert sampler.epoch == 3


def test_batch_sampler_shard_passes_its_wrapped_sampler_on() -> None:
    wrapped = BatchSampler(RandomSampler(range(5)), 2, drop_last=True)

    sharded = BatchSamplerShard(wrapped, 2, 1)

    assert (sharded.sampler, sharded.batch_size, sharded.drop_last) == (wrapped.sampler, 2, True)
    assert (sharded.total_length, len(sharded)) == (2, 1)


@pytest.mark.parametrize("loader", [DataLoader(Stream(), 2), DataLoader(Numbers(5), batch_size=None)])
def test_one_process_reads_what_the_plain_loader_reads(loader: DataLoader[Any]) -> None:
    prepared = Accelerator(cpu=True).prepare(loader)

    assert str(list(prepared)) == str(list(loader))


def test_one_process_keeps_the_users_batch_sampler_and_order() -> None:
    loader = DataLoader(Numbers(9), 2, shuffle=True, generator=torch.Generator().manual_seed(1))
    prepared = Accelerator(cpu=True).prepare(loader)
    assert loader.generator is not None

    plain = [[batch.tolist() for batch in loader] for _ in range(2)]
    loader.generator.manual_seed(1)

    assert [[batch.tolist() for batch in prepared] for _ in range(2)] == plain
    assert prepared.batch_sampler is loader.batch_sampler


def epochs_of_shuffled_indices() -> dict[str, list[list[int]]]:
    class Backwards(Sampler[int]):
        """A sampler of the user's own that draws from its own generator."""

        generator = torch.Generator()

        def __iter__(self) -> Iterator[int]:
            yield from torch.randperm(11, generator=self.generator).tolist()

        def __len__(self) -> int:
            return 11

    torch.seed()
    accelerator = Accelerator()
    loaders = {
        "unseeded": DataLoader(Numbers(11), 2, shuffle=True),
        "seeded": DataLoader(Numbers(11), 2, shuffle=True, generator=torch.Generator().manual_seed(torch.seed() % 99)),
        "own": DataLoader(Numbers(11), 2, sampler=Backwards()),
    }
    return {
        name: [[index for batch in prepared for index in batch.tolist()] for _ in range(3)]
        for name, loader in loaders.items()
        for prepared in [accelerator.prepare(loader)]
    }


def test_g03_d15_ranks_share_one_order_which_changes_with_each_epoch(run_ranks: RunRanks) -> None:
    first, second = run_ranks(epochs_of_shuffled_indices, 2)

    for name in first:
        for ours, theirs in zip(first[name], second[name], strict=True):
            assert len(ours) == len(theirs) == 6
            assert set(ours) | set(theirs) == set(range(11)), name
            assert len(ours + theirs) == 12, name  # one sample fills the last batch
        assert first[name][0] != first[name][1], name


class Careless(Sampler[int]):
    """Draws from whatever generators the process has."""

    def __iter__(self) -> Iterator[int]:
        for start in range(0, 12, 4):
            order = torch.randperm(4).tolist()
            random.shuffle(order)
            yield from (start + order[index] for index in np.random.permutation(4))  # noqa: NPY002

    def __len__(self) -> int:
        return 12


def careless_orders() -> tuple[list[list[int]], bool]:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(Numbers(12), 2, sampler=Careless(), collate_fn=list))
    torch.manual_seed(accelerator.process_index)
    orders = [[index for batch in loader for index in batch] for _ in range(2)]
    drawn_between = torch.rand(1)
    torch.manual_seed(accelerator.process_index)
    for _ in range(4):  # seeds of order and workers, twice
        torch.empty((), dtype=torch.int64).random_()
    return orders, torch.equal(drawn_between, torch.rand(1))


def test_g03_a_sampler_without_a_generator_makes_one_order_and_disturbs_no_noise(run_ranks: RunRanks) -> None:
    (first, undisturbed), (second, _) = run_ranks(careless_orders, 2)

    assert undisturbed
    assert first[0] != first[1]
    for ours, theirs in zip(first, second, strict=True):
        assert sorted(ours + theirs) == list(range(12))


def orders_with_other_generators() -> list[int]:
    torch.seed()
    loader = DataLoader(Numbers(8), 2, shuffle=True, collate_fn=list)
    return [index for batch in Accelerator(rng_types=["torch"]).prepare(loader) for index in batch]


def test_g03_the_order_is_shared_whatever_else_is(run_ranks: RunRanks) -> None:
    first, second = run_ranks(orders_with_other_generators, 2)

    assert sorted(first + second) == list(range(8))


class WorkerDraws(Numbers):
    """Sample i is what a worker's three generators say, which is what augmentation draws from."""

    def __getitem__(self, index: int) -> tuple[int, float, float]:  # type: ignore[override]
        return torch.initial_seed(), random.random(), float(np.random.random())  # noqa: NPY002


def draws_of_workers() -> tuple[list[Any], list[int]]:
    torch.manual_seed(0)
    accelerator = Accelerator()
    loader = DataLoader(WorkerDraws(8), 2, num_workers=2, collate_fn=list, generator=torch.Generator().manual_seed(4))
    draws = [sample for batch in accelerator.prepare(loader) for sample in batch]
    order = accelerator.prepare(
        DataLoader(Numbers(8), 2, shuffle=True, collate_fn=list, generator=torch.Generator().manual_seed(4))
    )
    return draws, [index for batch in order for index in batch]


def test_g02_workers_of_different_ranks_draw_differently_and_repeatably(run_ranks: RunRanks) -> None:
    again, ranks = run_ranks(draws_of_workers, 2), run_ranks(draws_of_workers, 2)

    assert ranks == again
    draws = [draw for samples, _ in ranks for draw in samples]
    for position in range(3):
        assert len({draw[position] for draw in draws}) >= 4
        assert not {draw[position] for draw in ranks[0][0]} & {draw[position] for draw in ranks[1][0]}


def test_the_order_of_an_explicit_generator_is_that_of_one_process(run_ranks: RunRanks) -> None:
    plain = DataLoader(Numbers(8), 2, shuffle=True, collate_fn=list, generator=torch.Generator().manual_seed(4))

    orders = [order for _, order in run_ranks(draws_of_workers, 2)]

    flat = [index for batch in plain for index in batch]
    assert [orders[0][:2], orders[1][:2], orders[0][2:], orders[1][2:]] == [flat[:2], flat[2:4], flat[4:6], flat[6:]]
