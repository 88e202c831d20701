from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from accel_nb.errors import TrainingError
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.data.batch_sampler import BatchSamplerShard
from accel_nb.training.data.loader import DataLoaderShard
from accel_nb.training.data.order import SeedableRandomSampler
from accel_nb.training.data.prepared import PreparedLoader
from accel_nb.training.data.preparing import get_sampler, mark_as_sharded, prepare_data_loader
from accel_nb.training.settings import DataLoaderConfiguration

from ..examples import Numbers

RunRanks = Callable[..., list[Any]]


def shares(loader: DataLoader[Any], num_ranks: int = 2, **options: Any) -> list[list[Any]]:  # noqa: ANN401
    """What each rank of a launch would read, one after the other in this process."""
    prepared = [prepare_data_loader(loader, None, num_ranks, rank, **options) for rank in range(num_ranks)]
    return [_plain(list(one)) for one in prepared]


def _plain(batches: Any) -> Any:  # noqa: ANN401
    return [one.tolist() if isinstance(one, torch.Tensor) else one for one in batches]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(5)


class Spy(Sampler[Any]):
    """Gives what another sampler gives, and counts."""

    def __init__(self, wrapped: Any) -> None:  # noqa: ANN401
        self.wrapped = wrapped
        self.given: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        for item in self.wrapped:
            self.given.append(item)
            yield item

    def __len__(self) -> int:
        return len(self.wrapped)


def test_preparing_leaves_the_given_loader_usable_and_unchanged() -> None:
    loader = DataLoader(Numbers(6), 2)

    shares(loader)

    assert _plain(loader) == [[0, 1], [2, 3], [4, 5]]
    assert type(loader.batch_sampler) is BatchSampler


def test_a_prepared_loader_comes_back_as_it_is() -> None:
    prepared = prepare_data_loader(DataLoader(Numbers(6), 2), None, 2, 0)

    assert prepare_data_loader(prepared, None, 2, 1) is prepared


@pytest.mark.parametrize("even_batches", [True, False])
def test_an_unbatched_loader_is_dealt_out_item_by_item(even_batches: bool) -> None:
    loader = DataLoader(Numbers(5), batch_size=None)

    first, second = shares(loader, even_batches=even_batches)

    assert first == [0, 2, 4]
    assert second == ([1, 3, 0] if even_batches else [1, 3])


def test_d14_the_users_sampler_makes_the_indices() -> None:
    spy = Spy([3, 1, 4, 1, 5, 2])

    first, second = shares(DataLoader(Numbers(9), 2, sampler=spy))

    assert (first, second) == ([[3, 1], [5, 2]], [[4, 1], [3, 1]])
    assert spy.given == [3, 1, 4, 1, 5, 2] * 2


def test_d14_the_users_batch_sampler_makes_the_indices() -> None:
    spy = Spy([[8, 7], [6], [5, 4, 3]])

    assert shares(DataLoader(Numbers(9), batch_sampler=spy)) == [[[8, 7], [5, 4, 3]], [[6], [8, 7]]]
    assert spy.given == [[8, 7], [6], [5, 4, 3]] * 2


def test_d14_a_batch_sampler_used_as_sampler_makes_the_indices() -> None:
    class Lists(Numbers):
        def __getitem__(self, index: Any) -> Any:  # noqa: ANN401
            return torch.tensor(index)

    sampler = BatchSampler(SequentialSampler(range(6)), 2, drop_last=False)
    loader = DataLoader(Lists(6), sampler=sampler, batch_size=None)

    assert shares(loader) == [[[0, 1], [4, 5]], [[2, 3], [0, 1]]]
    prepared = prepare_data_loader(loader, None, 2, 0)
    assert prepared.total_batch_size == 4
    assert isinstance(prepared.sampler, BatchSamplerShard)
    assert prepared.sampler.batch_sampler is sampler


@pytest.mark.parametrize(
    "make",
    [
        lambda: WeightedRandomSampler([0.0, 1.0, 0.0, 1.0], 6),
        lambda: SubsetRandomSampler([1, 3, 1, 3, 1, 3]),
        lambda: RandomSampler(range(6)),
    ],
    ids=["weighted", "subset", "random"],
)
def test_d14_torchs_own_samplers_stay_and_get_a_generator_to_share(make: Callable[[], Any]) -> None:
    torch.manual_seed(3)
    sampler: Any = make()
    loader = DataLoader(Numbers(6), 3, sampler=sampler)
    prepared = prepare_data_loader(loader, None, 2, 0)

    read = [index for batch in prepared for index in batch.tolist()]

    assert (get_sampler(prepared), prepared.sampler) == (sampler, sampler)
    assert isinstance(sampler.generator, torch.Generator)
    assert isinstance(prepared, DataLoaderShard)
    assert prepared.synchronized_generator is sampler.generator
    assert set(read) <= ({1, 3} if not isinstance(sampler, RandomSampler) else set(range(6)))


def test_d13_a_batch_that_cannot_be_split_names_the_nearest_sizes() -> None:
    for kind in ({"batch_size": 5}, {"batch_sampler": BatchSampler(range(9), 5, drop_last=False)}):
        with pytest.raises(ValueError, match=r"batch_size=5 is no round multiple of 2\. Use 4 or 6\."):
            prepare_data_loader(DataLoader(Numbers(9), **kind), None, 2, 0, split_batches=True)


def test_d13_split_batches_is_never_ignored() -> None:
    with pytest.raises(ValueError, match=r"this loader has no batches \(batch_size=None\)"):
        prepare_data_loader(DataLoader(Numbers(4), batch_size=None), None, 2, 0, split_batches=True)
    with pytest.raises(ValueError, match="batch sampler has no `batch_size`"):
        prepare_data_loader(DataLoader(Numbers(4), batch_sampler=Spy([[1]])), None, 2, 0, split_batches=True)


def test_arguments_that_contradict_each_other_are_refused() -> None:
    loader = DataLoader(Numbers(4), 2)
    with pytest.raises(ValueError, match=r"data_seed=7 is the seed of the seedable sampler, which is off"):
        prepare_data_loader(loader, data_seed=7)
    with pytest.raises(ValueError, match=r"dispatch_batches=True .* needs put_on_device=True"):
        prepare_data_loader(loader, dispatch_batches=True)
    with pytest.raises(ValueError, match=r"slice_fn_for_dispatch cuts batches that rank 0 dispatches, and these"):
        prepare_data_loader(loader, None, 2, 0, slice_fn_for_dispatch=lambda *_, **__: None)
    with pytest.raises(TrainingError, match="torch_device_mesh lets some ranks read the same data"):
        prepare_data_loader(loader, torch_device_mesh=object())


def counts_of_distributed_sampler() -> list[int]:
    accelerator = Accelerator()
    sampler: DistributedSampler[int] = DistributedSampler(
        Numbers(8), num_replicas=2, rank=accelerator.process_index, shuffle=False
    )
    loader = accelerator.prepare(DataLoader(Numbers(8), 2, sampler=sampler))
    assert loader.total_batch_size == 4
    assert isinstance(loader, PreparedLoader)
    return [index for batch in loader for index in batch.tolist()]


def test_d10_data_that_a_distributed_sampler_shares_is_not_shared_again(run_ranks: RunRanks) -> None:
    assert run_ranks(counts_of_distributed_sampler, 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_d10_that_is_told_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    sampler: DistributedSampler[int] = DistributedSampler(Numbers(8), num_replicas=2, rank=0)

    prepare_data_loader(DataLoader(Numbers(8), 2, sampler=sampler), None, 2, 0)

    told = capsys.readouterr().out.splitlines()
    assert len(told) == 1
    assert told[0].startswith("prepare leaves the loader over Numbers as it is shared: its DistributedSampler deals ")


def test_d10_a_distributed_sampler_for_another_number_of_ranks_is_refused() -> None:
    sampler: DistributedSampler[int] = DistributedSampler(Numbers(8), num_replicas=4, rank=0)

    with pytest.raises(TrainingError, match="shares the data among 4 ranks, but 2 ranks read it"):
        prepare_data_loader(DataLoader(Numbers(8), 2, sampler=sampler), None, 2, 0)


def test_d10_a_marked_loader_is_read_whole_and_its_end_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    loader = mark_as_sharded(DataLoader(Numbers(5), 2))
    prepared = prepare_data_loader(loader, None, 2, 1)

    seen = [(batch.tolist(), prepared.end_of_dataloader) for batch in prepared]

    assert seen == [([0, 1], False), ([2, 3], False), ([4], True)]
    assert (prepared.total_batch_size, prepared.remainder) == (4, -1)
    assert capsys.readouterr().out == ""


class Doubling(DataLoader[int]):
    """A loader class of the user's own."""

    def __init__(self, length: int, factor: int = 2) -> None:
        super().__init__(Numbers(length), batch_size=2)
        self.factor = factor

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        yield from (self.factor * batch for batch in super().__iter__())


def test_a_loader_class_keeps_its_own_iteration_and_attributes() -> None:
    assert shares(Doubling(6)) == [[[0, 2], [8, 10]], [[4, 6], [0, 2]]]

    prepared = prepare_data_loader(Doubling(6, factor=3), None, 2, 0)
    assert isinstance(prepared, Doubling)
    assert prepared.factor == 3
    again = pickle.loads(pickle.dumps(prepared))
    assert type(again) is type(prepared)
    assert _plain(again) == [[0, 3], [12, 15]]


def test_a_prepared_loader_that_is_being_read_can_be_pickled() -> None:
    prepared = prepare_data_loader(DataLoader(Numbers(4), 2), None, 1, 0)

    for _ in prepared:
        again = pickle.loads(pickle.dumps(prepared))

    assert _plain(again) == [[0, 1], [2, 3]]


def test_seedable_sampler_orders_by_seed_and_epoch_alone() -> None:
    def orders(seed: int, num_ranks: int) -> list[list[int]]:
        loader = DataLoader(Numbers(8), 1, shuffle=True)
        ranks = [
            prepare_data_loader(loader, None, num_ranks, rank, use_seedable_sampler=True, data_seed=seed)
            for rank in range(num_ranks)
        ]
        return [[int(batch) for step in zip(*ranks, strict=True) for batch in step] for _ in range(2)]

    torch.manual_seed(0)
    first = orders(5, 1)
    torch.manual_seed(1)

    assert orders(5, 2) == first
    assert first[0] != first[1]
    assert orders(6, 1)[0] != first[0]


def test_seedable_sampler_takes_the_place_of_a_random_one_only() -> None:
    prepared = prepare_data_loader(DataLoader(Numbers(8), 2, shuffle=True), None, 2, 0, use_seedable_sampler=True)
    ordered = DataLoader(Numbers(8), 2)

    assert isinstance(get_sampler(prepared), SeedableRandomSampler)
    assert prepare_data_loader(ordered, None, 1, 0, use_seedable_sampler=True).sampler is ordered.sampler


def test_get_sampler_finds_what_gives_single_indices() -> None:
    sampler = SequentialSampler(range(4))

    assert get_sampler(DataLoader(Numbers(4), 2, sampler=sampler)) is sampler
    nested = BatchSampler(sampler, 2, drop_last=False)
    assert get_sampler(DataLoader(Numbers(4), sampler=nested, batch_size=None)) is sampler
    assert get_sampler(DataLoader(Numbers(4), batch_sampler=Spy([[0]]))) is None


def orders_with_another_sampler(dispatch: bool) -> list[list[list[int]]]:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    loader = accelerator.prepare(DataLoader(Numbers(16), 2))
    before = _plain(loader)
    sampler = RandomSampler(range(16))
    loader.set_sampler(sampler)
    assert loader.get_sampler() is get_sampler(loader) is sampler
    torch.manual_seed(accelerator.process_index)
    return [before, *(_plain(loader) for _ in range(2))]


@pytest.mark.parametrize("dispatch", [False, True])
def test_ranks_agree_on_the_order_of_a_sampler_that_is_set_later(run_ranks: RunRanks, dispatch: bool) -> None:
    ranks = run_ranks(orders_with_another_sampler, 2, dispatch)

    passes = [[index for rank in ranks for batch in rank[number] for index in batch] for number in range(3)]
    assert passes[0] == [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15]
    assert [sorted(one) for one in passes] == [list(range(16))] * 3
    assert passes[0] != passes[1] != passes[2]


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Stream(), 2),
        DataLoader(Numbers(4), batch_sampler=Spy([[0]])),
        DataLoader(Numbers(4), batch_size=None),
    ],
)
def test_a_sampler_that_has_no_place_is_refused(loader: DataLoader[Any], num_ranks: int) -> None:
    prepared = prepare_data_loader(loader, None, num_ranks, 0)

    with pytest.raises(
        TrainingError, match=r"no place for a RandomSampler: this loader is not read by a batch sampler that .*sampler="
    ):
        prepared.set_sampler(RandomSampler(range(4)))


def test_without_torchdata_a_stateful_loader_is_refused_with_the_packages_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torchdata.stateful_dataloader", None)

    with pytest.raises(TrainingError, match=r"needs the package torchdata \(pip install torchdata\)"):
        prepare_data_loader(DataLoader(Numbers(4), 2), use_stateful_dataloader=True)


def test_a_loader_class_of_its_own_cannot_become_stateful() -> None:
    pytest.importorskip("torchdata.stateful_dataloader")

    with pytest.raises(TrainingError, match="would lose the __iter__ of Doubling"):
        prepare_data_loader(Doubling(4), use_stateful_dataloader=True)
