from __future__ import annotations

import dataclasses
import os
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset

from accel_nb.errors import TrainingError
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.data.dispatcher import DataLoaderDispatcher
from accel_nb.training.data.preparing import prepare_data_loader
from accel_nb.training.data.skipping import skip_first_batches
from accel_nb.training.ranks.state import PartialState, reset_state
from accel_nb.training.settings import DataLoaderConfiguration

from ..examples import Numbers

RunRanks = Callable[..., list[Any]]


class Stream(IterableDataset[Any]):
    """The numbers below `length`, or what `make` makes of them."""

    def __init__(self, length: int, make: Callable[[int], Any] = torch.tensor) -> None:
        self.length, self.make = length, make
        self.num_read = 0

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.length):
            self.num_read += 1
            yield self.make(number)


def dispatched(loader: DataLoader[Any], **how: Any) -> DataLoaderDispatcher:  # noqa: ANN401
    prepared = prepare_data_loader(loader, put_on_device=True, dispatch_batches=True, **how)
    assert isinstance(prepared, DataLoaderDispatcher)
    return prepared


CELLS = [
    (length, batch_size, even, split, drop_last, stream)
    for length, batch_size in ((0, 1), (1, 4), (5, 2), (7, 3), (8, 4), (9, 6), (24, 6), (40, 7))
    for even, split, drop_last, stream in product((True, False), repeat=4)
]


def metrics_of_cells(num_ranks: int) -> list[Any]:
    results = []
    for cell in CELLS:
        length, batch_size, even, split, drop_last, stream = cell
        if split and batch_size % num_ranks:
            continue
        how = DataLoaderConfiguration(split_batches=split, dispatch_batches=True, even_batches=even)
        accelerator = Accelerator(dataloader_config=how)
        data: Any = Stream(length) if stream else Numbers(length)
        loader = accelerator.prepare(DataLoader(data, batch_size, drop_last=drop_last))
        assert isinstance(loader, DataLoaderDispatcher)
        seen: list[int] = []
        sizes = []
        for batch in loader:
            sizes.append(len(batch))
            seen += accelerator.gather_for_metrics(batch).tolist()
        results.append((cell, seen, sizes, None if stream else len(loader)))
        reset_state()
    return results


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_d01_d08_every_sample_is_counted_once_and_in_order(run_ranks: RunRanks, num_ranks: int) -> None:
    by_rank = run_ranks(metrics_of_cells, num_ranks, num_ranks)

    for of_ranks in zip(*by_rank, strict=True):
        (length, batch_size, even, split, drop_last, _), _, _, _ = of_ranks[0]
        step_size = batch_size if split else batch_size * num_ranks
        kept = length // step_size * step_size if drop_last else length
        for cell, seen, sizes, announced in of_ranks:
            assert 0 not in sizes, cell
            assert announced in (None, len(sizes)) or (split and not even), cell
            assert seen == list(range(kept))[: len(seen)], cell  # ranks without a batch have left the loop before
        assert len(of_ranks[0][1]) == kept, of_ranks[0][0]
        assert not even or len({tuple(sizes) for _, _, sizes, _ in of_ranks}) == 1, of_ranks[0][0]


Pair = namedtuple("Pair", ["number", "name"])  # noqa: PYI024  as users write them


@dataclasses.dataclass
class Sample:
    images: torch.Tensor
    boxes: list[torch.Tensor]
    note: str | None
    total: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.total = self.images.sum().item()


def collate_all_kinds(numbers: list[torch.Tensor]) -> dict[str, Any]:
    import numpy as np

    class InACell:
        def __init__(self, number: int) -> None:
            self.number = number

    batch = torch.stack(numbers)
    grid = batch[:, None, None, None].float().expand(-1, 3, 4, 5)
    return {
        "number": batch,
        "text": [f"s{number}" for number in batch.tolist()],
        "pair": Pair(batch.bool(), ("a",) * len(batch)),
        "sample": Sample(grid.contiguous(memory_format=torch.channels_last), [torch.ones(n, 4) for n in batch], "x"),
        "scalar": batch.sum(),
        "strided": torch.stack([batch, batch], 1)[:, 0],
        "bf16": batch.bfloat16(),
        "complex": torch.complex(batch.float(), -batch.float()).conj(),
        "array": np.arange(len(batch)),
        "none": None,
        "count": len(batch),
        "flag": True,
        "mixed": (1, "b", 2.5),
        "empty": torch.empty(len(batch), 0),
        "large": batch[:, None].repeat(1, 100_000),
        "sparse": torch.eye(3).to_sparse(),
        "object": InACell(int(batch[0])),
    }


def batches_of_all_kinds(split: bool) -> list[tuple[Any, ...]]:
    loader = dispatched(DataLoader(Stream(10), 4, collate_fn=collate_all_kinds), split_batches=split)
    seen = []
    for batch in loader:
        numbers = batch["number"].tolist()
        assert batch["text"] == [f"s{number}" for number in numbers]
        assert isinstance(batch["pair"], Pair)
        assert batch["pair"].number.tolist() == [bool(number) for number in numbers]
        assert batch["pair"].name == ("a",) * len(numbers)
        assert isinstance(batch["sample"], Sample)
        assert batch["sample"].images.is_contiguous(memory_format=torch.channels_last)
        assert batch["sample"].images[:, 0, 0, 0].tolist() == numbers
        assert [len(boxes) for boxes in batch["sample"].boxes] == numbers
        assert batch["sample"].note == "x"
        assert batch["strided"].tolist() == numbers
        assert batch["bf16"].dtype == torch.bfloat16
        assert batch["bf16"].tolist() == numbers
        assert batch["complex"].tolist() == [complex(number, number) for number in numbers]
        assert len(batch["array"]) == len(numbers)
        assert batch["none"] is None
        assert batch["flag"] is True
        assert batch["mixed"] == (1, "b", 2.5)
        assert batch["empty"].shape == (len(numbers), 0)
        assert batch["large"].shape == (len(numbers), 100_000)
        assert batch["large"][:, -1].tolist() == numbers
        assert batch["sparse"].to_dense().tolist() == torch.eye(3).tolist()
        batch["number"] += 1  # it is the rank's own
        seen.append((numbers, int(batch["scalar"]), batch["count"], batch["object"].number))
    return seen


def test_d07_a_batch_may_hold_anything(run_ranks: RunRanks) -> None:
    assert run_ranks(batches_of_all_kinds, 1, False) == [
        [([0, 1, 2, 3], 6, 4, 0), ([4, 5, 6, 7], 22, 4, 4), ([8, 9], 17, 2, 8)]
    ]
    assert run_ranks(batches_of_all_kinds, 2, False) == [
        [([0, 1, 2, 3], 6, 4, 0), ([8], 17, 2, 8)],
        [([4, 5, 6, 7], 22, 4, 4), ([9], 17, 2, 8)],
    ]
    assert run_ranks(batches_of_all_kinds, 2, True) == [
        [([0, 1], 6, 4, 0), ([4, 5], 22, 4, 4), ([8], 17, 2, 8)],
        [([2, 3], 6, 4, 0), ([6, 7], 22, 4, 4), ([9], 17, 2, 8)],
    ]


def texts_only() -> tuple[list[list[str]], list[str]]:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(Stream(5, str), 2))
    seen, gathered = [], []
    for batch in loader:
        seen.append(batch)
        gathered += accelerator.gather_for_metrics(batch)
    return seen, gathered


def test_d05_d07_batches_of_nothing_but_texts(run_ranks: RunRanks) -> None:
    first, second = run_ranks(texts_only, 2)

    assert first == ([["0", "1"], ["4"]], ["0", "1", "2", "3", "4"])
    assert second == ([["2", "3"], ["0"]], ["0", "1", "2", "3", "4"])


LENGTHS = [3, 6, 6, 3, 5, 4, 2]


def batches_of_unequal_length(num_texts: int) -> list[list[list[int]]]:
    texts = Stream(num_texts, lambda index: torch.full((LENGTHS[index],), index))
    loader = DataLoader(texts, 2, collate_fn=lambda rows: torch.nn.utils.rnn.pad_sequence(rows, True, -1))
    accelerator = Accelerator()
    seen = []
    for batch in accelerator.prepare(loader):
        even = accelerator.pad_across_processes(batch, dim=1, pad_index=-1)
        seen.append([row[row >= 0].tolist() for row in accelerator.gather_for_metrics(even)])
    return seen


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_d06_texts_of_unequal_length_are_dispatched_and_counted_once(run_ranks: RunRanks, num_ranks: int) -> None:
    for num_texts in range(len(LENGTHS) + 1):
        for seen in run_ranks(batches_of_unequal_length, num_ranks, num_texts):
            assert [row for batch in seen for row in batch] == [
                [index] * LENGTHS[index] for index in range(num_texts)
            ], num_texts


def fails_in_the_middle(after: int) -> tuple[list[int], str, str, list[int]]:
    state = PartialState()

    def sample(number: int) -> torch.Tensor:
        if number == after:
            raise ZeroDivisionError(f"sample {number} is broken")
        return torch.tensor(number)

    loader = dispatched(DataLoader(Stream(20, sample), 2))
    seen: list[int] = []
    started = time.monotonic()
    try:
        for batch in loader:
            seen += batch.tolist()
            state.wait_for_everyone()
    except Exception as error:  # noqa: BLE001  it is looked at
        kind, text = type(error).__name__, str(error)
    assert time.monotonic() - started < 30
    after = -1
    return seen, kind, text, [number for batch in loader for number in batch.tolist()]


@pytest.mark.parametrize("after", [0, 1, 6, 9, 19])
def test_what_the_data_raises_is_raised_on_every_rank(run_ranks: RunRanks, after: int) -> None:
    (seen_0, kind_0, text_0, again_0), (seen_1, kind_1, text_1, again_1) = run_ranks(fails_in_the_middle, 2, after)

    assert (kind_0, text_0) == ("ZeroDivisionError", f"sample {after} is broken")
    assert kind_1 == "AnotherRankFailed"
    assert text_1.startswith("rank 0 failed while it read the data for all ranks:\nTraceback")
    assert f"ZeroDivisionError: sample {after} is broken" in text_1
    assert len(seen_0) == len(seen_1)
    assert sorted(again_0 + again_1) == list(range(20))


class Unreadable(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        if PartialState().is_main_process:
            raise OSError("no such file: train.bin")
        return iter(())


def opens_in_vain() -> str:
    try:
        list(dispatched(DataLoader(Unreadable(), 2)))
    except (OSError, TrainingError) as error:
        return str(error)
    return ""


def test_an_iterator_that_cannot_be_made_fails_every_rank(run_ranks: RunRanks) -> None:
    texts = run_ranks(opens_in_vain, 2)

    assert all("no such file: train.bin" in text for text in texts)
    assert texts[1].startswith("rank 0 failed")


def unpicklable() -> str:
    import threading

    try:
        list(dispatched(DataLoader(Stream(4, lambda _: threading.Lock()), 1, collate_fn=list)))
    except TrainingError as error:
        return str(error)
    return ""


def test_d07_what_cannot_be_pickled_is_refused_on_every_rank(run_ranks: RunRanks) -> None:
    for text in run_ranks(unpicklable, 2):
        assert (
            "a batch of the dispatched loader cannot be sent to the other ranks: cannot pickle '_thread.lock'" in text
        )
        assert "dispatch_batches=False" in text


def leaves_and_comes_back() -> list[list[int]]:
    loader = dispatched(DataLoader(Stream(12), 2))
    passes: list[list[int]] = []
    for num_wanted in (1, 2, 0, 9, 1, 9):
        passes.append([])
        for index, batch in enumerate(loader):
            if index == num_wanted:
                break
            passes[-1] += batch.tolist()
    PartialState().wait_for_everyone()
    return passes


def test_a_loop_that_was_left_can_begin_again(run_ranks: RunRanks) -> None:
    assert run_ranks(leaves_and_comes_back, 2) == [
        [[0, 1], [0, 1, 4, 5], [], [0, 1, 4, 5, 8, 9], [0, 1], [0, 1, 4, 5, 8, 9]],
        [[2, 3], [2, 3, 6, 7], [], [2, 3, 6, 7, 10, 11], [2, 3], [2, 3, 6, 7, 10, 11]],
    ]


def one_rank_leaves(who: int) -> tuple[list[int], str, list[int]]:
    state = PartialState()
    loader = dispatched(DataLoader(Stream(40), 2))
    seen: list[int] = []
    text = ""
    try:
        for batch in loader:
            seen += batch.tolist()
            if state.process_index == who and len(seen) >= 4:
                break
    except TrainingError as error:
        text = str(error)
    state.wait_for_everyone()
    return seen, text, [number for batch in loader for number in batch.tolist()]


def test_d16_a_rank_that_leaves_early_holds_nobody_up(run_ranks: RunRanks) -> None:
    (seen_0, text_0, again_0), (seen_1, text_1, again_1) = run_ranks(one_rank_leaves, 2, 1)

    assert (text_0, text_1) == ("", "")
    assert (len(seen_0), len(seen_1)) == (20, 4)
    assert sorted(again_0 + again_1) == list(range(40))


def test_d16_when_rank_0_leaves_early_the_others_are_told(run_ranks: RunRanks) -> None:
    (seen_0, text_0, again_0), (seen_1, text_1, again_1) = run_ranks(one_rank_leaves, 2, 0)

    assert (len(seen_0), text_0) == (4, "")
    assert len(seen_1) < 20
    assert "rank 0, which reads the data for all ranks, left its loop over this loader" in text_1
    assert sorted(again_0 + again_1) == list(range(40))


def two_loops_at_once() -> tuple[str, list[int]]:
    loader = dispatched(DataLoader(Stream(12), 2))
    older = iter(loader)
    next(older)
    seen = [number for batch in loader for number in batch.tolist()]
    try:
        next(older)
    except TrainingError as error:
        return str(error), seen
    return "", seen


def test_a_loop_that_was_superseded_cannot_go_on(run_ranks: RunRanks) -> None:
    first, second = run_ranks(two_loops_at_once, 2)

    assert first[0] == second[0]
    assert "another loop over the same loader has begun" in first[0]
    assert sorted(first[1] + second[1]) == list(range(12))


def loops_in_turns() -> list[list[int]]:
    state = PartialState()
    loaders = [dispatched(DataLoader(Stream(10), 2)) for _ in range(2)]
    return [
        [*one.tolist(), *two.tolist(), int(distributed.get_rank() == state.process_index)]
        for one, two in zip(*loaders, strict=True)
    ]


def test_two_loaders_can_be_read_in_turns(run_ranks: RunRanks) -> None:
    first, second = run_ranks(loops_in_turns, 2)

    assert first == [[0, 1, 0, 1, 1], [4, 5, 4, 5, 1], [8, 8, 1]]
    assert second == [[2, 3, 2, 3, 1], [6, 7, 6, 7, 1], [9, 9, 1]]


class AgreesOnASeed(IterableDataset[int]):
    """As pipes do: making its iterator is something that all ranks do together."""

    def __iter__(self) -> Iterator[int]:
        seed = torch.tensor(PartialState().process_index + 5)
        distributed.broadcast(seed, 0)
        return iter(range(int(seed), int(seed) + 6))


def synchronised_pipes(num_workers: int) -> tuple[list[int], list[int]]:
    from torch.utils.data.datapipes.iter import IterableWrapper

    # Its iterator draws a seed that all ranks share, wherever its workers are.
    piped = dispatched(DataLoader(IterableWrapper(range(6)).shuffle(), 1, num_workers=num_workers))
    return (
        [number for _ in range(2) for batch in piped for number in batch.tolist()],
        [number for batch in dispatched(DataLoader(AgreesOnASeed(), 1)) for number in batch.tolist()],
    )


@pytest.mark.parametrize("num_workers", [0, 1])
def test_d17_pipes_that_agree_on_a_seed_are_made_on_every_rank(run_ranks: RunRanks, num_workers: int) -> None:
    (piped_0, own_0), (piped_1, own_1) = run_ranks(synchronised_pipes, 2, num_workers)

    assert sorted(piped_0 + piped_1) == sorted([*range(6), *range(6)])
    assert (own_0, own_1) == ([5, 7, 9], [6, 8, 10])


class Vectors(Numbers):
    """Each sample is as long as there are fields in another reading of its batch."""

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        return torch.full((3,), float(index))


class Pairs(Numbers):
    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        return float(index), float(index)


class Streamed(IterableDataset[Any]):
    def __init__(self, items: Any) -> None:  # noqa: ANN401
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return (self.items[index] for index in range(len(self.items)))


class SizedStream(Streamed):
    def __len__(self) -> int:
        return len(self.items)


def short_pass(kind: str, num_samples: int, num_workers: int) -> tuple[list[Any], list[list[float]]]:
    """What this rank is given of the only batch, which is not full, and what all have."""
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    datasets: dict[str, Any] = {
        "samples": Vectors(num_samples), "streamed samples": SizedStream(Vectors(num_samples)),
        "fields": Pairs(num_samples), "streamed fields": Streamed(Pairs(num_samples)),
    }  # fmt: skip
    collate = list if kind.endswith("samples") else None
    loader = accelerator.prepare(DataLoader(datasets[kind], 8, collate_fn=collate, num_workers=num_workers))
    (batch,) = loader
    rows = [one.tolist() for one in (batch if collate else torch.stack(list(batch), dim=1))]
    reset_state()
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    loader = accelerator.prepare(DataLoader(datasets[kind], 8, collate_fn=collate, num_workers=num_workers))
    seen: list[list[float]] = []
    for batch in loader:
        own = batch if collate else list(torch.stack(list(batch), dim=1))
        seen += [one.tolist() for one in accelerator.gather_for_metrics(own, use_gather_object=True)]
    return rows, seen


@pytest.mark.parametrize("kind", ["samples", "streamed samples", "fields", "streamed fields"])
@pytest.mark.parametrize(("num_samples", "num_workers"), [(1, 0), (2, 0), (2, 1), (4, 0), (5, 0)])
def test_d01_d08_a_pass_of_one_short_batch_is_cut_by_samples(
    run_ranks: RunRanks, kind: str, num_samples: int, num_workers: int
) -> None:
    width = 3 if kind.endswith("samples") else 2
    whole = [[float(index)] * width for index in range(num_samples)]

    (first, seen), (second, also_seen) = run_ranks(short_pass, 2, kind, num_samples, num_workers)

    assert seen == also_seen == whole
    assert (first + second)[:num_samples] == whole
    assert len(first) == len(second) == -(-num_samples // 2)


def who_reads(num_workers: int) -> tuple[int, int]:
    stream = Stream(8)
    loader = dispatched(DataLoader(stream, 2, num_workers=num_workers, persistent_workers=num_workers > 0))
    num_batches = sum(1 for _ in range(2) for _ in loader)
    return num_batches, stream.num_read


@pytest.mark.parametrize("num_workers", [0, 2])
def test_d10_only_rank_0_reads(run_ranks: RunRanks, num_workers: int) -> None:
    assert run_ranks(who_reads, 2, num_workers) == [(4, 16 if num_workers == 0 else 0), (4, 0)]


def skips() -> tuple[list[int], list[int], int]:
    loader = dispatched(DataLoader(Stream(13), 2))
    rest = skip_first_batches(loader, 2)
    seen = [number for batch in rest for number in batch.tolist()]
    past = len(list(skip_first_batches(loader, 9)))
    return seen, [number for batch in loader for number in batch.tolist()], past


def test_skipped_batches_change_nothing_in_the_rest(run_ranks: RunRanks) -> None:
    for skipped, whole, past in run_ranks(skips, 2):
        assert skipped == whole[4:]
        assert past == 0


class Epochs(Stream):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from (torch.tensor(100 * self.epoch + number) for number in range(self.length))


def epochs() -> list[list[int]]:
    loader = dispatched(DataLoader(Epochs(4), 2))
    passes = [[number for batch in loader for number in batch.tolist()] for _ in range(2)]
    loader.set_epoch(7)
    return [*passes, [number for batch in loader for number in batch.tolist()]]


def test_set_epoch_reaches_the_stream(run_ranks: RunRanks) -> None:
    assert run_ranks(epochs, 2) == [
        [[0, 1], [100, 101], [700, 701]],
        [[2, 3], [102, 103], [702, 703]],
    ]


def without_batching() -> list[list[Any]]:
    ready_made = dispatched(DataLoader(Stream(3, lambda number: torch.full((number + 1,), number)), batch_size=None))
    single = dispatched(DataLoader(Numbers(3), batch_size=None))
    return [[batch.tolist() for batch in ready_made], list(single)]


def test_batches_that_are_ready_made_are_dealt_out_as_they_are(run_ranks: RunRanks) -> None:
    assert run_ranks(without_batching, 2) == [[[[0], [2, 2, 2]], [0, 2]], [[[1, 1], [0]], [1, 0]]]


def keeps_draws_in_order() -> tuple[list[float], list[float]]:
    """Reading draws between two steps of the training, never beside them."""

    def noisy(number: int) -> torch.Tensor:
        return torch.rand(()) + number

    torch.manual_seed(4)
    loader = dispatched(DataLoader(Stream(6, noisy), 1))
    draws = []
    for _ in loader:
        time.sleep(0.01)
        draws.append(torch.rand(()).item())
    return draws, []


def test_reading_and_training_draw_in_one_order(run_ranks: RunRanks) -> None:
    assert run_ranks(keeps_draws_in_order, 2)[0] == run_ranks(keeps_draws_in_order, 2)[0]


def distributed_variables() -> tuple[int, str, int]:
    return int(os.environ["RANK"]), os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def survives_a_new_group() -> list[int]:
    loader = dispatched(DataLoader(Stream(4), 1))
    first = [number for batch in loader for number in batch.tolist()]
    Accelerator().end_training()
    rank, address, port = distributed_variables()
    store = distributed.PrefixStore("again", distributed.TCPStore(address, port))  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    return first + [number for batch in loader for number in batch.tolist()]


def test_a_loader_outlives_the_process_group_it_was_made_in(run_ranks: RunRanks) -> None:
    assert run_ranks(survives_a_new_group, 2) == [[0, 2, 0, 2], [1, 3, 1, 3]]


def test_other_ranks_than_those_of_the_launch_are_refused() -> None:
    with pytest.raises(TrainingError, match="rank 0 of 2 was asked for, but batches are dispatched among the 1 ranks"):
        dispatched(DataLoader(Numbers(4), 2), num_processes=2, process_index=0)


def test_a_mesh_is_refused() -> None:
    with pytest.raises(TrainingError, match="torch_device_mesh lets some ranks read the same data"):
        DataLoaderDispatcher(Numbers(4), torch_device_mesh=object())
