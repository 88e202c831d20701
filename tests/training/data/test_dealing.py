from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product
from typing import Any

import pytest
import torch

from accel_nb.errors import TrainingError
from accel_nb.training.data.dealing import NOTHING, Step, deal
from accel_nb.training.data.sharding import Sharing

from .grid import GRID, LENGTHS, num_kept, source


def dealt(batches: list[Any], num_ranks: int, batch_size: int | None, **how: bool) -> list[Step]:
    return list(deal(batches, Sharing(num_ranks=num_ranks, rank=0, batch_size=batch_size, **how)))


def in_gathered_order(steps: list[Step]) -> list[int]:
    """What gathering every step gives, after the samples that only fill it are cut off."""
    seen: list[int] = []
    for step in steps:
        seen += list(chain.from_iterable(part for part in step.parts if part is not NOTHING))[: step.num_genuine]
    return seen


@pytest.mark.parametrize(("batch_size", "num_ranks", "even", "drop_last", "split"), GRID)
def test_d01_d08_each_sample_is_dealt_once_and_in_order(
    batch_size: int, num_ranks: int, even: bool, drop_last: bool, split: bool
) -> None:
    for length in LENGTHS:
        batches = source(length, batch_size, drop_last=drop_last)

        steps = dealt(batches, num_ranks, batch_size, drop_last=drop_last, split=split, even=even)

        kept = num_kept(length, batch_size, num_ranks, drop_last=drop_last, split=split)
        assert in_gathered_order(steps) == list(range(kept)), length
        sizes = [[0 if part is NOTHING else len(part) for part in step.parts] for step in steps]
        assert all(size <= (batch_size // num_ranks if split else batch_size) for size in chain(*sizes)), length
        assert all(sum(ranks) - (step.num_genuine or 0) < num_ranks for ranks, step in zip(sizes, steps, strict=True))
        if even:
            assert all(len(set(ranks)) == 1 for ranks in sizes), length
        else:
            assert all(sum(ranks) == step.num_genuine for ranks, step in zip(sizes, steps, strict=True)), length
        assert all(len(set(ranks)) == 1 and 0 not in ranks for ranks in sizes[:-1]), length
        assert not even or all(0 not in ranks for ranks in sizes), length


@pytest.mark.parametrize(
    ("num_ranks", "even", "split", "num_workers"), list(product((1, 2, 3), (True, False), (True, False), (2, 3)))
)
def test_d08_short_batches_of_workers_in_the_middle_lose_and_repeat_nothing(
    num_ranks: int, even: bool, split: bool, num_workers: int
) -> None:
    batch_size = 6
    for lengths in product((0, 1, 5, 6, 7, 13), repeat=num_workers):
        streams = [source(length, batch_size) for length in lengths]
        batches = [stream[turn] for turn in range(4) for stream in streams if turn < len(stream)]
        labels = iter(range(100))
        batches = [[next(labels) for _ in batch] for batch in batches]

        steps = dealt(batches, num_ranks, batch_size, split=split, even=even)

        assert in_gathered_order(steps) == list(range(sum(lengths))), lengths
        for step in steps[:-1]:
            sizes = {len(part) for part in step.parts if part is not NOTHING}
            assert NOTHING not in step.parts, lengths
            assert len(sizes) == 1 or not (even or split), lengths


def test_full_steps_are_the_very_batches_of_the_source() -> None:
    batches = [torch.zeros(3), torch.ones(3)]

    (step,) = dealt(batches, 2, 3)

    assert all(part is batch for part, batch in zip(step.parts, batches, strict=True))


def test_a_split_batch_is_cut_into_views() -> None:
    batch = torch.arange(6)

    (step,) = dealt([batch], 2, 6, split=True)

    assert [part.tolist() for part in step.parts] == [[0, 1, 2], [3, 4, 5]]
    assert step.parts[1].untyped_storage().data_ptr() == batch.untyped_storage().data_ptr()


def test_the_last_step_is_shared_equally_and_filled_from_the_beginning() -> None:
    steps = dealt(source(11, 4), 2, 4)

    assert [step.parts for step in steps] == [[[0, 1, 2, 3], [4, 5, 6, 7]], [[8, 9], [10, 0]]]
    assert [step.num_genuine for step in steps] == [8, 3]


def test_a_stream_shorter_than_the_ranks_is_repeated() -> None:
    assert [step.parts for step in dealt(source(1, 4), 3, 4)] == [[[0], [0], [0]]]
    assert [step.parts for step in dealt(source(2, 1), 3, 1)] == [[[0], [1], [0]]]


def test_an_empty_stream_has_no_step() -> None:
    for even, split in product((True, False), repeat=2):
        assert dealt([], 2, 2, even=even, split=split) == []


def test_an_uneven_end_leaves_ranks_without_a_batch() -> None:
    assert [step.parts for step in dealt(source(5, 2), 2, 2, even=False)] == [[[0, 1], [2, 3]], [[4], NOTHING]]


def test_batches_of_differing_size_are_dealt_out_whole() -> None:
    batches = [[0], [1, 2], [3, 4, 5], [6], [7, 8]]

    steps = dealt(batches, 2, None)

    assert [step.parts for step in steps] == [[[0], [1, 2]], [[3, 4, 5], [6]], [[7, 8], [0]]]
    assert [step.num_genuine for step in steps] == [3, 4, 2]
    assert len(dealt(batches, 2, None, drop_last=True)) == 2


def texts(*shapes: tuple[int, int]) -> list[torch.Tensor]:
    counter = iter(range(100))
    return [torch.tensor([[next(counter)] * length] * 1).repeat(rows, 1) for rows, length in shapes]


def test_d06_batches_of_unequal_length_are_given_out_as_they_are() -> None:
    batches = texts((2, 3), (2, 6), (2, 5), (2, 4))

    steps = dealt(batches, 2, 2)

    assert [part is batch for step in steps for part, batch in zip(step.parts, batches[:2], strict=True)][:2] == [
        True
    ] * 2
    assert [tuple(part.shape) for step in steps for part in step.parts] == [(2, 3), (2, 6), (2, 5), (2, 4)]


def test_d06_a_tail_of_unequal_lengths_is_filled_without_joining() -> None:
    steps = dealt(texts((4, 3), (4, 6), (4, 5), (1, 2)), 2, 4)
    assert [tuple(part.shape) for part in steps[-1].parts] == [(4, 5), (4, 2)]
    assert steps[-1].num_genuine == 5

    steps = dealt(texts((4, 3), (4, 6), (3, 5)), 2, 4)
    assert [tuple(part.shape) for part in steps[-1].parts] == [(2, 5), (2, 5)]
    assert steps[-1].num_genuine == 3

    steps = dealt(texts((4, 3), (4, 6), (4, 4), (4, 5)), 3, 4)
    assert [tuple(part.shape) for part in steps[-1].parts] == [(2, 5), (2, 5), (2, 5)]


def detection_batch(numbers: list[int]) -> tuple[Any, ...]:
    """Images of one size and any number of boxes each, as ``tuple(zip(*samples))`` makes it."""
    samples = [(torch.full((8, 2), number), {"boxes": torch.full((number % 3 + 1, 4), number)}) for number in numbers]
    return tuple(zip(*samples, strict=True))


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 5])
def test_d05_d06_samples_with_any_number_of_boxes_stay_whole(batch_size: int) -> None:
    for length in range(batch_size, 12):  # a short batch alone does not say what its rows are
        batches = [detection_batch(numbers) for numbers in source(length, batch_size)]

        steps = dealt(batches, 2, batch_size)

        images: list[int] = []
        for step in steps:
            of_ranks = [(image, target) for part in step.parts for image, target in zip(*part, strict=True)]
            assert all(image.shape == (8, 2) for image, _ in of_ranks)
            assert [len(target["boxes"]) for _, target in of_ranks] == [int(one[0, 0]) % 3 + 1 for one, _ in of_ranks]
            images += [int(image[0, 0]) for image, _ in of_ranks][: step.num_genuine]
        assert images == list(range(length)), length


def test_batches_without_rows_are_dealt_out_whole_or_to_all() -> None:
    batches = [7, None, "text"]

    assert [step.parts for step in dealt(batches, 2, 1)] == [[7, None], ["text", 7]]
    assert [step.parts for step in dealt([7], 2, 2, split=True)] == [[7, 7]]
    assert [step.parts for step in dealt(batches, 2, 1, even=False)] == [[7, None], ["text", NOTHING]]


def test_reads_no_further_than_it_gives() -> None:
    read: list[int] = []

    def batches() -> Iterator[list[int]]:
        for start in range(0, 8, 2):
            read.append(start)
            yield [start, start + 1]

    step = next(deal(batches(), Sharing(num_ranks=2, rank=0, batch_size=2)))

    assert step.parts == [[0, 1], [2, 3]]
    assert read == [0, 2]


def test_a_slicing_function_is_given_all_rows_of_each_step() -> None:
    calls: list[tuple[list[int], slice, int, int]] = []

    def backwards(batch: torch.Tensor, rows: slice, process_index: int, num_processes: int) -> torch.Tensor:
        calls.append((batch.tolist(), rows, process_index, num_processes))
        return batch[rows].flip(0)

    batches = [torch.arange(3), torch.arange(3, 6), torch.arange(6, 9)]
    steps = list(deal(batches, Sharing(num_ranks=2, rank=0, batch_size=3), backwards))

    assert [[part.tolist() for part in step.parts] for step in steps] == [[[2, 1, 0], [5, 4, 3]], [[7, 6], [0, 8]]]
    assert calls[0] == ([0, 1, 2, 3, 4, 5], slice(0, 3), 0, 2)
    assert calls[3] == ([6, 7, 8, 0], slice(2, 4), 1, 2)


def test_a_slicing_function_cannot_be_given_batches_that_do_not_join() -> None:
    how = Sharing(num_ranks=2, rank=0, batch_size=2)

    with pytest.raises(
        TrainingError, match="slice_fn_for_dispatch is given all rows of a step, but the batches of this"
    ):
        list(deal(texts((2, 3), (2, 4)), how, lambda batch, *_, **__: batch))
