"""From what was asked and what the machine has to what will be done: `LaunchRequest`, `NodeHardware` -> `LaunchPlan`.

Pure, but for `check`: nothing is looked up, started or bound here. All that is refused is refused here, before
anything starts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from ...devices import find_devices
from ...devices.device import Device
from ...errors import InvalidArgument
from ...protocol.environment import RESPECTED_NAMES, foreign_launcher
from ...protocol.hardware import DeviceInfo, NodeHardware
from ...protocol.plan import LaunchPlan, LaunchRequest, RankPlan
from .checks import check_platform, check_request, check_system, checked_port
from .device_choice import check_precision, check_recorder, choose_devices, choose_kind, choose_start_method, label
from .nodes import SEVERAL_NODES, engine_name, nodes_reasons, on_all_nodes
from .reasons import choice_reasons, device_reasons, removal_reasons, setting_sources, stale_reasons, threads_reason


def make_plan(
    request: LaunchRequest,
    hardware: NodeHardware,
    *,
    kernel_env: Mapping[str, str],
    run_id: str,
    kinds: Sequence[Device] | None = None,
) -> LaunchPlan:
    """The plan for `request` on `hardware`, which `with_counts` has corrected, under the kernel's environment.

    `kinds` are the device kinds to choose from; None: all that `find_devices` knows.
    Raises `PlanError` or one of its kinds (`InvalidArgument`, `UnknownDevice`, `NotEnoughDevices`,
    `EngineUnavailable`), whose text says what to change.
    """
    by_kind = {kind.kind: kind for kind in (find_devices() if kinds is None else kinds)}
    check_platform(hardware.platform)
    check_request(request, visibility_variables=[name for k in by_kind.values() for name in k.visibility_variables])
    kind = choose_kind(request, hardware, by_kind)
    check_precision(request, kind)
    check_recorder(request, kind)
    chosen = choose_devices(request, hardware, kind)
    start_method, start_told = choose_start_method(request, kind)
    num_ranks = len(chosen) if kind.one_rank_each else request.num_processes or 1
    cpu_threads, threads_told = _cpu_threads(request, hardware, kernel_env, num_ranks)
    removed = tuple(sorted(name for name in kernel_env if foreign_launcher(name) and name not in (request.env or {})))
    sources = setting_sources(request, hardware, kernel_env)
    limits = [
        *stale_reasons(request, kernel_env),
        *device_reasons(kind, chosen, hardware.kernel_cuda_origin),
        *removal_reasons(removed),
    ]
    plan = LaunchPlan(
        run_id=run_id,
        function_name=request.function_name,
        engine=engine_name(request),
        device_kind=kind.kind,
        process_group=kind.process_group,
        start_method=start_method,
        ranks=on_all_nodes(_ranks(hardware, kind, chosen, num_ranks, cpu_threads), request),
        env=_env(request, kernel_env, kind, chosen, by_kind.values()),
        env_removed=removed,
        reasons=(
            sources.settings,
            *sources.ignored,
            *choice_reasons(request, hardware, kind, chosen, num_ranks),
            *nodes_reasons(request),
            threads_told,
            *start_told,
            *limits,
        ),
        notable=(*sources.shown, *hardware.notes, *limits),
    )
    return _with_settings(plan, request)


def check(request: LaunchRequest) -> None:
    """Refuse what no machine could carry out, or this one never, whatever the engine: cheap, before the function is
    packed. Raises as `make_plan` does.
    """
    check_platform(sys.platform)
    check_system()
    check_request(request, visibility_variables=[name for kind in find_devices() for name in kind.visibility_variables])


def plan_line(plan: LaunchPlan) -> str:
    """One line for the user: ``2 ranks on cpu (asked: 2), gloo, 1 thread each, precision no``."""
    ranks = "1 rank" if plan.num_ranks == 1 else f"{plan.num_ranks} ranks"
    where = ", ".join(dict.fromkeys(rank.device_label for rank in plan.ranks))
    asked = "default" if plan.asked_num_processes is None else str(plan.asked_num_processes)
    if plan.engine == SEVERAL_NODES:
        asked = f"{asked} on each of {len({rank.node for rank in plan.ranks})} nodes"
    threads = plan.ranks[0].cpu_threads
    each = "1 thread" if threads == 1 else f"{threads} threads"
    return f"{ranks} on {where} (asked: {asked}), {plan.process_group}, {each} each, precision {plan.mixed_precision}"


def _with_settings(plan: LaunchPlan, request: LaunchRequest) -> LaunchPlan:
    """`plan` with what passes from the request unchanged."""
    return replace(
        plan,
        hostfile=request.hostfile,
        # Of the kernel, towards the hosts of the file.
        rendezvous_host=request.master_addr if request.backend == "mpi" else plan.rendezvous_host,
        rendezvous_port=checked_port(request) if request.num_nodes == 1 else None,
        mixed_precision=request.mixed_precision,
        debug=request.debug,
        memory_snapshot=request.memory_snapshot,
        max_restarts=request.max_restarts,
        monitor_interval=request.monitor_interval,
        returns=request.returns,
        on_failure=request.on_failure,
        log_line_prefix_template=request.log_line_prefix_template,
        timeouts=request.timeouts,
        asked_num_processes=request.num_processes,
    )


def _ranks(
    hardware: NodeHardware, kind: Device, chosen: Sequence[DeviceInfo], num_ranks: int, cpu_threads: int
) -> tuple[RankPlan, ...]:
    return tuple(
        RankPlan(
            rank=rank,
            local_rank=rank,
            host=hardware.host,
            device_index=rank if kind.one_rank_each else None,
            device_label=label(kind, chosen[rank]) if kind.one_rank_each else kind.kind,
            cpu_threads=cpu_threads,
        )
        for rank in range(num_ranks)
    )


def _env(
    request: LaunchRequest,
    kernel_env: Mapping[str, str],
    kind: Device,
    chosen: Sequence[DeviceInfo],
    kinds: Iterable[Device],
) -> dict[str, str]:
    """What the ranks get on top of the kernel's environment."""
    env = {name: kernel_env[name] for name in RESPECTED_NAMES if kernel_env.get(name)}
    if request.debug is None and "ACCELERATE_DEBUG_MODE" in kernel_env:
        env["ACCELERATE_DEBUG_MODE"] = kernel_env["ACCELERATE_DEBUG_MODE"]
    env |= request.env or {}
    if kind.one_rank_each:
        # Ranks of several machines, whose devices are numbered alike, share the variable.
        return env | kind.env_for(tuple(dict.fromkeys(chosen)))
    for other in kinds:
        env |= other.env_for(())
    return env


def _cpu_threads(
    request: LaunchRequest, hardware: NodeHardware, kernel_env: Mapping[str, str], num_ranks: int
) -> tuple[int, str]:
    """Threads of each rank, and why: the user's OMP_NUM_THREADS, else an equal share of the CPUs, at least 1."""
    share = max(1, hardware.cpu_count // num_ranks)
    for place, variables in (("env", request.env or {}), ("the kernel's environment", kernel_env)):
        text = variables.get("OMP_NUM_THREADS")
        if text is None:
            continue
        first = text.partition(",")[0].strip()  # OpenMP: one number per level of nesting
        if first.isdecimal() and int(first) > 0:
            return int(first), f"OMP_NUM_THREADS={text} of {place} decides about threads: {first} per rank."
        if place == "env":
            raise InvalidArgument(f"env: OMP_NUM_THREADS is {text!r}; give a whole number of at least 1.")
        break
    return share, threads_reason(share, num_ranks, hardware.cpu_count)
