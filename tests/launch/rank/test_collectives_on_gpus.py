"""The checks over NCCL, where ranks do not wait for each other before torch's operations. Needs two NVIDIA GPUs."""

from __future__ import annotations

import pytest
import torch

from ..launching import launch, on_ranks
from . import collective_code as code

pytestmark = [
    pytest.mark.gpu(2),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs"),
    pytest.mark.timeout(300),
]

SOON_S = 2.0


def test_k01_operations_that_differ_are_refused_on_every_rank_over_nccl() -> None:
    for outcomes in on_ranks(code.ours_that_differ, device="cuda"):
        kinds = {name: kind for name, (kind, _, _) in outcomes.items()}
        assert kinds == dict.fromkeys(outcomes, "DistributedOperationException")
        assert max(took_s for _, _, took_s in outcomes.values()) < SOON_S


def test_k01_an_operation_of_torch_that_differs_ends_the_run_over_nccl() -> None:
    launched = launch(code.all_reduce_of_unequal_length, device="cuda")

    cause = launched.failure.failures[0]
    assert cause.type_name == "accel_nb.errors.DistributedOperationException"
    assert "torch.distributed.all_reduce needs the same structure, shapes and dtypes" in cause.message
    assert launched.run.state.duration_s < 60
