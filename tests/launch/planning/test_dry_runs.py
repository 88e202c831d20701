"""Plans of dry runs: CPU ranks in the place of any launch."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from accel_nb.devices import find_devices
from accel_nb.errors import NotEnoughDevices, PlanError, UnknownDevice
from accel_nb.launch.planning.dry_runs import MAX_RANKS, make_dry_run_plan
from accel_nb.protocol.hardware import NodeHardware
from accel_nb.protocol.plan import LaunchPlan, LaunchRequest

from .machines import CPU_ONLY, FOUR_GPUS, GIB, gpu, gpu_machine


def dry(hardware: NodeHardware = FOUR_GPUS, *, kernel_env: dict[str, str] | None = None, **asked: object) -> LaunchPlan:
    request = LaunchRequest(dry_run=True, **asked)  # type: ignore[arg-type]
    return make_dry_run_plan(request, hardware, kernel_env=kernel_env or {}, run_id="r1")


def test_ranks_run_on_the_cpu_with_every_device_hidden() -> None:
    planned = dry()

    assert [rank.device_label for rank in planned.ranks] == ["cpu"] * 4
    assert (planned.device_kind, planned.process_group) == ("cpu", "gloo")
    assert planned.env["CUDA_VISIBLE_DEVICES"] == ""
    assert planned.asked_num_processes is None


def test_the_devices_of_the_launch_are_kept_by_rank() -> None:
    machine = gpu_machine(gpu(0, memory_gib=40, used_gib=3), gpu(1))

    planned = dry(machine, devices=(1, 0), mixed_precision="bf16")

    assert planned.dry_run is not None
    (cuda,) = [kind for kind in find_devices() if kind.kind == "cuda"]
    first, second = planned.dry_run.devices
    assert (first.label, first.memory_bytes, first.used_bytes) == ("cuda:1 NVIDIA H100", 80 * GIB, 0)
    assert (second.label, second.memory_bytes, second.used_bytes) == ("cuda:0 NVIDIA H100", 40 * GIB, 3 * GIB)
    assert first.reserved_bytes == cuda.rank_overhead_bytes > GIB
    assert planned.mixed_precision == "bf16"


def test_cpu_ranks_share_the_machines_memory() -> None:
    planned = dry(CPU_ONLY, num_processes=4, device="cpu")

    assert planned.dry_run is not None
    assert {(one.label, one.memory_bytes, one.used_bytes, one.reserved_bytes) for one in planned.dry_run.devices} == {
        ("cpu", 8 * GIB, GIB // 2, 0)
    }


def test_what_it_is_about_is_told_first() -> None:
    first, *others = dry(gpu_machine(gpu(0, used_gib=20), gpu(1))).notable

    assert first == (
        "Dry run: one step on the CPU, to see what 2 ranks on cuda:0 NVIDIA H100, cuda:1 NVIDIA H100 would do."
    )
    assert "Others hold 20.0 GiB of 80.0 GiB on cuda:0 NVIDIA H100." in others


def test_more_ranks_than_this_machine_should_hold_models_are_cut_and_told() -> None:
    machine = gpu_machine(*(gpu(index) for index in range(MAX_RANKS + 1)))

    planned = dry(machine)

    assert planned.num_ranks == MAX_RANKS
    assert planned.dry_run is not None
    assert len(planned.dry_run.devices) == MAX_RANKS + 1
    assert planned.notable[1] == (
        "9 ranks are planned and 8 take part in the dry run, since each holds a model of its own in this machine's "
        "memory. What the function computes from the number of ranks differs."
    )


@pytest.mark.parametrize(
    ("asked", "kernel_env", "on"),
    [
        (None, {}, True),
        (True, {}, True),
        (False, {}, False),
        (None, {"ACCELERATE_DEBUG_MODE": "0"}, None),
        (True, {"ACCELERATE_DEBUG_MODE": "0"}, True),
    ],
)
def test_operations_are_checked_unless_somebody_does_not_want_it(
    asked: bool | None, kernel_env: dict[str, str], on: bool | None
) -> None:
    planned = dry(debug=asked, kernel_env=kernel_env)

    assert bool(planned.debug) == bool(on)
    assert planned.env.get("ACCELERATE_DEBUG_MODE") == (None if on is not None else "0")


def test_nothing_is_tried_again() -> None:
    assert dry(max_restarts=3).max_restarts == 0


def test_what_refuses_the_launch_refuses_its_dry_run() -> None:
    with pytest.raises(NotEnoughDevices, match=r"^num_processes=5, but box has 4 cuda devices"):
        dry(num_processes=5)
    with pytest.raises(UnknownDevice, match=r"^device='cuda': no cuda device can be used on box"):
        dry(CPU_ONLY, device="cuda")


def test_a_machine_that_tells_no_memory_is_planned_all_the_same() -> None:
    unknown = gpu_machine(replace(gpu(0), memory_bytes=0))

    planned = dry(unknown)

    assert planned.dry_run is not None
    assert planned.dry_run.devices[0].memory_bytes == 0


def test_a_memory_snapshot_is_part_of_the_launch_only() -> None:
    assert dry(memory_snapshot=True).memory_snapshot is False
    with pytest.raises(PlanError, match=r"^memory_snapshot=True records what is allocated on a GPU"):
        dry(CPU_ONLY, memory_snapshot=True)
