"""Loops that cut batches into micro-batches, and losses that are weighted by tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.settings import DataLoaderConfiguration, GradientAccumulationPlugin
from accel_nb.training.steps.windows import accumulation_windows

from ..examples import Numbers

RunRanks = Callable[..., list[Any]]


class Stream(IterableDataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


def trained(accelerator: Accelerator) -> tuple[nn.Module, Any]:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))  # type: ignore[no-any-return]


def step(accelerator: Accelerator, model: nn.Module, optimizer: Any, number: torch.Tensor) -> float | None:  # noqa: ANN401
    """The gradient of the update, if this micro-batch made one."""
    with accelerator.accumulate(model):
        accelerator.backward(model(number.float().reshape(-1, 1)).mean())
        (weight,) = model.parameters()
        gradient = weight.grad.item() if accelerator.sync_gradients else None  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
    return gradient


def cut(num_batches: int, pieces: int, steps: int, *, explicit: bool, stream: bool = False) -> list[float]:
    """Gradients of the updates over batches of `pieces` numbers that are cut into single ones."""
    accelerator = Accelerator(gradient_accumulation_steps=steps)
    model, optimizer = trained(accelerator)
    length = num_batches * pieces * accelerator.num_processes
    dataset: Any = Stream(length) if stream else Numbers(length)
    loader = accelerator.prepare(DataLoader(dataset, pieces))
    gradients: list[float | None] = []
    for batch in loader:
        micro_batches = list(batch.split(1))
        pieces_of_batch = accelerator.micro_batches(micro_batches) if explicit else micro_batches
        gradients += [step(accelerator, model, optimizer, piece) for piece in pieces_of_batch]
    updates = [gradient for gradient in gradients if gradient is not None]
    assert accelerator.update_count == len(updates)
    return updates


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize(("num_batches", "pieces", "steps"), [(3, 2, 2), (3, 4, 2), (4, 2, 3), (3, 3, 4), (5, 1, 2)])
def test_s04_the_last_batch_ends_a_step_once(num_batches: int, pieces: int, steps: int, *, explicit: bool) -> None:
    Accelerator(cpu=True)
    numbers = range(num_batches * pieces)
    windows = [numbers[start : start + steps] for start in range(0, len(numbers), steps)]

    assert cut(num_batches, pieces, steps, explicit=explicit) == pytest.approx([sum(one) / len(one) for one in windows])


def test_s04_the_last_batch_ends_a_step_once_on_ranks(run_ranks: RunRanks) -> None:
    for gradients in run_ranks(lambda: cut(3, 2, 4, explicit=False), 2):
        # ranks read 0 1, 4 5, 8 9 and 2 3, 6 7, 10 11
        assert gradients == pytest.approx([3.5, 9.5])


def test_s04_pieces_of_the_only_batch_are_told_by_micro_batches() -> None:
    Accelerator(cpu=True)

    assert cut(1, 3, 3, explicit=True) == pytest.approx([1.0])
    assert cut(2, 3, 3, explicit=True, stream=True) == pytest.approx([1.0, 4.0])


def test_s04_without_the_end_of_the_loader_counting_goes_on() -> None:
    plugin = GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model, optimizer = trained(accelerator)
    loader = accelerator.prepare(DataLoader(Numbers(3), 1))

    gradients = [step(accelerator, model, optimizer, batch) for _ in range(2) for batch in loader]

    assert gradients == pytest.approx([None, 0.5, None, 1.0, None, 1.5])


@pytest.mark.parametrize("num_batches", [1, 4, 5])
def test_s04_a_loop_over_anything_steps_at_its_end(num_batches: int) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = trained(accelerator)
    unprepared = DataLoader(Numbers(num_batches), 1)

    for batch in accelerator.micro_batches(unprepared):
        step(accelerator, model, optimizer, batch)

    assert len(accelerator.micro_batches(unprepared)) == num_batches
    assert accelerator.update_count == -(-num_batches // 2)
    assert accelerator.gradient_state.active_dataloader is None


def test_s03_a_loop_that_is_left_early_does_not_disturb_the_next() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = trained(accelerator)
    loader = accelerator.prepare(DataLoader(Numbers(4), 1))
    for batch in loader:
        step(accelerator, model, optimizer, batch)
        step(accelerator, model, optimizer, batch)
        break

    gradients = [step(accelerator, model, optimizer, batch) for batch in loader]

    assert gradients == pytest.approx([None, 0.5, None, 2.5])


LENGTHS = [3, 1, 4, 2, 6, 5, 2]
"""Tokens of each sample: as many on each rank and in each micro-batch as they happen to be."""


class Sentences(Numbers):
    """Sample i is LENGTHS[i] tokens and their number; padding is masked."""

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401
        tokens = torch.zeros(8)
        tokens[: LENGTHS[index]] = torch.arange(1.0, LENGTHS[index] + 1) * (index + 1)
        return tokens, (torch.arange(8) < LENGTHS[index]).float()


def token_gradients(steps: int, num_samples: int) -> list[float]:
    accelerator = Accelerator(gradient_accumulation_steps=steps)
    model, optimizer = trained(accelerator)
    loader = accelerator.prepare(DataLoader(Sentences(num_samples), 1))
    gradients = []
    for window, num_tokens in accelerator.accumulation_windows(loader, lambda batch: batch[1].sum()):
        for tokens, mask in window:
            with accelerator.accumulate(model):
                outputs = model(tokens.reshape(-1, 1)).reshape_as(mask)
                accelerator.backward((outputs * mask).sum(), num_items=num_tokens)
                if accelerator.sync_gradients:
                    (weight,) = model.parameters()
                    gradients.append(weight.grad.item())  # type: ignore[union-attr]
                optimizer.step()
                optimizer.zero_grad()
    return gradients


def mean_token(samples: list[int]) -> float:
    tokens = [(position + 1) * (index + 1) for index in samples for position in range(LENGTHS[index])]
    return sum(tokens) / len(tokens)


def test_s06_every_token_counts_alike_however_they_are_spread(run_ranks: RunRanks) -> None:
    assert run_ranks(token_gradients, 1, 4, 4)[0] == pytest.approx([mean_token([0, 1, 2, 3])])
    for gradients in run_ranks(token_gradients, 2, 2, 4):
        assert gradients == pytest.approx([mean_token([0, 1, 2, 3])])


def test_s06_the_tail_counts_the_tokens_that_it_has(run_ranks: RunRanks) -> None:
    wanted = [mean_token([0, 1, 2, 3]), mean_token([4, 5])]

    assert run_ranks(token_gradients, 1, 4, 6)[0] == pytest.approx(wanted)
    for gradients in run_ranks(token_gradients, 2, 2, 6):
        assert gradients == pytest.approx(wanted)


def test_a_window_needs_a_batch() -> None:
    accelerator = Accelerator(cpu=True)

    with pytest.raises(ValueError, match="a window of 0 batches is none"):
        next(accumulation_windows([1], 0, lambda _: 1, accelerator.collectives, accelerator.gradient_state))


def gathered_in_windows(length: int, steps: int, options: dict[str, Any]) -> tuple[list[int], float]:
    """Every number that is gathered, and the mean that `metric_mean` makes of them."""
    accelerator = Accelerator(gradient_accumulation_steps=steps, dataloader_config=DataLoaderConfiguration(**options))
    loader = accelerator.prepare(DataLoader(Numbers(length), batch_size=2))
    seen: list[int] = []
    mean = accelerator.metric_mean()
    for window, _ in accelerator.accumulation_windows(loader, len):
        for batch in window:
            seen += accelerator.gather_for_metrics(batch).flatten().tolist()
            mean.update(batch.flatten().float())
    return seen, float(mean.compute())


@pytest.mark.parametrize(
    ("length", "steps", "options"),
    [
        *((length, 2, {}) for length in (12, 13, 14, 17)),
        (14, 3, {}),
        (14, 2, {"dispatch_batches": True}),
        (14, 2, {"even_batches": False}),
    ],
    ids=str,
)
def test_d01_metrics_in_windows_count_each_sample_once(
    run_ranks: RunRanks, length: int, steps: int, options: dict[str, Any]
) -> None:
    for seen, mean in run_ranks(gathered_in_windows, 2, length, steps, options)[:1]:
        assert seen == list(range(length))
        assert mean == pytest.approx((length - 1) / 2)
