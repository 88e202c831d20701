"""Training functions of which one rank runs out of memory while the others wait for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accel_nb import Accelerator, find_executable_batch_size

LIMIT = 8
"""The largest batch size that fits on the last rank; on the others all do."""


class FullAbove(torch.autograd.Function):
    """Runs out of memory in its backward when the batch is larger than `limit`."""

    is_full: bool

    @staticmethod
    def forward(ctx: FullAbove, inputs: torch.Tensor, limit: int) -> torch.Tensor:
        ctx.is_full = len(inputs) > limit
        return inputs.clone()

    @staticmethod
    def backward(ctx: FullAbove, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.is_full:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.10 GiB.")
        return gradient, None


class Model(nn.Module):
    """`where`: "forward" or "backward", where memory ends above `limit`. Its parameters fill several buckets of DDP."""

    def __init__(self, where: str, limit: int) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(16, 512), nn.Linear(512, 512)
        self.where = where
        self.limit = limit

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.where == "forward" and len(inputs) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.10 GiB.")
        hidden = self.before(inputs)
        if self.where == "backward":
            hidden = FullAbove.apply(hidden, self.limit)  # type: ignore[no-untyped-call]
        outputs: torch.Tensor = self.after(hidden)
        return outputs


def trained(accelerator: Accelerator, batch_size: int, where: str, num_steps: int = 3) -> float:
    """The sum of the parameters after a few steps: the same on all ranks."""
    is_last = accelerator.is_last_process
    torch.manual_seed(0)
    model = Model(where, LIMIT if is_last else 1 << 20)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for _ in range(num_steps):
        loss = model(torch.ones(batch_size, 16)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return round(sum(float(parameter.detach().sum()) for parameter in model.parameters()), 3)


def accelerator_outside(where: str, start: int = 16, **options: Any) -> dict[str, Any]:  # noqa: ANN401  see find_executable_batch_size
    """As Accelerate's documents show it."""
    accelerator = Accelerator()
    tried = []

    @find_executable_batch_size(starting_batch_size=start, reduction="halve", **options)
    def train(batch_size: int) -> float:
        nonlocal accelerator
        accelerator.free_memory()
        tried.append(batch_size)
        return trained(accelerator, batch_size, where)

    total = train()
    after = accelerator.reduce(torch.ones(1)).item()
    return {"tried": tried, "total": total, "after": after}


def accelerator_inside(where: str, start: int = 16, **options: Any) -> dict[str, Any]:  # noqa: ANN401  see find_executable_batch_size
    tried = []

    @find_executable_batch_size(starting_batch_size=start, reduction="halve", **options)
    def train(batch_size: int) -> float:
        tried.append(batch_size)
        return trained(Accelerator(), batch_size, where)

    total = train()
    return {"tried": tried, "total": total, "after": Accelerator().reduce(torch.ones(1)).item()}
