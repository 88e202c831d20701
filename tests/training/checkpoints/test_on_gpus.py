"""Resuming on CUDA: generators of the devices, loss scale, gradients that wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_nb.devices.nvml import load, read_gpus

from .test_resume import assert_same
from .training_run import Case, train

RunRanks = Callable[..., list[Any]]

NUM_GPUS = len(read_gpus(load()))  # never torch.cuda: the process that forks ranks must not open it
pytestmark = [pytest.mark.gpu(2), pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs")]


@pytest.mark.parametrize("save_after", [3, 4, 6])
@pytest.mark.parametrize("mixed_precision", ["no", "bf16", "fp16"])
def test_a05_c01_two_gpus_go_on_to_the_bit(
    run_ranks: RunRanks, tmp_path: Path, mixed_precision: str, save_after: int
) -> None:
    case = Case(cpu=False, mixed_precision=mixed_precision)

    whole = run_ranks(lambda: train(case, tmp_path / "unused"), 2, cpu=False)
    first = run_ranks(lambda: train(case, tmp_path, save_after=save_after), 2, cpu=False)
    second = run_ranks(lambda: train(case, tmp_path, resume=True), 2, cpu=False)

    saved = {path.name for path in (tmp_path / "checkpoints" / "checkpoint_0").iterdir()}
    assert ("scaler.pt" in saved) == (mixed_precision == "fp16")
    for rank in range(2):
        assert_same(whole[rank], {**second[rank], "steps": first[rank]["steps"] + second[rank]["steps"]})
        assert all(torch.isfinite(weight).all() for weight in second[rank]["weights"])
