"""What a loop on several ranks uses without having prepared it: trained all the same, but each rank by itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..models.unwrapping import unwrap
from .optimizer import AcceleratedOptimizer
from .step_parameters import parameters_of


class UnpreparedWarning(UserWarning):
    """Something that should have been given to `Accelerator.prepare` was not."""


def warn_of_forgotten(
    models: Sequence[nn.Module], optimizers: Sequence[AcceleratedOptimizer], num_loaders: int, num_ranks: int
) -> None:
    """One warning for each thing that was not prepared, as seen after a backward. Once per training."""
    for sentence in _forgotten(models, optimizers, num_loaders, num_ranks):
        warnings.warn(f"{sentence} Give it to accelerator.prepare.", UnpreparedWarning, stacklevel=3)


def warn_of_forgotten_optimizer(scheduler: LRScheduler, optimizers: Sequence[Optimizer]) -> None:
    warnings.warn(
        f"{type(scheduler).__name__} sets the learning rate of {_name(scheduler.optimizer)}, an optimizer that was not "
        f"prepared; it will follow {len(optimizers)} prepared ones instead. Prepare both in one call of "
        "accelerator.prepare.",
        UnpreparedWarning,
        stacklevel=4,
    )


def _forgotten(
    models: Sequence[nn.Module], optimizers: Sequence[AcceleratedOptimizer], num_loaders: int, num_ranks: int
) -> Iterator[str]:
    prepared = {id(one) for one in parameters_of((), models)}
    for optimizer in optimizers:
        own = parameters_of([optimizer])
        if any(one.grad is not None and id(one) not in prepared for one in own):
            yield (
                f"{_name(optimizer.optimizer)} trains a model that was not prepared: its gradients are not averaged "
                f"over the {num_ranks} ranks."
            )
    stepped = {id(one) for one in parameters_of(optimizers)}
    for model in models:
        # Parameters that nobody steps may have gradients, too, as where only a head is trained.
        trained = [id(one) for one in model.parameters() if one.grad is not None]
        if trained and not stepped.intersection(trained):
            yield (
                f"the optimizer of {type(unwrap(model)).__name__} was not prepared: it steps at every micro-batch, and "
                "whether gradients are finite or not."
            )
    if not num_loaders:
        yield f"no DataLoader was prepared: unless data are shared out by other means, all {num_ranks} ranks read all."


def _name(optimizer: Optimizer) -> str:
    return type(optimizer).__name__
