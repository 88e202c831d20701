"""What a checkpoint is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from ..data.prepared import PreparedLoader
from ..steps.optimizer import AcceleratedOptimizer
from ..steps.step_parameters import parameters_of
from .progress import Progress


@runtime_checkable
class HasState(Protocol):
    """Anything whose state can be put aside and taken up again, by torch's convention."""

    def state_dict(self) -> Any: ...  # noqa: ANN401  each has its own kind
    def load_state_dict(self, state_dict: Any) -> Any: ...  # noqa: ANN401


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that training consists of, in the order in which it was prepared or registered."""

    models: Sequence[nn.Module] = ()
    """As they were before they were prepared, as upstream's: so their states have the user's names."""
    optimizers: Sequence[AcceleratedOptimizer] = ()
    schedulers: Sequence[HasState] = ()
    loaders: Sequence[PreparedLoader] = ()
    scaler: torch.amp.GradScaler | None = None
    custom: Sequence[HasState] = ()
    progress: Progress
    """Where the loop of this rank stands."""

    def parameters(self) -> Iterable[torch.Tensor]:
        """Each parameter once, in an order that is the same in every run of the program."""
        return parameters_of(self.optimizers, self.models)


def name_of(thing: object) -> str:
    """What its class or function is called."""
    return getattr(thing, "__qualname__", type(thing).__qualname__)
