"""The search on CUDA ranks with NCCL: one really runs out of memory while the others wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed, nn

from accel_nb import Accelerator, find_executable_batch_size
from accel_nb.devices.nvml import load, read_gpus

RunRanks = Callable[..., list[Any]]

NUM_GPUS = len(read_gpus(load()))  # never torch.cuda: the process that forks ranks must not open it
pytestmark = [
    pytest.mark.gpu(2),
    pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs"),
    pytest.mark.timeout(300),
]

LIMIT = 8
SAMPLE_BYTES = 64 << 20
"""What one sample costs where memory is scarce."""


class Costly(torch.autograd.Function):
    """Allocates `SAMPLE_BYTES` per sample, in its forward or in its backward."""

    where: str

    @staticmethod
    def forward(ctx: Costly, inputs: torch.Tensor, where: str) -> torch.Tensor:
        ctx.where = where
        ctx.save_for_backward(_allocated(inputs) if where == "forward" else inputs)
        return inputs.clone()

    @staticmethod
    def backward(ctx: Costly, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        _ = _allocated(gradient) if ctx.where == "backward" else None
        return gradient, None


def _allocated(batch: torch.Tensor) -> torch.Tensor:
    return torch.empty(len(batch) * SAMPLE_BYTES, dtype=torch.uint8, device=batch.device)


class Model(nn.Module):
    """Its parameters fill several buckets of DDP."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(16, 2048), nn.Linear(2048, 2048)
        self.where = where

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = Costly.apply(self.before(inputs), self.where)  # type: ignore[no-untyped-call]
        outputs: torch.Tensor = self.after(hidden)
        return outputs


def trained(where: str) -> dict[str, Any]:
    """The last rank has room for `LIMIT` samples, the model and what belongs to it, but not for twice as many."""
    accelerator = Accelerator()
    tried = []
    if accelerator.is_last_process:
        total = torch.cuda.get_device_properties(accelerator.device).total_memory
        torch.cuda.set_per_process_memory_fraction((LIMIT * SAMPLE_BYTES + (384 << 20)) / total)

    @find_executable_batch_size(starting_batch_size=64, reduction="halve")
    def train(batch_size: int) -> float:
        nonlocal accelerator
        accelerator.free_memory()
        tried.append(batch_size)
        torch.manual_seed(0)
        model = Model(where)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for _ in range(3):
            loss = model(torch.ones(batch_size, 16, device=accelerator.device)).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return sum(float(parameter.detach().sum()) for parameter in model.parameters())

    total = train()
    after = accelerator.reduce(torch.ones(1)).item()
    return {"tried": tried, "total": total, "after": after}


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_m05_twenty_times_in_a_row_with_nccl(run_ranks: RunRanks, where: str) -> None:
    for number in range(20):
        started = time.monotonic()
        results = run_ranks(trained, 2, where, cpu=False)
        print(f"{number}: {results[0]['tried']} in {time.monotonic() - started:.1f} s", flush=True)

        assert results[0]["tried"] == results[1]["tried"]
        assert results[0]["tried"][-1] <= LIMIT
        assert results[0]["total"] == results[1]["total"]
        assert [result["after"] for result in results] == [2, 2]


def waits_in_an_all_reduce() -> tuple[list[int], float]:
    accelerator = Accelerator()
    tried = []

    @find_executable_batch_size(starting_batch_size=2, reduction="halve")
    def train(batch_size: int) -> float:
        tried.append(batch_size)
        if not accelerator.is_main_process and batch_size > 1:
            torch.empty(1 << 50, dtype=torch.uint8, device=accelerator.device)
        value = torch.ones(1, device=accelerator.device)
        distributed.all_reduce(value)
        torch.cuda.synchronize()
        return value.item()

    return tried, train()


def test_m05_a_rank_that_waits_for_its_device_is_freed(run_ranks: RunRanks) -> None:
    assert run_ranks(waits_in_an_all_reduce, 2, cpu=False) == [([2, 1], 2.0)] * 2


def memory_between_tries() -> list[int]:
    device = Accelerator().device
    before = []

    @find_executable_batch_size(starting_batch_size=4, reduction="halve")
    def train(batch_size: int) -> None:
        before.append(torch.cuda.memory_allocated(device))
        held = torch.ones(64 << 20, device=device)
        if batch_size > 1:
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        del held

    train()
    return before


def test_m08_memory_of_the_device_is_given_back(run_ranks: RunRanks) -> None:
    for before in run_ranks(memory_between_tries, 2, cpu=False):
        assert before[0] == before[1] == before[2]
