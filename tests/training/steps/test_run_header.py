"""S10: what an optimizer step is made of, told at the start of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from accel_nb.protocol import sink
from accel_nb.protocol.events import RunEvent, RunHeader
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.ranks.randomness import set_seed
from accel_nb.training.ranks.state import reset_state

from ..examples import Numbers

RunRanks = Callable[..., list[Any]]
Loop = Callable[[Accelerator, Any, Any, Any, int], None]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:  # noqa: ANN401
        return iter(range(24))


def trained(kind: str, num_epochs: int = 2) -> list[RunEvent]:
    """What is told of a loop over 24 numbers in batches of 2."""
    told: list[RunEvent] = []
    sink.deliver_to(told.append)
    try:
        accumulation = 3 if kind in ("accumulated", "windows", "tail") else 1
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
        dataset: Any = Stream() if kind == "stream" else Numbers(20 if kind == "tail" else 24)
        size = 24 if kind == "whole" else 2
        model, optimizer, scheduler, loader = accelerator.prepare(
            model, optimizer, scheduler, DataLoader(dataset, size, shuffle=kind == "accumulated")
        )
        loop: Loop = LOOPS.get(kind, plain_loop)
        loop(accelerator, model, optimizer, loader, num_epochs)
    finally:
        sink.deliver_to(None)
        reset_state()
    return told


def a_step(accelerator: Accelerator, model: Any, optimizer: Any, batch: torch.Tensor) -> None:  # noqa: ANN401
    accelerator.backward(model(batch.float().reshape(-1, 1)).mean())
    optimizer.step()
    optimizer.zero_grad()


def plain_loop(accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, num_epochs: int) -> None:  # noqa: ANN401
    for _ in range(num_epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                a_step(accelerator, model, optimizer, batch)


def by_hand(accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, num_epochs: int) -> None:  # noqa: ANN401
    for _ in range(num_epochs):
        for number, batch in enumerate(loader, 1):
            accelerator.backward(model(batch.float().reshape(-1, 1)).mean() / 4)
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()


def in_pieces(accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, num_epochs: int) -> None:  # noqa: ANN401
    for _ in range(num_epochs):
        for batch in loader:
            for piece in batch.split(1):
                a_step(accelerator, model, optimizer, piece)


def in_windows(accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, num_epochs: int) -> None:  # noqa: ANN401
    for _ in range(num_epochs):
        for window, num_items in accelerator.accumulation_windows(loader, len):
            for batch in window:
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch.float().reshape(-1, 1)).sum(), num_items=num_items)
                    optimizer.step()
                    optimizer.zero_grad()


def across_batches(accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, num_epochs: int) -> None:  # noqa: ANN401
    """Two pieces per batch, three per step."""
    accelerator.gradient_accumulation_steps = 3
    for _ in range(num_epochs):
        for batch in loader:
            for piece in accelerator.micro_batches(batch.split(1)):
                with accelerator.accumulate(model):
                    a_step(accelerator, model, optimizer, piece)


def with_another(accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, num_epochs: int) -> None:  # noqa: ANN401
    other = torch.nn.Linear(1, 1)
    second, its = accelerator.prepare(other, torch.optim.SGD(other.parameters(), lr=0.01))
    for _ in range(num_epochs):
        for batch in loader:
            a_step(accelerator, model, optimizer, batch)
            a_step(accelerator, second, its, batch)


LOOPS: dict[str, Loop] = {
    "by hand": by_hand, "pieces": in_pieces, "windows": in_windows, "across": across_batches, "two": with_another,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "batches", "updates"),
    [
        ("plain", 1, 12), ("accumulated", 3, 4), ("tail", 3, 4), ("windows", 3, 4), ("by hand", 4, 3),
        ("pieces", None, None), ("stream", 1, None), ("whole", None, None), ("across", None, None), ("two", 1, 12),
    ],
)  # fmt: skip
def test_s10_the_header_says_what_the_first_steps_were(kind: str, batches: int | None, updates: int | None) -> None:
    told = [event for event in trained(kind, 12 if kind == "whole" else 2) if isinstance(event, RunHeader)]

    size = 24 if kind == "whole" else 2
    (header,) = told
    assert (header.num_ranks, header.batch_size, header.precision) == (1, size, "no")
    assert (header.batches_per_update, header.updates_per_epoch) == (batches, updates)
    assert header.learning_rates == (0.01,)


def test_s10_the_first_rank_tells_it_once_for_all(run_ranks: RunRanks) -> None:
    def on_ranks() -> list[RunEvent]:
        set_seed(5)
        return [event for event in trained("accumulated") if isinstance(event, RunHeader)]

    (first,), nothing = run_ranks(on_ranks, 2)

    assert nothing == []
    assert first == RunHeader(
        num_ranks=2, batch_size=2, batches_per_update=3, updates_per_epoch=2, learning_rates=(0.01,), seed=5
    )
    assert first.effective_batch_size == 12


def test_s10_it_is_told_again_only_when_it_has_changed() -> None:
    told: list[RunEvent] = []
    sink.deliver_to(told.append)
    try:
        accelerator = Accelerator(cpu=True)
        for size in (2, 2, 4):
            model = torch.nn.Linear(1, 1)
            model, optimizer, loader = accelerator.prepare(
                model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(Numbers(24), size)
            )
            plain_loop(accelerator, model, optimizer, loader, 1)
            accelerator.free_memory()
    finally:
        sink.deliver_to(None)

    assert [event.batch_size for event in told if isinstance(event, RunHeader)] == [2, 4]


def test_s10_outside_a_launch_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Numbers(24), 2))

    plain_loop(accelerator, model, optimizer, loader, 1)

    assert capsys.readouterr().out == ""
