from __future__ import annotations

import pytest

from accel_nb.launch.engines.remote.placing import placed
from accel_nb.protocol.plan import LaunchPlan, RankPlan
from accel_nb.protocol.remote import AgentHello

pytestmark = pytest.mark.engines


def test_a_host_with_fewer_devices_than_ranks_is_named_before_the_run_begins() -> None:
    plan = LaunchPlan(
        run_id="r",
        function_name="train",
        engine="mpi",
        device_kind="cuda",
        process_group="nccl",
        ranks=tuple(RankPlan(rank=rank, local_rank=rank, device_index=rank) for rank in range(4)),
    )
    hellos = {
        seat: AgentHello(
            seat=seat, place="one", host="node7", pid=1, versions={}, address="10.0.0.7", interface="eth0",
            devices={"cuda": ("NVIDIA H100", "NVIDIA H100")},
        )
        for seat in range(4)
    }  # fmt: skip

    with pytest.raises(ValueError, match="node7 has 2 cuda devices and is to run 4 ranks; each needs one of its own"):
        placed(plan, [(rank,) for rank in range(4)], hellos)
