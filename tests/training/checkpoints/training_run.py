"""A small training run that can be interrupted anywhere and resumed, with everything in it that may go wrong: shuffled
data, noise drawn while reading, dropout, accumulation, momentum, a schedule.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.ranks.randomness import set_seed
from accel_nb.training.settings import DataLoaderConfiguration

NUM_SAMPLES = 22
NUM_EPOCHS = 3


class Noisy(Dataset[tuple[int, torch.Tensor]]):
    """Sample i is the number i and four features, to which reading adds noise from all three generators."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        noise = torch.randn(4) + random.gauss(0, 1) + np.random.standard_normal()  # noqa: NPY002
        return index, torch.full((4,), float(index)) / NUM_SAMPLES + 0.1 * noise.float()


class Quiet(Dataset[tuple[int, torch.Tensor]]):
    """The same without noise: what workers draw in the middle of an epoch is not part of a checkpoint."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((4,), float(index)) / NUM_SAMPLES


class Stream(IterableDataset[tuple[int, torch.Tensor]]):
    """The same in one order, without noise: ranks that read it whole must read the same."""

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        for index in range(NUM_SAMPLES):
            yield index, torch.full((4,), float(index)) / NUM_SAMPLES


@dataclass(frozen=True, kw_only=True)
class Case:
    """How the run reads its data."""

    cpu: bool = True
    is_stream: bool = False
    batch_size: int = 2
    num_workers: int = 0
    accumulation: int = 2
    mixed_precision: str = "no"
    settings: tuple[tuple[str, Any], ...] = ()
    """Of `DataLoaderConfiguration`."""


def build(case: Case, project: Path) -> tuple[Accelerator, Any, Any, Any, Any]:
    accelerator = Accelerator(
        cpu=case.cpu,
        gradient_accumulation_steps=case.accumulation,
        mixed_precision=case.mixed_precision,
        project_dir=project,
        dataloader_config=DataLoaderConfiguration(**dict(case.settings)),
    )
    set_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    dataset: Any = Stream() if case.is_stream else Quiet() if case.num_workers else Noisy()
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=case.batch_size, shuffle=None if case.is_stream else True, num_workers=case.num_workers
    )
    return accelerator, *accelerator.prepare(model, optimizer, loader, scheduler)


def train(case: Case, project: Path, *, save_after: int | None = None, resume: bool = False) -> dict[str, Any]:
    """Steps, each with the samples of this rank and its loss, and the parameters at the end.

    `save_after`: save a checkpoint after so many micro-batches, between the two loops if that is the end of an epoch,
    and stop. `resume`: begin where that was.
    """
    accelerator, model, optimizer, loader, scheduler = build(case, project)
    if resume:
        accelerator.load_state()
    steps: list[tuple[list[int], float, float]] = []
    for _ in range(loader.iteration, NUM_EPOCHS):
        for numbers, features in loader:
            with accelerator.accumulate(model):
                loss = model(features).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            steps.append((numbers.tolist(), loss.item(), scheduler.get_last_lr()[0]))
            if len(steps) == save_after and not accelerator.gradient_state.end_of_dataloader:
                accelerator.save_state()
                return {"steps": steps}
        if len(steps) == save_after:
            accelerator.save_state()
            return {"steps": steps}
    weights = [parameter.detach().cpu() for parameter in accelerator.unwrap_model(model).parameters()]
    after = (torch.rand(1, device=accelerator.device).item(), random.random(), np.random.rand())  # noqa: NPY002
    return {"steps": steps, "weights": weights, "after": after}
