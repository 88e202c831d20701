"""Look at all of it: what is here, what works, what to do. Takes some seconds, most of them the self-test's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ...devices import nvml
from ...errors import AccelNbError
from ...protocol import environment
from ...protocol.diagnosis import Diagnosis, Fact, Finding
from ...protocol.hardware import NodeHardware
from ...protocol.plan import LaunchRequest
from ..cuda_origin import WATCH, Origin
from ..planning import planner
from ..planning.hardware import probe_node
from ..servers.counting import counted_hardware
from . import gpus, leftovers, logs, machine, mpi_hosts, self_test, software

SETTINGS = ("ACCELERATE_", "ACCEL_NB_", "NCCL_", "GLOO_", "CUDA_", "TORCH_", "PYTORCH_", "OMP_", "PJRT_", "TPU_")
"""Variables with these beginnings decide how ranks start and talk. Those whose names speak of secrets are left out."""
_SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")


def examine(
    num_processes: int | None = None,
    device: str = "auto",
    devices: Sequence[int | str] | None = None,
    *,
    with_self_test: bool = True,
) -> Diagnosis:
    """This machine, this process, and a run on the ranks that the arguments choose, as `notebook_launcher` would.

    Without `num_processes`, and without accelerators, two CPU ranks. Without the self-test no process is started, but
    for the versions of MPI and ssh to configured hosts. Raises InvalidArgument for arguments that no
    machine could carry out; everything else becomes a finding.
    """
    chosen = None if devices is None else tuple(devices)
    request = LaunchRequest(num_processes=num_processes, device=device, devices=chosen)
    planner.check(request)
    variables = environment.current()
    unlogged = logs.problem()
    can_start = with_self_test and not unlogged
    hardware, uncounted = _counted(request) if can_start else (probe_node(), [])
    if num_processes is None and chosen is None and not (device in ("auto", "cuda") and hardware.devices):
        request = replace(request, num_processes=2)
    limits = machine.read_limits()
    listed = nvml.read_gpus(nvml.load())
    hosts = mpi_hosts.configured_hosts(variables, hardware)
    origin = WATCH.look()
    facts: list[Fact] = [
        *software.facts(),
        *mpi_hosts.facts(hardware, hosts),
        *machine.facts(hardware, limits),
        *gpus.facts(hardware, listed, counted=can_start and not uncounted),
        *_of_this_process(origin),
        *_settings(variables, hardware),
        *logs.facts(unlogged),
    ]
    found: list[Finding] = [
        *software.findings(),
        *mpi_hosts.findings(hosts, variables),
        *machine.findings(hardware, limits),
        *gpus.findings(hardware, listed, os.getpid()),
        *_about_cuda(origin, hardware),
        *leftovers.findings(leftovers.leftover_pids()),
        *logs.findings(unlogged),
        *uncounted,
    ]
    if can_start and not uncounted:
        outcome = self_test.try_out(request)
        facts += self_test.facts(outcome)
        found += self_test.findings(outcome, request, listed)
    return Diagnosis(facts=tuple(facts), findings=tuple(sorted(found, key=lambda one: one.severity != "problem")))


def _counted(request: LaunchRequest) -> tuple[NodeHardware, list[Finding]]:
    try:
        return counted_hardware(request, environment.current()), []
    except AccelNbError as error:
        problem = Finding(
            severity="problem",
            what="The process that forks ranks does not work, so that nothing can be launched.",
            why=str(error),
            remedy="The end of its log, above, names the reason: most often torch cannot be imported in a fresh "
            "interpreter.",
        )
        return probe_node(), [problem]


def _of_this_process(origin: Origin | None) -> Iterator[Fact]:
    yield Fact(group="this process", name="pid", value=str(os.getpid()))
    yield Fact(
        group="this process",
        name="CUDA",
        value="not initialised here" if origin is None else origin.sentence.rstrip("."),
    )


def _about_cuda(origin: Origin | None, hardware: NodeHardware) -> Iterator[Finding]:
    if origin is None or not origin.by_torch:
        return
    held = sum(device.kernel_used_bytes for device in hardware.devices.get("cuda", ()))
    yield Finding(
        severity="hint",
        what=origin.sentence,
        why="Launches of accel_nb work all the same, but what forks this process cannot use CUDA (start_method='fork', "
        "DataLoader workers, other launchers)"
        + (f"; {machine.gib(held)} are held on the devices, which ranks there lack." if held else "."),
        remedy="Restart the kernel to undo it, and leave that line out or move it into the function that is launched.",
    )


def _settings(variables: dict[str, str], hardware: NodeHardware) -> Iterator[Fact]:
    for name, value in sorted(variables.items()):
        if name.startswith(SETTINGS) and not any(word in name for word in _SECRETS):
            yield Fact(group="settings", name=name, value=value)
    saved = hardware.saved_config
    if saved is not None:
        keys = f" ({', '.join(saved.keys)})" if saved.keys else ""
        yield Fact(group="settings", name="configuration", value=f"{saved.path}{keys}")
