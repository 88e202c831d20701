from __future__ import annotations

import os

import pytest

from tests.launch.launching import on_ranks

pytestmark = pytest.mark.engines


def sum_of_ranks() -> tuple[str, float]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.full((1,), float(dist.get_rank()))
    dist.all_reduce(value)
    return os.environ["GROUP_WORLD_SIZE"], value.item()


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_a_launch_on_one_machine_may_name_a_rendezvous(backend: str) -> None:
    assert on_ranks(sum_of_ranks, rdzv_backend=backend) == [("1", 1.0)] * 2
