"""Hangs of ranks on two real GPUs: told with both lines, stacks from within NCCL, K02 and K14. Skipped without them."""

from __future__ import annotations

import time

import pytest
import torch

from accel_nb.protocol.plan import Timeouts
from tests.launch.census import wait_until
from tests.launch.launching import launch, start

NUM_GPUS = 2
SOON = Timeouts(stalled_s=2.0)
pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < NUM_GPUS, reason="needs two NVIDIA GPUs"),
    pytest.mark.timeout(300),
]


def sums_on_rank_0_while_1_is_busy(busy_s: float) -> float:
    import torch
    from torch import distributed

    from accel_nb import Accelerator

    accelerator = Accelerator()
    total = torch.ones(4, device=accelerator.device)
    if accelerator.is_main_process:
        distributed.all_reduce(total)
        return float(total.sum().item())  # the result is used
    time.sleep(busy_s)  # busy
    distributed.all_reduce(total)
    return float(total.sum().item())


def test_k02_the_wait_is_told_where_the_result_is_used() -> None:
    launched = launch(sums_on_rank_0_while_1_is_busy, 8.0, device="cuda", num_processes=NUM_GPUS, timeouts=SOON)

    assert launched.values == [8.0, 8.0]
    (first, *_) = [line for line in launched.text.splitlines() if "rank 1 is at" in line]
    assert "`time.sleep(busy_s)  # busy`" in first
    assert "test_hangs_on_gpus.py" in first.partition("rank 1")[0], "where rank 0 waits"


def test_k14_stacks_come_from_within_nccl() -> None:
    run = start(sums_on_rank_0_while_1_is_busy, 60.0, device="cuda", num_processes=NUM_GPUS, timeouts=SOON)
    try:
        wait_until(lambda: run.state.stalled is not None, 90, lambda: str(run))
        started = time.monotonic()

        stacks = run.stacks()

        assert time.monotonic() - started < 3
        assert all("sums_on_rank_0_while_1_is_busy" in stacks[rank] for rank in range(NUM_GPUS))
    finally:
        run.stop(0.0)
        assert run.wait(30)
