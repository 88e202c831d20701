"""A short training and the operations around it, on the ranks of a run: do they give right results here?

Runs in every rank. Nothing of it depends on how many ranks there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ..errors import DistributedOperationException
from .accelerator import Accelerator
from .operations.collectives import broadcast, gather, gather_object, pad_across_processes, reduce

NUM_SAMPLES = 203
"""Odd, so that the last batch is incomplete and the ranks' shares are unequal."""
NUM_EPOCHS = 4


Prepared = tuple[nn.Module, torch.optim.Optimizer, "DataLoader[tuple[torch.Tensor, ...]]"]


class Check(NamedTuple):
    """One thing that was tried on all ranks."""

    name: str
    seconds: float
    trouble: str = ""
    """Empty when it gave what it should."""


def run_checks() -> list[Check]:
    """In a rank: every check in turn; one that fails does not keep the others from being made."""
    accelerator = Accelerator()
    return [_tried(name, check, accelerator) for name, check in CHECKS.items()]


def _tried(name: str, check: Callable[[Accelerator], None], accelerator: Accelerator) -> Check:
    started = time.monotonic()
    trouble = ""
    try:
        check(accelerator)
    except Exception as error:  # noqa: BLE001  whatever it is, it is the outcome
        trouble = f"{type(error).__name__}: {error}"
    # Of any rank: the others go on to the next check together.
    troubles = [text for text in gather_object([trouble]) if text]
    return Check(name, time.monotonic() - started, troubles[0] if troubles else "")


def _check_operations(accelerator: Accelerator) -> None:
    rank, ranks = accelerator.process_index, accelerator.num_processes
    mine = torch.full((2,), float(rank), device=accelerator.device)
    _expect("gather", gather(mine).tolist(), [float(other) for other in range(ranks) for _ in range(2)])
    _expect("reduce", reduce(mine + 1, "sum").tolist(), [ranks * (ranks + 1) / 2] * 2)
    _expect("broadcast", broadcast(mine.clone(), from_process=ranks - 1).tolist(), [float(ranks - 1)] * 2)
    ragged = torch.ones(rank + 1, device=accelerator.device)
    _expect("pad_across_processes", pad_across_processes(ragged).shape[0], ranks)
    _expect("gather_object", gather_object([{"rank": rank}]), [{"rank": other} for other in range(ranks)])


def _check_data(accelerator: Accelerator) -> None:
    samples = TensorDataset(torch.arange(NUM_SAMPLES))
    loader = accelerator.prepare(DataLoader(samples, batch_size=8))
    seen = [accelerator.gather_for_metrics(batch) for (batch,) in loader]
    _expect("gather_for_metrics", torch.cat(seen).sort().values.tolist(), list(range(NUM_SAMPLES)))


def _check_training(accelerator: Accelerator) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(NUM_SAMPLES, 8)
    targets = inputs.sum(dim=1, keepdim=True)
    own = nn.Linear(8, 1)
    descent = torch.optim.SGD(own.parameters(), lr=0.05)
    samples = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
    model, optimizer, loader = cast("Prepared", accelerator.prepare(own, descent, samples))
    losses = []
    for _ in range(NUM_EPOCHS):
        total = 0.0
        for batch, wanted in loader:
            loss = nn.functional.mse_loss(model(batch), wanted)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += reduce(loss.detach(), "mean").item()
        losses.append(total / len(loader))
    if not losses[-1] < losses[0]:
        raise RuntimeError(f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f} instead of down")
    weights = gather_object([own.weight.detach().cpu().tolist()])
    _expect("the ranks' weights", weights, [weights[0]] * accelerator.num_processes)


def _check_mismatch(accelerator: Accelerator) -> None:
    """Shapes that do not fit together are refused on every rank, where they would hang without the comparison."""
    if accelerator.num_processes == 1:
        return
    shape = 2 + (accelerator.process_index == 0)
    try:
        gather(torch.zeros(shape, device=accelerator.device))
    except DistributedOperationException:
        return
    raise RuntimeError("ranks gathered tensors of shapes [3] and [2], and nothing refused it")


CHECKS: dict[str, Callable[[Accelerator], None]] = {
    "operations": _check_operations,
    "data": _check_data,
    "training": _check_training,
    "mismatched shapes are refused": _check_mismatch,
}


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise RuntimeError(f"{what} gave {found!r} instead of {wanted!r}")
