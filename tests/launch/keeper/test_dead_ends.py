"""Ranks that wait for ever: failures that name the cause."""

from __future__ import annotations

import threading

from accel_nb.devices.nvml import read_gpus
from accel_nb.launch.failures import cause_first
from accel_nb.launch.keeper.dead_ends import dead_end_failures, lost_peer_failures
from accel_nb.launch.keeper.hang_watch import DeadEnd
from accel_nb.launch.keeper.interconnect import interconnect_hint
from accel_nb.protocol.events import Whereabouts
from accel_nb.protocol.failure import Explanation, RankFailure
from accel_nb.protocol.ledger import ENDED
from accel_nb.protocol.plan import LaunchPlan, RankPlan
from tests.devices.fake_nvml import FakeGpu, FakeNvml
from tests.launch.keeper.noted import call, notes

PLACES = {
    rank: Whereabouts(rank=rank, state="waits", place=f"Cell In[3], line {7 + rank}", stack="the stack")
    for rank in range(3)
}
ALIKE = (
    "Every rank has to call the operations of all ranks, equally often and in the same order: keep them out of what "
    "only some ranks run (`if accelerator.is_main_process:`)"
)
EQUALLY_MANY = (
    ", and give all ranks equally many batches (prepared loaders do, unless even_batches=False) or wrap the loop into "
    "`with accelerator.join_uneven_inputs([model], even_batches=False)`."
)
TWO_GPUS = LaunchPlan(
    run_id="r", function_name="train", engine="local", device_kind="cuda", process_group="nccl",
    ranks=tuple(
        RankPlan(rank=rank, local_rank=rank, device_index=rank, device_label=f"cuda:{rank} H100")
        for rank in range(2)
    ),
    env={"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"},
)  # fmt: skip


def lost(rank: int, *, consequence: bool = True) -> RankFailure:
    return RankFailure(
        rank=rank, kind="raised", type_name="RuntimeError", message="Connection closed by peer", traceback="Traceback",
        location="Cell In[3], line 9", consequence=consequence, time_s=5.0,
        explanation=Explanation(meaning="A peer has gone.", remedy="Look for it."),
    )  # fmt: skip


def test_k02_a_rank_that_has_returned_is_the_cause() -> None:
    ranks = [notes(0, call(8)), notes(1, call(7), life=ENDED), notes(2, call(8))]

    failures = dead_end_failures(DeadEnd((0, 2), (1,)), ranks, PLACES)

    assert [failure.rank for failure in failures] == [0, 2]
    first = failures[0]
    assert (first.kind, first.location, first.stack) == ("dead_end", "Cell In[3], line 7", "the stack")
    assert first.message == f"waits for ever in gather (Cell In[3], line 7): rank 1 has returned. {ALIKE}."
    assert not first.consequence


def test_d16_loops_of_different_length() -> None:
    ranks = [notes(0, call(8), num_steps=7), notes(1, call(7), life=ENDED, num_steps=7)]

    (failure,) = dead_end_failures(DeadEnd((0,), (1,)), ranks, PLACES)

    assert failure.message == (
        "waits for ever in gather (Cell In[3], line 7): rank 1 has returned after 7 optimizer steps, rank 0 is in step "
        f"8. {ALIKE}{EQUALLY_MANY}"
    )


def test_k02_ranks_in_different_operations() -> None:
    ranks = [notes(0, call(3)), notes(1, call(3, "torch.distributed.all_reduce", given="[2] int64"))]

    failures = dead_end_failures(DeadEnd((0, 1), ()), ranks, PLACES)

    assert failures[1].message == (
        "waits for ever in torch.distributed.all_reduce (Cell In[3], line 8): the ranks are in operations that do not "
        "fit together: rank 0 in gather([4] float32) (Cell In[3], line 7), rank 1 in torch.distributed.all_reduce([2] "
        f"int64) (Cell In[3], line 8). {ALIKE}."
    )


def test_d16_a_lost_connection_to_a_rank_that_had_returned_is_explained() -> None:
    ranks = [notes(0, num_steps=7), notes(1, life=ENDED, num_steps=7), notes(2, life=ENDED, num_steps=6)]

    (failure,) = lost_peer_failures([lost(0)], ranks)

    assert failure.message == (
        "waited for a rank that had ended (Cell In[3], line 9): rank 1 has returned after 7 optimizer steps, rank 2 "
        f"has returned after 6 optimizer steps, rank 0 is in step 8. {ALIKE}{EQUALLY_MANY}"
    )
    assert (failure.kind, failure.traceback, failure.consequence) == ("dead_end", "Traceback", False)
    assert failure.explanation is None, "it says what the general one only supposes"
    assert cause_first([lost(1), failure])[0] is failure


def test_e05_a_lost_connection_to_a_rank_that_failed_stays_a_consequence() -> None:
    ranks = [notes(0), notes(1, life=ENDED), notes(2)]

    assert lost_peer_failures([lost(0), lost(2, consequence=False)], ranks) == []
    assert lost_peer_failures([lost(0), RankFailure(rank=2, kind="died")], ranks) == []
    assert lost_peer_failures([lost(0)], [notes(0), notes(1)]) == [], "nobody had returned"
    assert lost_peer_failures([lost(0, consequence=False)], ranks) == []


def test_k13_all_ranks_in_their_first_operation_shows_devices_and_switches() -> None:
    gpus = read_gpus(FakeNvml(FakeGpu("GPU-0"), FakeGpu("GPU-1", refuses=frozenset({"pci"}))))

    hint = interconnect_hint(TWO_GPUS, first=True, read_gpus=lambda: gpus)

    assert hint.startswith(
        "All ranks are in the first operation of their process group, so none of them is missing: rank 0 on cuda:0 "
        "H100 (PCI 00000000:3B:00.0), rank 1 on cuda:1 H100. "
    )
    for switch in ("NCCL_DEBUG", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE"):
        assert switch in hint
    assert interconnect_hint(TWO_GPUS, first=False, read_gpus=lambda: ()).startswith(
        "All ranks are in the same operation, so none"
    )


def test_k13_a_driver_that_does_not_answer_is_not_waited_for() -> None:
    answers = threading.Event()

    hint = interconnect_hint(TWO_GPUS, first=True, read_gpus=lambda: (answers.wait(60), ())[1])
    answers.set()

    assert "rank 0 on cuda:0 H100, rank 1 on cuda:1 H100." in hint
