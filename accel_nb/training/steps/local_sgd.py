"""Local SGD: ranks train by themselves, and average their models every few steps (Stich, arXiv:1805.09767)."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

import torch
from torch import nn

from ..models.parallel import without_synchronisation
from ..ranks.rank_member import RankMember


class LocalSGD:
    """A block in which gradients of `model` stay with each rank. Its parameters are averaged over the ranks at every
    `local_sgd_steps`-th `step`, and at the end of the block. Every rank must call `step` as often.

    Optimizer state and buffers are each rank's own. A block that is left by an exception averages nothing: the other
    ranks are not there. ValueError for a number of steps below 1.

    Args:
        accelerator: what prepared `model`.
        model: as `prepare` gave it.
        local_sgd_steps: calls of `step` between two averages.
        enabled: False: `model` trains as it does outside the block, and so it does where there is one rank.
    """

    def __init__(
        self, accelerator: RankMember, model: nn.Module, local_sgd_steps: int, enabled: bool = True
    ) -> None:  # fmt: skip
        if local_sgd_steps < 1:
            raise ValueError(f"local_sgd_steps={local_sgd_steps!r} must be at least 1.")
        self.accelerator, self.model, self.local_sgd_steps = accelerator, model, local_sgd_steps
        self.enabled = enabled and accelerator.use_distributed
        self.num_steps = 0
        """Calls of `step` so far."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self.enabled:
            self._stack.enter_context(without_synchronisation(self.model))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if error is None:
                self._average()

    def step(self) -> None:
        """One optimizer step was taken."""
        self.num_steps += 1
        if self.num_steps % self.local_sgd_steps == 0:
            self._average()

    def _average(self) -> None:
        if not self.enabled:
            return
        parameters = list(self.model.parameters())
        averages = self.accelerator.collectives.reduce([one.detach() for one in parameters], "mean", 1.0)
        with torch.no_grad():
            for parameter, average in zip(parameters, averages, strict=True):
                parameter.copy_(average)
