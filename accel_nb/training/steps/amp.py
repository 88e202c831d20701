"""Autocast and gradient scaler for loops that do without an `Accelerator`'s own."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..ranks.distributed_type import DistributedType
from ..ranks.state import AcceleratorState, PartialState
from ..settings import AutocastKwargs


def get_mixed_precision_context_manager(
    native_amp: bool = False, autocast_kwargs: AutocastKwargs | None = None
) -> AbstractContextManager[object]:
    """Compute the block in the `Accelerator`'s precision; without `native_amp`, in the model's own dtypes."""
    if not native_amp:
        return nullcontext()
    state = AcceleratorState()
    return state.precision.autocast(state.device, autocast_kwargs)


def get_grad_scaler(distributed_type: DistributedType | None = None, **kwargs: Any) -> torch.amp.GradScaler:  # noqa: ANN401
    """``torch.amp.GradScaler(**kwargs)`` for this rank's device. `distributed_type` changes nothing for what this
    version runs.
    """
    del distributed_type
    return torch.amp.GradScaler(PartialState().device.type, **kwargs)
