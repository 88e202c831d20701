from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.data.preparing import prepare_data_loader
from accel_nb.training.settings import DataLoaderConfiguration

from .examples import Numbers

RunRanks = Callable[..., list[Any]]

CELLS = [
    (length, batch_size, split, drop_last)
    for length in (0, 1, 5, 8, 9, 16, 40)
    for batch_size in (1, 2, 4, 7)
    for split in (False, True)
    for drop_last in (False, True)
]


def metrics_of_cells(num_ranks: int) -> list[tuple[tuple[int, int, bool, bool], list[int], int, int]]:
    results = []
    for length, batch_size, split, drop_last in CELLS:
        if split and batch_size % num_ranks:
            continue
        accelerator = Accelerator(split_batches=split)
        loader = accelerator.prepare(DataLoader(Numbers(length), batch_size, drop_last=drop_last))
        seen: list[int] = []
        num_batches = 0
        for batch in loader:
            seen += accelerator.gather_for_metrics(batch).tolist()
            num_batches += 1
        results.append(((length, batch_size, split, drop_last), seen, num_batches, len(loader)))
    return results


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_d01_every_sample_is_counted_once_and_in_order(run_ranks: RunRanks, num_ranks: int) -> None:
    for results in run_ranks(metrics_of_cells, num_ranks, num_ranks):
        assert len(results) >= len(CELLS) // 2
        for (length, batch_size, split, drop_last), seen, num_batches, announced in results:
            step_size = batch_size if split else batch_size * num_ranks
            kept = length // step_size * step_size if drop_last else length
            assert seen == list(range(kept)), (length, batch_size, split, drop_last)
            assert num_batches == announced


def gathered_kinds() -> dict[str, Any]:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(Numbers(5), 2, collate_fn=torch.tensor))
    collected: dict[str, list[Any]] = {name: [] for name in ("text", "dict", "beams", "ragged", "pair")}
    for batch in loader:
        numbers = batch.tolist()
        collected["text"] += accelerator.gather_for_metrics([f"s{number}" for number in numbers])
        mixed = accelerator.gather_for_metrics({"id": batch, "name": [str(number) for number in numbers]})
        collected["dict"] += zip(mixed["id"].tolist(), mixed["name"], strict=True)
        collected["beams"] += accelerator.gather_for_metrics(batch.repeat_interleave(3)).tolist()
        boxes = [torch.full((number, 4), number) for number in numbers]
        collected["ragged"] += [len(box) for box in accelerator.gather_for_metrics(boxes, use_gather_object=True)]
        first, second = accelerator.gather_for_metrics((batch, batch.float()))
        collected["pair"] += zip(first.tolist(), second.tolist(), strict=True)
    return collected


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_d05_strings_dicts_beams_and_boxes_are_counted_once(run_ranks: RunRanks, num_ranks: int) -> None:
    for collected in run_ranks(gathered_kinds, num_ranks):
        assert collected["text"] == [f"s{number}" for number in range(5)]
        assert collected["dict"] == [(number, str(number)) for number in range(5)]
        assert collected["beams"] == [number for number in range(5) for _ in range(3)]
        assert collected["ragged"] == [0, 1, 2, 3, 4]
        assert collected["pair"] == [(number, float(number)) for number in range(5)]


def scalar_on_a_filled_batch() -> tuple[list[float], list[str]]:
    accelerator = Accelerator()
    values: list[float] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in accelerator.prepare(DataLoader(Numbers(3), 2)):
            values += accelerator.gather_for_metrics(batch.float().mean()).tolist()
    return values, [str(one.message) for one in caught]


def gathered_of_batches_without_tensors(num_rows_per_sample: int) -> list[Any]:
    accelerator = Accelerator()

    def collated(numbers: list[int]) -> Any:  # noqa: ANN401
        texts = [f"s{number}" for number in numbers]
        return texts if num_rows_per_sample == 1 else torch.tensor(numbers).repeat_interleave(num_rows_per_sample)

    loader = accelerator.prepare(DataLoader(Numbers(5), 2, collate_fn=collated))
    return [row for batch in loader for row in accelerator.gather_for_metrics(batch)]


def test_d05_samples_of_batches_without_tensors_are_counted_once(run_ranks: RunRanks) -> None:
    for rows in run_ranks(gathered_of_batches_without_tensors, 2, 1):
        assert rows == ["s0", "s1", "s2", "s3", "s4"]


def gathered_pairs_of_texts() -> tuple[list[str], list[str]]:
    accelerator = Accelerator()
    predictions: list[str] = []
    labels: list[str] = []
    for batch in accelerator.prepare(DataLoader(Numbers(5), 2)):
        own = ([f"p{number}" for number in batch.tolist()], [f"l{number}" for number in batch.tolist()])
        of_all = accelerator.gather_for_metrics(own)
        predictions += of_all[0]
        labels += of_all[1]
    return predictions, labels


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_d05_texts_in_a_tuple_are_gathered_field_by_field(run_ranks: RunRanks, num_ranks: int) -> None:
    for predictions, labels in run_ranks(gathered_pairs_of_texts, num_ranks):
        assert predictions == ["p0", "p1", "p2", "p3", "p4"]
        assert labels == ["l0", "l1", "l2", "l3", "l4"]


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, items: list[torch.Tensor]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.items)


def gathered_of_items_that_are_batches() -> list[list[list[int]]]:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    items = [torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([4])]
    loaders = [DataLoader(items, batch_size=None), DataLoader(Stream(items), batch_size=None)]  # type: ignore[arg-type]
    return [
        [accelerator.gather_for_metrics(item).tolist() for item in accelerator.prepare(loader)] for loader in loaders
    ]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_d05_items_that_are_batches_of_any_size_are_counted_once(run_ranks: RunRanks, num_ranks: int) -> None:
    expected = [[0, 1, 2, 3], [4]] if num_ranks == 2 else [[0, 1], [2, 3], [4]]
    for of_items, of_stream in run_ranks(gathered_of_items_that_are_batches, num_ranks):
        assert of_items == of_stream == expected


def test_d05_several_rows_that_a_sample_is_collated_to_are_counted_once(run_ranks: RunRanks) -> None:
    for rows in run_ranks(gathered_of_batches_without_tensors, 2, 3):
        assert [int(row) for row in rows] == [number for number in range(5) for _ in range(3)]


def test_d04_a_value_reduced_before_gathering_warns_on_a_filled_batch(run_ranks: RunRanks) -> None:
    for values, messages in run_ranks(scalar_on_a_filled_batch, 2):
        assert values == [0.5, 1.0]  # 0 and 1; 2 and the 0 that fills the batch
        assert len(messages) == 1
        assert "was given a single value for a last batch of 2 samples" in messages[0]


def test_outside_a_loop_everything_is_kept() -> None:
    accelerator = Accelerator(cpu=True)

    assert accelerator.gather_for_metrics(torch.arange(3)).tolist() == [0, 1, 2]


@dataclass
class Predictions:
    scores: torch.Tensor
    loss: torch.Tensor | None = None


def test_containers_keep_their_types_and_none_stays_none() -> None:
    accelerator = Accelerator()
    scores = torch.tensor([1.0, 2.0])

    gathered = accelerator.gather_for_metrics(defaultdict(list, a=Predictions(scores), b=(scores, None)))

    assert gathered.default_factory is list
    assert isinstance(gathered["a"], Predictions)
    assert gathered["a"].scores.tolist() == gathered["b"][0].tolist() == [1.0, 2.0]
    assert gathered["a"].loss is gathered["b"][1] is None


def test_a_plain_number_is_refused() -> None:
    with pytest.raises(TypeError, match=r"cannot gather a float \(0\.5\).*gather_object\(\[value\]\)"):
        Accelerator(cpu=True).gather_for_metrics(0.5)
    with pytest.raises(TypeError, match="use_gather_object=True joins lists, got dict"):
        Accelerator(cpu=True).gather_for_metrics({}, use_gather_object=True)


def gathered_at_an_uneven_end() -> dict[str, list[Any]]:
    """Two full steps, then one that only some ranks have a batch in."""
    accelerator = Accelerator()
    loader = prepare_data_loader(
        DataLoader(Numbers(2 * 2 * accelerator.num_processes + 3), 2, collate_fn=torch.tensor), even_batches=False
    )
    seen: dict[str, list[Any]] = {"ids": [], "names": [], "beams": [], "mean": []}
    for batch in loader:
        both = accelerator.gather_for_metrics({"ids": batch, "names": [str(one) for one in batch.tolist()]})
        seen["ids"] += both["ids"].tolist()
        seen["names"] += both["names"]
        seen["beams"] += accelerator.gather_for_metrics(batch.repeat_interleave(2)).tolist()
        seen["mean"] += accelerator.gather_for_metrics(batch.float().mean()).tolist()
    accelerator.wait_for_everyone()
    return seen


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_d01_at_an_uneven_end_the_ranks_with_data_gather_among_themselves(run_ranks: RunRanks, num_ranks: int) -> None:
    results = run_ranks(gathered_at_an_uneven_end, num_ranks)

    for rank, seen in enumerate(results):
        ids = list(range(4 * num_ranks + (3 if rank < 2 else 0)))
        assert seen["ids"] == ids
        assert seen["names"] == [str(number) for number in ids]
        assert seen["beams"] == [number for number in ids for _ in range(2)]
        assert len(seen["mean"]) == 2 * num_ranks + (2 if rank < 2 else 0)


def means_of_nine() -> dict[str, float]:
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(Numbers(9), 2))
    means = {name: accelerator.metric_mean() for name in ("values", "weighted", "beams")}
    for batch in loader:
        means["values"].update(batch)
        means["weighted"].update(batch.float(), batch.float())
        means["beams"].update(batch.repeat_interleave(3))
    return {name: mean.compute() for name, mean in means.items()}


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_d04_a_running_mean_counts_each_sample_once(run_ranks: RunRanks, num_ranks: int) -> None:
    weighted = sum(number * number for number in range(9)) / sum(range(9))

    for means in run_ranks(means_of_nine, num_ranks):
        assert means == pytest.approx({"values": 4.0, "weighted": weighted, "beams": 4.0})


def mean_of_batch_means(length: int) -> tuple[float, list[str]]:
    accelerator = Accelerator()
    mean = accelerator.metric_mean()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in accelerator.prepare(DataLoader(Numbers(length), 3)):
            mean.update(batch.double().mean())
    return mean.compute(), [str(one.message) for one in caught]


def test_d04_means_of_batches_count_as_much_as_they_have_samples() -> None:
    assert mean_of_batch_means(7) == (3.0, [])


def test_d04_means_of_batches_that_differ_in_size_need_weights() -> None:
    accelerator = Accelerator(cpu=True)
    mean = accelerator.metric_mean()

    for batch in accelerator.prepare(DataLoader(Numbers(4), batch_sampler=[[0], [1, 2, 3]])):
        mean.update(batch.double().mean(), torch.tensor(len(batch)))
        with pytest.raises(ValueError, match="this loader's batches differ in size"):
            mean.update(batch.double().mean())
        break

    assert mean.compute() == 0.0


def test_d04_the_mean_of_a_batch_that_is_filled_up_warns(run_ranks: RunRanks) -> None:
    for _, messages in run_ranks(mean_of_batch_means, 2, 7):
        assert len(messages) == 1
        assert "was given a single value for a last batch of 3 samples" in messages[0]


def test_d04_plain_numbers_and_their_weights_count() -> None:
    mean = Accelerator().metric_mean()

    mean.update(1.0, weights=3)
    mean.update(torch.tensor([5.0]), weights=torch.tensor([1]))

    assert mean.compute() == 2.0


def test_d04_weights_of_another_shape_are_refused() -> None:
    mean = Accelerator().metric_mean()

    with pytest.raises(ValueError, match=r"values has the shape \[2\], weights \[1\]"):
        mean.update(torch.ones(2), weights=torch.ones(1))


def test_a_running_mean_of_nothing_is_not_a_number_and_begins_anew() -> None:
    mean = Accelerator(cpu=True).metric_mean()
    assert math.isnan(mean.compute())

    mean.update(torch.tensor([1.0, 2.0]))
    assert mean.compute() == 1.5
    mean.reset()

    assert math.isnan(mean.compute())
