"""Batches that are copied while a GPU computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from accel_nb.devices.nvml import load, read_gpus
from accel_nb.training.accelerator import Accelerator
from accel_nb.training.data.moving import Ahead, mover_to

RunRanks = Callable[..., list[Any]]

NUM_GPUS = len(read_gpus(load()))  # never torch.cuda: the process that forks ranks must not open it
pytestmark = [pytest.mark.gpu(1), pytest.mark.skipif(NUM_GPUS < 1, reason="needs a GPU")]

COMPUTING_CYCLES = 2_000_000_000  # a second or so


def copies_while_computing() -> tuple[bool, bool, bool]:
    device = torch.device("cuda", 0)
    mover = mover_to(device, non_blocking=False)
    assert isinstance(mover, Ahead)
    batch = torch.arange(1 << 22)
    mover.finish(mover.start(batch))  # the first allocations of both sides wait for the device
    torch.cuda.synchronize()

    torch.cuda._sleep(COMPUTING_CYCLES)
    started = mover.start([batch])
    started.done.synchronize()
    still_computing = not torch.cuda.current_stream().query()
    moved = mover.finish(started)[0]

    return still_computing, moved.device == device, torch.equal(moved.cpu(), batch)


def test_a_batch_is_copied_while_the_device_computes(run_ranks: RunRanks) -> None:
    assert run_ranks(copies_while_computing, 1, cpu=False) == [(True, True, True)]


class Own:
    """Moves itself; what it holds cannot be seen."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, device: torch.device) -> Own:
        return Own(self.tensor.to(device))


def sums_of_batches(num_workers: int, pin_memory: bool) -> bool:
    """Whether every batch has arrived whole, with memory that is used again and again and a device that lags behind."""
    accelerator = Accelerator()
    data = torch.arange(64 * 50_000, dtype=torch.float64).reshape(64, 50_000)
    loader = accelerator.prepare(
        DataLoader(TensorDataset(data), 4, num_workers=num_workers, pin_memory=pin_memory)
    )  # fmt: skip
    sums = []
    for _ in range(3):
        for (batch,) in loader:
            torch.cuda._sleep(1_000_000)
            sums.append(batch.sum())
            del batch
    expected = data.reshape(-1, 4, 50_000).sum((1, 2)).repeat(3)
    return torch.equal(torch.stack(sums).cpu(), expected)


@pytest.mark.parametrize(("num_workers", "pin_memory"), [(0, False), (0, True), (2, True)])
def test_every_batch_arrives_whole(run_ranks: RunRanks, num_workers: int, pin_memory: bool) -> None:
    assert run_ranks(sums_of_batches, 1, num_workers, pin_memory, cpu=False) == [True]


def kinds_of_batches() -> list[str]:
    accelerator = Accelerator()

    def collate(items: list[tuple[torch.Tensor]]) -> dict[str, Any]:
        return {"rows": torch.cat([row.reshape(1) for (row,) in items]), "own": Own(torch.ones(1)), "text": "t"}

    loader = DataLoader(TensorDataset(torch.arange(4)), 2, collate_fn=collate)
    return [
        f"{batch['rows'].device} {batch['own'].tensor.device} {batch['text']} {batch['rows'].tolist()}"
        for batch in accelerator.prepare(loader)
    ]


def test_objects_that_move_themselves_are_moved_when_they_are_used(run_ranks: RunRanks) -> None:
    assert run_ranks(kinds_of_batches, 1, cpu=False) == [["cuda:0 cuda:0 t [0, 1]", "cuda:0 cuda:0 t [2, 3]"]]
