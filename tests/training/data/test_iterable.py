from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from itertools import chain, product, zip_longest
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.data.iterable import IterableDatasetShard, StreamShard
from accel_nb.training.data.loader import DataLoaderShard
from accel_nb.training.data.preparing import mark_as_sharded, prepare_data_loader
from accel_nb.training.data.skipping import skip_first_batches
from accel_nb.training.ranks.state import PartialState, reset_state
from accel_nb.training.settings import DataLoaderConfiguration

RunRanks = Callable[..., list[Any]]


class Plain(IterableDataset[int]):
    """Gives every worker the same."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))

    def __len__(self) -> int:
        return self.length


class Aware(Plain):
    """Deals its samples out to workers."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        start, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter(range(start, self.length, step))


class Careless(Plain):
    """Shuffles with whatever generators the process has."""

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.length, 4):
            block = list(range(start, min(start + 4, self.length)))
            random.shuffle(block)
            block = [block[index] for index in torch.randperm(len(block)).tolist()]
            yield from (block[index] for index in np.random.permutation(len(block)))  # noqa: NPY002


class ShuffledByWorkerSeed(Aware):
    def __iter__(self) -> Iterator[int]:
        own = list(super().__iter__())
        random.Random(0 if (worker := get_worker_info()) is None else worker.seed).shuffle(own)
        return iter(own)


class Configured(Plain):
    start, step = 0, 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.length, self.step))


def configure(worker_id: int) -> None:
    """As torch's documentation shares a dataset among workers."""
    worker = get_worker_info()
    assert worker is not None
    dataset: Any = worker.dataset
    dataset.start, dataset.step = worker_id, worker.num_workers


def shards(length: int, batch_size: int, num_ranks: int, **how: bool) -> list[list[int]]:
    return [
        list(IterableDatasetShard(Plain(length), batch_size, num_processes=num_ranks, process_index=rank, **how))
        for rank in range(num_ranks)
    ]


GRID = [
    cell
    for cell in product(range(1, 8), range(1, 4), (True, False), (True, False), (True, False))
    if not cell[4] or cell[0] % cell[1] == 0
]


@pytest.mark.parametrize(("batch_size", "num_ranks", "even", "drop_last", "split"), GRID)
def test_d01_d11_each_sample_of_a_stream_belongs_to_one_rank_once_and_in_order(
    batch_size: int, num_ranks: int, even: bool, drop_last: bool, split: bool
) -> None:
    part_size = batch_size // num_ranks if split else batch_size
    for length in range(41):
        parts = shards(length, batch_size, num_ranks, drop_last=drop_last, split_batches=split, even_batches=even)

        step_size = part_size * num_ranks
        kept = length // step_size * step_size if drop_last else length
        steps = zip_longest(
            *([part[start : start + part_size] for start in range(0, len(part), part_size)] for part in parts)
        )
        in_order = list(chain.from_iterable(batch or [] for step in steps for batch in step))
        assert in_order[:kept] == list(range(kept)), length
        assert len(in_order) == (-(-kept // step_size) * step_size if even else kept), length
        for rank, part in enumerate(parts):
            shard = IterableDatasetShard(
                Plain(length), batch_size, drop_last, num_ranks, rank, split_batches=split, even_batches=even
            )
            assert len(shard) == len(part), length
            assert shard.total_length == length


def test_a_batch_that_cannot_be_split_names_the_nearest_sizes() -> None:
    with pytest.raises(ValueError, match=r"batch_size=7 .* multiple of .*Use 6 or 9\."):
        IterableDatasetShard(Plain(4), 7, num_processes=3, split_batches=True)


CELLS = [
    (length, batch_size, even, split, drop_last)
    for length, batch_size in ((0, 1), (1, 4), (5, 2), (7, 3), (9, 6), (24, 6), (40, 7))
    for even, split, drop_last in product((True, False), repeat=3)
]


def metrics_of_cells(num_ranks: int) -> list[Any]:
    results = []
    for cell in CELLS:
        length, batch_size, even, split, drop_last = cell
        if split and batch_size % num_ranks:
            continue
        how = DataLoaderConfiguration(split_batches=split, dispatch_batches=False, even_batches=even)
        accelerator = Accelerator(dataloader_config=how)
        loader = accelerator.prepare(DataLoader(Plain(length), batch_size, drop_last=drop_last))
        seen = [number for batch in loader for number in accelerator.gather_for_metrics(batch).tolist()]
        results.append((cell, seen))
        reset_state()
    return results


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_d01_every_sample_of_a_stream_is_counted_once_and_in_order(run_ranks: RunRanks, num_ranks: int) -> None:
    by_rank = run_ranks(metrics_of_cells, num_ranks, num_ranks)

    for results in by_rank:
        for (length, batch_size, even, split, drop_last), seen in results:
            step_size = batch_size if split else batch_size * num_ranks
            kept = length // step_size * step_size if drop_last else length
            expected = list(range(kept))
            assert seen == (expected if even else expected[: len(seen)]), (length, batch_size, even, split, drop_last)
    assert [len(seen) for _, seen in by_rank[0]] == [
        length // (size := batch_size if split else batch_size * num_ranks) * size if drop_last else length
        for (length, batch_size, even, split, drop_last), _ in by_rank[0]
    ]


def read_by_workers(
    kind: str, length: int, batch_size: int | None, *, dispatched: bool = False, persistent: bool = False
) -> list[tuple[list[Any], list[int]]]:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatched))
    random.seed(accelerator.process_index)
    torch.manual_seed(accelerator.process_index)
    datasets = {
        "plain": Plain, "aware": Aware, "careless": Careless, "seeded": ShuffledByWorkerSeed, "configured": Configured,
    }  # fmt: skip
    init = configure if kind == "configured" else None
    loader = accelerator.prepare(
        DataLoader(
            datasets[kind](length),
            batch_size,
            num_workers=2,
            worker_init_fn=init,
            collate_fn=torch.as_tensor,
            persistent_workers=persistent,
        )
    )
    passes = []
    for _ in range(2):
        batches, gathered = [], []
        for batch in loader:
            batches.append(batch.tolist())
            gathered += accelerator.gather_for_metrics(batch).tolist()
        passes.append((batches, gathered))
    return passes


@pytest.mark.parametrize("kind", ["plain", "aware", "careless", "seeded", "configured"])
@pytest.mark.parametrize("length", [0, 3, 13, 16])
def test_d11_ranks_and_workers_read_all_of_a_stream_once(run_ranks: RunRanks, kind: str, length: int) -> None:
    first, second = run_ranks(read_by_workers, 2, kind, length, 2)

    for (ours, gathered), (theirs, also_gathered) in zip(first, second, strict=True):
        assert gathered == also_gathered
        assert sorted(gathered) == list(range(length))
        assert len(ours) == len(theirs)
        assert {len(batch) for batch in ours + theirs} <= {2}
    if kind == "plain":
        assert first[0][1] == list(range(length))  # in order, as by one process
    if kind == "careless" and length > 4:
        assert first[0][1] != first[1][1]


@pytest.mark.parametrize("kind", ["plain", "aware", "careless", "seeded", "configured"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(("num_ranks", "dispatched"), [(1, True), (1, False), (2, True)])
def test_d11_workers_of_one_rank_read_all_of_a_stream_once(
    run_ranks: RunRanks, kind: str, num_ranks: int, *, dispatched: bool, persistent: bool
) -> None:
    passes = run_ranks(
        lambda: read_by_workers(kind, 13, 2, dispatched=dispatched, persistent=persistent), num_ranks
    )[0]  # fmt: skip

    for _, gathered in passes:
        assert sorted(gathered) == list(range(13))
    if kind == "plain":
        assert passes[0][1] == list(range(13))
    if kind == "careless":
        assert passes[0][1] != passes[1][1]


class Noisy(Aware):
    """Draws noise once it has asked, as an augmentation does."""

    def __iter__(self) -> Iterator[float]:  # type: ignore[override]
        for _ in super().__iter__():
            yield random.random() + torch.rand(1).item()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_g02_workers_that_share_a_stream_draw_noise_of_their_own(run_ranks: RunRanks, num_ranks: int) -> None:
    def noise() -> list[float]:
        accelerator = Accelerator()
        loader = accelerator.prepare(DataLoader(Noisy(8), 1, num_workers=2))
        return [number for batch in loader for number in accelerator.gather(batch).tolist()]

    assert len(set(run_ranks(noise, num_ranks)[0])) == 8


@pytest.mark.parametrize("kind", ["Plain", "Aware"])
def test_d11_a_stream_that_its_workers_do_not_share_is_told_once(capfd: pytest.CaptureFixture[str], kind: str) -> None:
    dataset = {"Plain": Plain, "Aware": Aware}[kind](8)
    loader = Accelerator(cpu=True).prepare(DataLoader(dataset, 2, num_workers=2))

    for _ in range(2):
        assert sorted(number for batch in loader for number in batch.tolist()) == list(range(8))

    assert loader.dataset is dataset
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("The stream")]
    assert len(said) == (kind == "Plain")
    assert all(
        "Plain gives all of its samples to each of 2 DataLoader workers, so it is shared by" in one for one in said
    )


def test_d11_workers_read_a_stream_without_batching_once(run_ranks: RunRanks) -> None:
    first, second = run_ranks(read_by_workers, 2, "plain", 7, None)

    assert first[0] == ([0, 2, 4, 6], list(range(7)))
    assert second[0] == ([1, 3, 5, 0], list(range(7)))


def streams_of_datasets(num_shards: int, num_workers: int) -> list[int]:
    from datasets import Dataset

    stream = Dataset.from_dict({"x": list(range(16))}).to_iterable_dataset(num_shards=num_shards)
    loader = prepare_data_loader(
        DataLoader(stream, 2, num_workers=num_workers), put_on_device=True, dispatch_batches=False
    )
    is_split = isinstance(loader, StreamShard)
    return [*(number for batch in loader for number in batch["x"].tolist()), is_split]


@pytest.mark.parametrize("num_shards", [1, 2, 3, 4])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_d11_shards_of_datasets_are_read_once(run_ranks: RunRanks, num_shards: int, num_workers: int) -> None:
    pytest.importorskip("datasets")

    *first, by_sample = run_ranks(streams_of_datasets, 2, num_shards, num_workers)[0]
    *second, _ = run_ranks(streams_of_datasets, 2, num_shards, num_workers)[1]

    counts = Counter(first + second)
    assert set(counts) == set(range(16))
    assert by_sample is (num_shards % 2 == 1)
    if not by_sample:
        assert set(counts.values()) == {1}
    assert sum(counts.values()) - 16 < 8  # each worker fills its own last step


def what_is_said(num_shards: int) -> str:
    from datasets import Dataset

    stream = Dataset.from_dict({"x": list(range(8))}).to_iterable_dataset(num_shards=num_shards)
    with redirect_stdout(io.StringIO()) as said:
        prepare_data_loader(DataLoader(stream, 2), dispatch_batches=False)
    return said.getvalue()


@pytest.mark.parametrize(
    ("num_shards", "words"),
    [(4, "by shard: each of 2 ranks reads its own 2 of 4, and one whose shards hold less ends earlier"),
     (3, "by sample: each of 2 ranks reads all of it and keeps its own batches")],
)  # fmt: skip
def test_d11_how_a_stream_is_shared_is_said_once(run_ranks: RunRanks, num_shards: int, words: str) -> None:
    pytest.importorskip("datasets")

    first, second = run_ranks(what_is_said, 2, num_shards)

    assert first.startswith(f"The stream IterableDataset is shared {words}")
    assert second == ""


def shared_before() -> tuple[list[int], list[int], str]:
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    state = PartialState()
    whole = Dataset.from_dict({"x": list(range(8))}).to_iterable_dataset(num_shards=2)
    own = split_dataset_by_node(whole, rank=state.process_index, world_size=2)
    split = prepare_data_loader(DataLoader(own, 2), put_on_device=True)
    marked = prepare_data_loader(mark_as_sharded(DataLoader(Plain(3 + state.process_index), 2)), put_on_device=True)
    text = ""
    try:
        prepare_data_loader(DataLoader(own, 2), put_on_device=True, dispatch_batches=True)
    except ValueError as error:
        text = str(error)
    assert type(split) is type(marked) is DataLoaderShard
    return (
        [number for batch in split for number in batch["x"].tolist()],
        [number for batch in marked for number in batch.tolist()],
        text,
    )


def test_d10_streams_that_are_shared_already_are_left_alone(run_ranks: RunRanks) -> None:
    pytest.importorskip("datasets")

    first, second = run_ranks(shared_before, 2)

    assert (first[:2], second[:2]) == (([0, 1, 2, 3], [0, 1, 2]), ([4, 5, 6, 7], [0, 1, 2, 3]))
    assert "this loader's data are shared among them already" in first[2]


class Seeded(Plain):
    def __init__(self, length: int, seed: int) -> None:
        super().__init__(length)
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.length, generator=self.generator).tolist())


def orders_of_a_generator() -> list[list[int]]:
    state = PartialState()
    loader = prepare_data_loader(DataLoader(Seeded(8, seed=state.process_index), 2), dispatch_batches=False)
    return [[number for batch in loader for number in batch.tolist()] for _ in range(2)]


def test_g03_ranks_share_the_order_of_a_stream_with_a_generator(run_ranks: RunRanks) -> None:
    first, second = run_ranks(orders_of_a_generator, 2)
    generator = torch.Generator().manual_seed(0)

    for ours, theirs in zip(first, second, strict=True):
        order = torch.randperm(8, generator=generator).tolist()
        assert ours == order[0:2] + order[4:6]
        assert theirs == order[2:4] + order[6:8]


def undisturbed_noise() -> bool:
    state = PartialState()
    loader = prepare_data_loader(DataLoader(Careless(32), 2), dispatch_batches=False)
    list(loader)
    torch.manual_seed(state.process_index)
    random.seed(state.process_index)
    drawn = []
    for _ in loader:
        drawn += [torch.rand(1).item(), random.random()]
    torch.manual_seed(state.process_index)
    random.seed(state.process_index)
    for _ in range(2):  # the seeds of the order and of workers
        torch.empty((), dtype=torch.int64).random_()
    return drawn == [value for _ in range(8) for value in (torch.rand(1).item(), random.random())]


def test_g03_reading_a_shuffled_stream_disturbs_no_noise(run_ranks: RunRanks) -> None:
    assert run_ranks(undisturbed_noise, 2) == [True, True]


def skipped() -> tuple[list[int], list[int], int, int]:
    loader = prepare_data_loader(DataLoader(Plain(13), 2), dispatch_batches=False)
    rest = [number for batch in skip_first_batches(loader, 2) for number in batch.tolist()]
    return rest, [number for batch in loader for number in batch.tolist()], len(loader), loader.total_dataset_length


def test_skipped_batches_change_nothing_in_the_rest(run_ranks: RunRanks) -> None:
    for rest, whole, length, total in run_ranks(skipped, 2):
        assert rest == whole[4:]
        assert (length, total) == (4, 13)


def test_a_stream_of_one_process_is_what_the_plain_loader_reads() -> None:
    loader = DataLoader(Plain(5), 2)

    prepared = Accelerator(cpu=True).prepare(loader)

    assert prepared.dataset is loader.dataset
    assert [batch.tolist() for batch in prepared] == [[0, 1], [2, 3], [4]]
