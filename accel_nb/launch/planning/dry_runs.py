"""The plan of a dry run: CPU ranks that stand in for those of the launch that was asked for, which is planned as well.

Pure, like the planner. Everything that would refuse the real launch refuses its dry run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ...devices import find_devices
from ...devices.device import Device
from ...protocol.hardware import DeviceInfo, NodeHardware
from ...protocol.plan import DryRunPlan, LaunchPlan, LaunchRequest, PlannedDevice
from .device_choice import choose_devices
from .planner import make_plan

MAX_RANKS = 8
"""Each rank holds a model, gradients and optimizer state of its own in this machine's memory. As many as planned, where
that is possible: batch sizes are often computed from the number of ranks, and mistakes depend on it."""


def make_dry_run_plan(
    request: LaunchRequest,
    hardware: NodeHardware,
    *,
    kernel_env: Mapping[str, str],
    run_id: str,
    kinds: Sequence[Device] | None = None,
) -> LaunchPlan:
    """The plan for one step on the CPU instead of `request`. Arguments and errors as in `make_plan`."""
    kinds = find_devices() if kinds is None else kinds
    planned = make_plan(request, hardware, kernel_env=kernel_env, run_id=run_id, kinds=kinds)
    # Checks are the point, unless somebody has said that they are not wanted.
    undecided = request.debug is None and "ACCELERATE_DEBUG_MODE" not in kernel_env
    stand_in = replace(
        request,
        device="cpu",
        devices=None,
        num_processes=min(planned.num_ranks, MAX_RANKS),
        max_restarts=0,
        memory_snapshot=False,
        debug=True if undecided else request.debug,
    )
    plan = make_plan(stand_in, hardware, kernel_env=kernel_env, run_id=run_id, kinds=kinds)
    (kind,) = [kind for kind in kinds if kind.kind == planned.device_kind]
    told = _told(planned, plan)
    devices = choose_devices(request, hardware, kind)
    return replace(
        plan,
        reasons=(*told, *planned.reasons),
        notable=(*told, *planned.notable),
        asked_num_processes=request.num_processes,
        dry_run=DryRunPlan(devices=_planned_devices(planned, kind, devices, hardware)),
    )


def _planned_devices(
    planned: LaunchPlan, kind: Device, devices: Sequence[DeviceInfo], hardware: NodeHardware
) -> tuple[PlannedDevice, ...]:
    if not kind.one_rank_each:
        share = PlannedDevice(
            label=kind.kind,
            memory_bytes=hardware.memory_bytes // planned.num_ranks,
            used_bytes=(hardware.memory_bytes - hardware.memory_available_bytes) // planned.num_ranks,
        )
        return (share,) * planned.num_ranks
    return tuple(
        PlannedDevice(
            label=rank.device_label,
            memory_bytes=device.memory_bytes,
            used_bytes=device.memory_used_bytes,
            reserved_bytes=kind.rank_overhead_bytes,
        )
        for rank, device in zip(planned.ranks, devices, strict=True)
    )


def _told(planned: LaunchPlan, plan: LaunchPlan) -> list[str]:
    where = ", ".join(dict.fromkeys(rank.device_label for rank in planned.ranks))
    told = [f"Dry run: one step on the CPU, to see what {_ranks(planned.num_ranks)} on {where} would do."]
    if plan.num_ranks < planned.num_ranks:
        told.append(
            f"{_ranks(planned.num_ranks)} are planned and {plan.num_ranks} take part in the dry run, since each holds "
            "a model of its own in this machine's memory. What the function computes from the number of ranks differs."
        )
    return told


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
