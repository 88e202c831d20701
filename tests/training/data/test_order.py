from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.data.order import SeedableRandomSampler
from accel_nb.training.data.preparing import prepare_data_loader
from accel_nb.training.ranks.randomness import set_seed

from ..examples import Numbers

RunRanks = Callable[..., list[Any]]


def orders_of_chosen_epochs(seed: int, epochs: list[int], kind: str) -> list[list[int]]:
    """This rank's indices in each of `epochs`."""
    set_seed(seed)
    accelerator = Accelerator()
    generator = torch.Generator().manual_seed(seed) if kind == "own generator" else None
    loader = DataLoader(Numbers(12), 2, shuffle=True, generator=generator, collate_fn=list)
    options = {"use_seedable_sampler": True} if kind == "seedable" else {}
    if kind == "dispatched":
        options = {"dispatch_batches": True, "put_on_device": True}
    prepared = prepare_data_loader(
        loader, None, accelerator.num_processes, accelerator.process_index, **options  # type: ignore[arg-type]
    )  # fmt: skip
    orders = []
    for epoch in epochs:
        prepared.set_epoch(epoch)
        orders.append([index for batch in prepared for index in batch])
    return orders


def joined(ranks: list[list[list[int]]]) -> list[list[int]]:
    """By epoch, the indices in the order of the source: pairs of one rank after the other."""
    num_epochs, num_own = len(ranks[0]), len(ranks[0][0])
    return [
        [index for start in range(0, num_own, 2) for rank in ranks for index in rank[epoch][start : start + 2]]
        for epoch in range(num_epochs)
    ]


@pytest.mark.parametrize("kind", ["torch's generator", "own generator", "seedable", "dispatched"])
def test_g04_an_epochs_order_depends_on_its_number_and_the_seed_alone(run_ranks: RunRanks, kind: str) -> None:
    one = joined(run_ranks(orders_of_chosen_epochs, 1, 3, [0, 1, 2, 1], kind))
    two = joined(run_ranks(orders_of_chosen_epochs, 2, 3, [2, 1], kind))
    three = joined(run_ranks(orders_of_chosen_epochs, 3, 3, [1, 2], kind))
    other_seed = joined(run_ranks(orders_of_chosen_epochs, 2, 4, [1], kind))

    assert one[1] == one[3]
    assert three == [one[1], one[2]]
    assert len({tuple(order) for order in one}) == 3
    assert two == [one[2], one[1]]
    assert other_seed[0] != one[1]
    assert sorted(two[0]) == list(range(12))


def test_g04_a_seed_given_after_prepare_counts(run_ranks: RunRanks) -> None:
    def order(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(1)
        prepared = prepare_data_loader(DataLoader(Numbers(9), 1, shuffle=True, generator=generator), None, 1, 0)
        prepared.set_epoch(2)
        generator.manual_seed(seed)
        prepared.set_epoch(2)
        return [int(index) for index in prepared]

    del run_ranks
    assert order(5) == order(5) != order(6)


def test_passes_are_numbered_for_samplers_that_ask() -> None:
    class Epochs(SequentialSampler):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    sampler = Epochs(Numbers(4))
    prepared = prepare_data_loader(DataLoader(Numbers(4), 2, sampler=sampler), None, 2, 0)

    seen = [sampler.epoch for _ in range(3) for _ in prepared]

    assert seen == [0, 1, 2]
    assert prepared.iteration == 3


def test_a_pass_that_was_left_is_begun_again_with_its_number() -> None:
    prepared = prepare_data_loader(DataLoader(Numbers(4), 1), None, 1, 0)

    next(iter(prepared))

    assert prepared.iteration == 0


def test_every_part_that_has_an_epoch_is_told() -> None:
    class Told(Numbers):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    class Batches(BatchSampler):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    dataset = Told(4)
    sampler = SeedableRandomSampler(dataset)
    batches = Batches(sampler, 2, drop_last=False)
    prepared = prepare_data_loader(DataLoader(dataset, batch_sampler=batches), None, 2, 0)

    prepared.set_epoch(7)

    assert (dataset.epoch, sampler.epoch, batches.epoch) == (7, 7, 7)


def test_seedable_sampler_counts_its_passes_and_repeats_them() -> None:
    sampler = SeedableRandomSampler(range(9), data_seed=3)

    first, second = list(sampler), list(sampler)
    sampler.set_epoch(0)

    assert first != second
    assert list(sampler) == first
    assert sampler.epoch == 1


def unseeded_orders_of_seedable_samplers() -> list[list[int]]:
    torch.seed()
    accelerator = Accelerator()
    loader = DataLoader(Numbers(8), 2, shuffle=True, collate_fn=list)
    prepared = prepare_data_loader(
        loader, None, accelerator.num_processes, accelerator.process_index, use_seedable_sampler=True
    )
    return [[index for batch in prepared for index in batch] for _ in range(2)]


def test_g03_seedable_samplers_without_a_common_seed_share_one_order(run_ranks: RunRanks) -> None:
    for ours, theirs in zip(*run_ranks(unseeded_orders_of_seedable_samplers, 2), strict=True):
        assert sorted(ours + theirs) == list(range(8))


class Careless(Sampler[list[int]]):
    """Batches in an order drawn from Python's own generator, which ranks do not share."""

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(6))
        random.shuffle(order)
        yield from ([2 * index, 2 * index + 1] for index in order)

    def __len__(self) -> int:
        return 6


def orders_of_a_careless_batch_sampler() -> list[list[int]]:
    random.seed(None)
    prepared = Accelerator().prepare(DataLoader(Numbers(12), batch_sampler=Careless(), collate_fn=list))
    return [[index for batch in prepared for index in batch] for _ in range(3)]


def test_g03_a_batch_sampler_that_draws_by_itself_makes_one_order(run_ranks: RunRanks) -> None:
    for ours, theirs in zip(*run_ranks(orders_of_a_careless_batch_sampler, 2), strict=True):
        assert sorted(ours + theirs) == list(range(12))


def test_d15_the_effective_sampler_is_told() -> None:
    shuffled = prepare_data_loader(DataLoader(Numbers(9), 2, shuffle=True), None, 2, 1)
    stream = prepare_data_loader(DataLoader(Numbers(9), batch_size=None), None, 1, 0)

    assert repr(shuffled) == (
        "DataLoaderShard(rank 1 of 2, Numbers with 9 samples, RandomSampler (shuffles), 4 samples per step)"
    )
    assert repr(stream) == "DataLoaderShard(rank 0 of 1, Numbers with 9 samples, SequentialSampler, not batched)"
