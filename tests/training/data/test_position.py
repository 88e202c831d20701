"""Passes that are left and taken up again: what is read must be what an uninterrupted pass would have read."""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, TensorDataset

from accel_nb.errors import TrainingError
from accel_nb.training.data.loader import DataLoaderShard
from accel_nb.training.data.prepared import PreparedLoader
from accel_nb.training.data.preparing import prepare_data_loader
from accel_nb.training.data.skipping import SkipDataLoader, skip_first_batches
from accel_nb.training.ranks.state import GradientState

from ..examples import Numbers

RunRanks = Callable[..., list[Any]]
MakeLoader = Callable[[], DataLoader[Any]]


def prepared(loader: DataLoader[Any], num_ranks: int = 2, rank: int = 0, **options: Any) -> PreparedLoader:  # noqa: ANN401
    return prepare_data_loader(loader, None, num_ranks, rank, **options)


def plain(batches: Any) -> list[Any]:  # noqa: ANN401
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


class Augmented(Numbers):
    """Sample i is i and what an augmentation drew for it from each of the process's generators."""

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        return index, torch.rand(1).item(), random.random(), float(np.random.random())  # noqa: NPY002


class Drawing(Sampler[int]):
    """A sampler that draws from the process's own generators."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(14))
        random.shuffle(order)
        yield from order

    def __len__(self) -> int:
        return 14


LOADERS: dict[str, MakeLoader] = {
    "in order": lambda: DataLoader(Numbers(14), 2, collate_fn=list),
    "shuffled": lambda: DataLoader(Numbers(14), 2, shuffle=True, collate_fn=list),
    "with a generator": lambda: DataLoader(
        Numbers(14), 2, shuffle=True, generator=torch.Generator().manual_seed(8), collate_fn=list
    ),
    "augmented": lambda: DataLoader(Augmented(14), 2, shuffle=True, collate_fn=list),
    "a sampler that draws": lambda: DataLoader(Augmented(14), 2, sampler=Drawing(), collate_fn=list),
    "batches that differ": lambda: DataLoader(
        Numbers(14), batch_sampler=[[3], [1, 2], [5, 6, 7], [9], [4, 8]], collate_fn=list
    ),
    "not batched": lambda: DataLoader(Augmented(14), batch_size=None, shuffle=True),
}


@pytest.mark.parametrize("num_batches", [1, 2, 3])
@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("kind", LOADERS)
def test_c01_a_resumed_pass_reads_what_the_uninterrupted_one_read(kind: str, num_ranks: int, num_batches: int) -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    loader = prepared(LOADERS[kind](), num_ranks)
    list(loader)
    expected: list[Any] = []
    for index, batch in enumerate(loader, start=1):
        torch.rand(3)  # the model's noise
        expected.append(batch)
        if index == num_batches:
            state, noise = through_a_file(loader.state_dict()), torch.get_rng_state()
            own = random.getstate(), np.random.get_state()  # noqa: NPY002
    expected += list(loader)

    again = prepared(LOADERS[kind](), num_ranks)
    again.load_state_dict(state)
    torch.set_rng_state(noise)
    random.setstate(own[0])
    np.random.set_state(own[1])  # noqa: NPY002
    read: list[Any] = []
    for batch in again:
        read.append(batch)
        torch.rand(3)

    at_the_end = num_batches == len(loader)
    assert len(read) == len(loader) - (0 if at_the_end else num_batches)
    assert read == expected[num_batches : num_batches + len(read)]


def test_c01_a_state_of_the_end_of_a_pass_leads_to_the_next_one() -> None:
    torch.manual_seed(4)
    loader = prepared(LOADERS["shuffled"]())
    for _ in loader:
        at_the_last_batch = loader.state_dict()
    after_it = loader.state_dict()
    following = list(loader)

    for state in (at_the_last_batch, after_it):
        again = prepared(LOADERS["shuffled"]())
        again.load_state_dict(state)
        assert again.iteration == 1
        assert list(again) == following


class DrawingStream(IterableDataset[int]):
    """A stream in an order that is drawn from the process's own generators."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(14).tolist())


DRAWING: dict[str, MakeLoader] = {
    "sampler": lambda: DataLoader(Numbers(14), 2, sampler=Drawing(), collate_fn=list),
    "stream": lambda: DataLoader(DrawingStream(), 2, collate_fn=list),
    "stream of workers": lambda: DataLoader(DrawingStream(), 2, collate_fn=list, num_workers=1),
    "stream of workers that live on": lambda: DataLoader(
        DrawingStream(), 2, collate_fn=list, num_workers=1, persistent_workers=True
    ),
}


@pytest.mark.parametrize("num_passes", [0, 2])
@pytest.mark.parametrize("kind", DRAWING)
def test_c01_an_order_drawn_from_the_process_is_found_again_by_any_rank(kind: str, num_passes: int) -> None:
    loader = prepared(DRAWING[kind]())
    for _ in range(num_passes):
        list(loader)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict() | {"rank": (1, 2)}
    expected = list(batches)

    torch.manual_seed(100)
    random.seed(100)
    again = prepared(DRAWING[kind]())
    again.load_state_dict(state)
    loader.load_state_dict(state)

    assert list(again) == expected
    assert list(loader) == expected


def test_a_pass_after_the_resumed_one_is_whole_again() -> None:
    loader = prepared(LOADERS["in order"]())
    next(iter(loader))
    state = loader.state_dict()

    loader.load_state_dict(state)

    assert plain(loader) == [[4, 5], [8, 9], [12, 13]]
    assert plain(loader) == [[0, 1], [4, 5], [8, 9], [12, 13]]


@pytest.mark.parametrize("split", [False, True])
def test_c05_another_number_of_ranks_goes_on_at_the_same_sample(split: bool) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(
            Numbers(33), 6, shuffle=True, collate_fn=list, generator=torch.Generator().manual_seed(2)
        )  # fmt: skip

    order = [index for batch in make() for index in batch]
    for before, after in product((1, 2, 3), (1, 2, 3)):
        loaders = [prepared(make(), before, rank, split_batches=split) for rank in range(before)]
        step = [index for loader in loaders for index in next(iter(loader))]
        assert step == order[: len(step)]
        state = through_a_file(loaders[-1].state_dict())

        resumed = [prepared(make(), after, rank, split_batches=split) for rank in range(after)]
        for loader in resumed:
            loader.load_state_dict(state)
        rest = [index for parts in zip(*resumed, strict=True) for part in parts for index in part]

        assert rest[: 33 - len(step)] == order[len(step) :], (before, after)


def test_another_batch_size_goes_on_at_the_same_sample() -> None:
    loader = prepared(DataLoader(Numbers(20), 3, collate_fn=list), 2)
    next(iter(loader))
    state = loader.state_dict()

    ranks = [prepared(DataLoader(Numbers(20), 2, collate_fn=list), 3, rank) for rank in range(3)]
    for rank in ranks:
        rank.load_state_dict(state)

    read = [list(rank) for rank in ranks]
    assert read == [[[6, 7], [12, 13], [18, 19]], [[8, 9], [14, 15], [0, 1]], [[10, 11], [16, 17], [2, 3]]]


def test_another_batch_size_of_the_users_own_batches_is_refused() -> None:
    loader = prepared(DataLoader(Numbers(20), 3), 2)
    next(iter(loader))
    state = loader.state_dict()
    again = prepared(DataLoader(Numbers(20), batch_sampler=[[1], [2, 3]]), 2)
    again.load_state_dict(state)

    with pytest.raises(TrainingError, match=r"read 2 batches of 3, and list now makes batches of any size"):
        list(again)


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"no state of a prepared loader: it has the keys \['_num_yielded'\]"):
        prepared(DataLoader(Numbers(4), 2)).load_state_dict({"_num_yielded": 3})


def test_workers_read_on_where_they_were() -> None:
    loader = prepared(DataLoader(Numbers(16), 2, shuffle=True, num_workers=2, persistent_workers=True), 2)
    expected: list[Any] = []
    for index, batch in enumerate(loader):
        expected.append(batch.tolist())
        if index == 1:
            state = loader.state_dict()

    loader.load_state_dict(state)

    assert plain(loader) == expected[2:]
    assert len(plain(loader)) == 4


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(7)


def test_a_stream_is_read_to_where_it_was() -> None:
    loader = prepared(DataLoader(Counting(), 2), 1)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    state = loader.state_dict()

    again = prepared(DataLoader(Counting(), 2), 1)
    again.load_state_dict(state)

    assert plain(again) == [[4, 5], [6]]


def test_choosing_another_epoch_gives_up_the_place_to_go_on_from() -> None:
    loader = prepared(LOADERS["in order"]())
    next(iter(loader))
    state = loader.state_dict()

    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert len(list(loader)) == 3
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert len(list(loader)) == 4


def test_a_state_saved_before_it_was_taken_up_is_the_same_state() -> None:
    loader = prepared(LOADERS["in order"]())
    next(iter(loader))
    state = loader.state_dict()

    loader.load_state_dict(state)

    assert loader.state_dict()["num_batches"] == state["num_batches"] == 1


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_skip_first_batches_leaves_out_this_ranks_first_batches_in_every_pass(num_ranks: int) -> None:
    loader = prepared(DataLoader(Numbers(12), 2), num_ranks)

    skipping = skip_first_batches(loader, 2)

    whole = plain(loader)
    assert [plain(skipping) for _ in range(2)] == [whole[2:]] * 2
    assert len(skipping) == len(whole) - 2
    assert plain(skip_first_batches(skipping, 1)) == whole[3:]
    assert plain(loader) == whole


def test_skip_first_batches_reads_nothing_that_it_skips() -> None:
    read: list[int] = []

    class Watched(Numbers):
        def __getitem__(self, index: int) -> int:
            read.append(index)
            return index

    list(skip_first_batches(prepared(DataLoader(Watched(8), 1), 2), 3))
    list(skip_first_batches(DataLoader(Watched(4), 2), 1))

    assert read == [6, 2, 3]


def test_skip_first_batches_of_plain_loaders() -> None:
    assert plain(skip_first_batches(DataLoader(Numbers(6), 2), 1)) == [[2, 3], [4, 5]]
    stream = skip_first_batches(DataLoader(Counting(), 3), 1)
    assert isinstance(stream, SkipDataLoader)
    assert plain(stream) == [[3, 4, 5], [6]]
    assert plain(skip_first_batches(DataLoader(Numbers(3), batch_size=None), 2)) == [2]


def test_skipping_by_hand_takes_the_place_of_going_on() -> None:
    torch.manual_seed(6)
    loader = prepared(LOADERS["shuffled"]())
    expected: list[Any] = []
    for batch in loader:
        expected.append(batch)
        if len(expected) == 2:
            state = loader.state_dict()
    again = prepared(LOADERS["shuffled"]())
    again.load_state_dict(state)

    skipping = skip_first_batches(again, 2)

    assert list(skipping) == expected[2:]
    assert len(list(again)) == 4


def test_the_state_of_a_skipping_loader_counts_what_it_skipped() -> None:
    skipping = skip_first_batches(prepared(LOADERS["in order"]()), 2)
    next(iter(skipping))

    again = prepared(LOADERS["in order"]())
    again.load_state_dict(skipping.state_dict())  # type: ignore[attr-defined]
    assert list(again) == [[12, 13]]
    skipping.load_state_dict(skipping.state_dict())  # type: ignore[attr-defined]
    assert list(skipping) == [[12, 13]]


def test_a_negative_number_of_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="num_batches=-1 cannot be skipped"):
        skip_first_batches(DataLoader(Numbers(3)), -1)


def test_the_end_is_known_to_skipping_and_resumed_loaders() -> None:
    loader = prepared(DataLoader(Numbers(10), 2, collate_fn=list), 2)
    progress = GradientState()

    seen = [(progress.end_of_dataloader, progress.remainder) for _ in skip_first_batches(loader, 1)]

    assert seen == [(False, -1), (True, 2)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_goes_on_with_its_order(num_workers: int) -> None:
    pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> PreparedLoader:
        loader = DataLoader(Numbers(16), 2, shuffle=True, num_workers=num_workers)
        return prepared(loader, use_stateful_dataloader=True)

    torch.manual_seed(3)
    loader = make()
    expected: list[Any] = []
    for index, batch in enumerate(loader):
        expected.append(batch.tolist())
        if index == 1:
            state = copy.deepcopy(loader.state_dict())
    torch.manual_seed(4)
    again = make()
    again.load_state_dict(state)

    assert plain(again) == expected[2:]
    assert len(plain(again)) == 4


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_loader_of_the_users_own_stays_one() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    loader = prepared(stateful(Numbers(8), 2))

    assert isinstance(loader, stateful)
    assert isinstance(loader, DataLoaderShard)
    assert loader.use_stateful_dataloader
    assert plain(loader) == [[0, 1], [4, 5]]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_constructed_stateful_loader_and_torchdatas_own_load_each_others_state() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    loader, theirs = DataLoaderShard(Numbers(8), batch_size=2, use_stateful_dataloader=True), stateful(Numbers(8), 2)
    next(iter(loader))
    next(iter(theirs))

    assert loader.state_dict() == theirs.state_dict()
    theirs.load_state_dict(loader.state_dict())
    assert plain(theirs) == [[2, 3], [4, 5], [6, 7]]


def test_reading_that_draws_nothing_is_not_watched_for_ever() -> None:
    quiet = prepared(DataLoader(TensorDataset(torch.arange(12)), 2), 1)
    drawing = prepared(DataLoader(Augmented(12), 2), 1)

    for loader in (quiet, drawing):
        for index, _ in enumerate(loader):
            if index == 4:
                break

    assert quiet.state_dict()["fetch_streams"] is None
    assert drawing.state_dict()["fetch_streams"]["numpy"] is not None


def test_batch_sampler_with_its_own_generator_goes_on_in_its_order() -> None:
    class Shuffled(BatchSampler):
        def __init__(self) -> None:
            super().__init__(range(12), 2, drop_last=False)
            self.generator = torch.Generator().manual_seed(0)

        def __iter__(self) -> Iterator[list[int]]:
            order = torch.randperm(6, generator=self.generator).tolist()
            return iter([[2 * index, 2 * index + 1] for index in order])

    loader = prepared(DataLoader(Numbers(12), batch_sampler=Shuffled()))
    list(loader)
    expected: list[Any] = []
    for batch in loader:
        expected.append(batch.tolist())
        if len(expected) == 1:
            state = loader.state_dict()

    again = prepared(DataLoader(Numbers(12), batch_sampler=Shuffled()))
    again.load_state_dict(state)

    assert plain(again) == expected[1:]
