"""Autocast and scaler without an Accelerator's own."""

from __future__ import annotations

import torch

from accel_nb.training.accelerator import Accelerator
from accel_nb.training.steps.amp import get_grad_scaler, get_mixed_precision_context_manager


def test_the_block_computes_in_the_accelerators_precision_only_if_asked() -> None:
    Accelerator(cpu=True, mixed_precision="bf16")
    matrix = torch.ones(2, 2)

    with get_mixed_precision_context_manager(native_amp=True):
        assert (matrix @ matrix).dtype == torch.bfloat16
    with get_mixed_precision_context_manager():
        assert (matrix @ matrix).dtype == torch.float32


def test_a_scaler_is_made_for_this_ranks_device() -> None:
    Accelerator(cpu=True)

    scaler = get_grad_scaler(init_scale=8.0)

    assert scaler.get_scale() == 8.0
    assert scaler.scale(torch.ones(1)).item() == 8.0
