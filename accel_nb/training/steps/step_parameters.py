"""Which parameters a step is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from .optimizer import AcceleratedOptimizer


def parameters_of(optimizers: Iterable[Optimizer], models: Iterable[nn.Module] = ()) -> Iterable[torch.Tensor]:
    """Each parameter of `models` and `optimizers` once, in an order that is the same in every run of the program."""
    found: dict[int, torch.Tensor] = {id(one): one for model in models for one in model.parameters()}
    found |= {id(one): one for optimizer in optimizers for one in _own(optimizer)}
    return found.values()


def at_true_size(
    parameters: torch.Tensor | Iterable[torch.Tensor], optimizers: Sequence[AcceleratedOptimizer]
) -> torch.Tensor | Iterable[torch.Tensor]:
    """`parameters`, their fp16 gradients brought to their true size. Other optimizers' stay as they are: theirs may not
    be complete yet.
    """
    scaled = [one for one in optimizers if one.scaler is not None]
    if not scaled:
        return parameters
    wanted = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    ids = {id(one) for one in wanted}
    for optimizer in scaled:
        if any(id(one) in ids for one in _own(optimizer)):
            optimizer.unscale()
    return wanted


def _own(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
