"""One sentence for each choice made on the user's behalf, and for each setting of theirs that is overruled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...devices.device import Device
from ...protocol.environment import foreign_launcher, is_server_key_variable
from ...protocol.hardware import DeviceInfo, NodeHardware
from ...protocol.plan import THE_CALL, LaunchRequest
from .device_choice import label, label_all

UNEQUAL_MEMORY = 0.02
"""GPUs of one model differ by a little, by what error correction and the driver take."""
CROWDED = 0.10
"""Memory held by others above this share of a device is told."""

_SETTINGS = (
    "num_processes", "num_nodes", "node_rank", "device", "devices", "backend", "hostfile", "mixed_precision",
    "master_addr", "use_port", "rdzv_backend", "rdzv_endpoint", "rdzv_conf", "rdzv_id", "max_restarts",
    "monitor_interval", "log_line_prefix_template", "env", "debug", "on_failure", "start_method", "returns", "dry_run",
    "memory_snapshot", "timeouts",
)  # fmt: skip


class Sources(NamedTuple):
    """Where the settings come from, as sentences."""

    settings: str
    ignored: tuple[str, ...]
    """Places that are not listened to."""
    elsewhere: bool
    """Something besides the call and the defaults has decided, or might be expected to."""

    @property
    def shown(self) -> tuple[str, ...]:
        """What the user should see without asking."""
        return (self.settings, *self.ignored) if self.elsewhere else ()


def setting_sources(request: LaunchRequest, hardware: NodeHardware, kernel_env: Mapping[str, str]) -> Sources:
    default = LaunchRequest()
    given = [name for name in _SETTINGS if name in request.origins or getattr(request, name) != getattr(default, name)]
    passed = _passed_on(request, kernel_env)
    by_origin: dict[str, list[str]] = {}
    for name in given:
        by_origin.setdefault(request.origins.get(name, THE_CALL), []).append(name)
    parts = [f"{_listed(names)} from {origin}" for origin, names in by_origin.items()]
    if passed:
        parts.append(f"{_listed([f'{name}={kernel_env[name]}' for name in passed])} from the kernel's environment")
    ignored = [*request.notices, *_other_file(request, hardware), *_overruled(request, kernel_env)]
    settings = f"Settings: {', '.join(parts)}, the rest are defaults." if parts else "Settings: all defaults."
    return Sources(settings, tuple(ignored), elsewhere=bool(passed or ignored or request.settings_file))


def _passed_on(request: LaunchRequest, kernel_env: Mapping[str, str]) -> list[str]:
    """Accelerate's variables that the ranks get as they are; both our training layer and upstream's obey them."""
    written = {"ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU"}
    if request.debug is not None:
        written.add("ACCELERATE_DEBUG_MODE")
    decided = written | (request.env or {}).keys()
    return sorted(name for name in kernel_env if name.startswith("ACCELERATE_") and name not in decided)


def _other_file(request: LaunchRequest, hardware: NodeHardware) -> list[str]:
    saved = hardware.saved_config
    if saved is None or request.settings_file in ("", saved.path):
        return []
    return [f"Ignored: {saved.path}; {request.settings_file} is read instead."]


def _overruled(request: LaunchRequest, kernel_env: Mapping[str, str]) -> list[str]:
    told = []
    overruled = {
        "ACCELERATE_MIXED_PRECISION": (request.mixed_precision, f"mixed_precision={request.mixed_precision!r}"),
        "ACCELERATE_USE_CPU": ("", f"device={request.device!r}"),
    }
    if request.debug is not None:
        overruled["ACCELERATE_DEBUG_MODE"] = ("", f"debug={request.debug!r}")
    for name, (same, setting) in overruled.items():
        if kernel_env.get(name, same) != same and name not in request.origins.values():
            told.append(f"Ignored: {name}={kernel_env[name]} of the kernel's environment; {setting} decides.")
    return told


def stale_reasons(request: LaunchRequest, kernel_env: Mapping[str, str]) -> list[str]:
    """Variables of `env` that ranks forked from the kernel are given too late."""
    if request.start_method != "fork":
        return []
    # The threads of each rank are set by us, whatever has been loaded.
    stale = [
        name
        for name, value in sorted((request.env or {}).items())
        if is_server_key_variable(name) and name != "OMP_NUM_THREADS" and kernel_env.get(name) != value
    ]
    if not stale:
        return []
    text = (
        f"start_method='fork': {_listed(stale)} of env may do nothing; such variables are read when Python or a "
        "library is loaded, and ranks are copies of this kernel, which has done that. Leave start_method out and "
        "they count."
    )
    return [text]


def choice_reasons(
    request: LaunchRequest, hardware: NodeHardware, kind: Device, chosen: Sequence[DeviceInfo], num_ranks: int
) -> list[str]:
    """Engine, device kind, number of ranks, which devices."""
    told = list(hardware.notes)
    visible = hardware.devices.get(kind.kind, ())
    if request.backend == "auto":
        told.append("backend='auto': ranks are processes of this machine.")
    if request.device == "auto":
        found = f"{len(visible)} visible" if kind.one_rank_each else "no accelerator can be used"
        told.append(f"device='auto': {kind.kind}, {found}.")
    if hardware.tpu_evidence and kind.kind != "tpu":
        told.append(f"The TPU of this machine ({hardware.tpu_evidence}) is not used: device={request.device!r}.")
    if request.num_processes is None and request.devices is None:
        told.append(
            f"num_processes left out: one rank per visible {kind.kind} device, {num_ranks}."
            if kind.one_rank_each
            else f"num_processes left out: 1 rank on the {kind.kind.upper()}."
        )
    if kind.one_rank_each and request.devices is None and len(chosen) < len(visible):
        told.append(f"devices left out: the first {len(chosen)} of {len(visible)}, {label_all(kind, chosen)}.")
    if not kind.one_rank_each and num_ranks > hardware.cpu_count:
        told.append(f"{num_ranks} ranks share {_cpus(hardware.cpu_count)}: they take turns.")
    return told


def device_reasons(kind: Device, chosen: Sequence[DeviceInfo], kernel_cuda_origin: str = "") -> list[str]:
    """Unequal devices, and memory on them that is not free; `kernel_cuda_origin` as in `NodeHardware`."""
    told = []
    sizes = [device.memory_bytes for device in chosen if device.memory_bytes]
    names = {device.name for device in chosen if device.name}
    if len(names) > 1 or (sizes and min(sizes) < (1 - UNEQUAL_MEMORY) * max(sizes)):
        listing = ", ".join(f"{label(kind, device)} {_gib(device.memory_bytes)}" for device in chosen)
        told.append(
            f"The devices are unequal ({listing}): the smallest memory, {_gib(min(sizes, default=0))}, caps the batch, "
            "the slowest device sets the pace."
        )
    for device in chosen:
        name = label(kind, device)
        if device.kernel_used_bytes:
            since = f" (CUDA initialised: {kernel_cuda_origin})" if kernel_cuda_origin else ""
            told.append(
                f"This kernel itself holds {_gib(device.kernel_used_bytes)} on {name}{since}, which the rank there "
                "cannot use; delete what holds it and call torch.cuda.empty_cache(), or restart the kernel."
            )
        others = device.memory_used_bytes - device.kernel_used_bytes
        if device.memory_bytes and others > CROWDED * device.memory_bytes:
            told.append(f"Others hold {_gib(others)} of {_gib(device.memory_bytes)} on {name}.")
    return told


def threads_reason(cpu_threads: int, num_ranks: int, cpu_count: int) -> str:
    ranks = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
    return f"{_threads(cpu_threads)} per rank: {_cpus(cpu_count)} for {ranks}."


def removal_reasons(removed: Sequence[str]) -> list[str]:
    """Which other launcher's variables the ranks do not get to see."""
    by_launcher: dict[str, list[str]] = {}
    for name in removed:
        by_launcher.setdefault(foreign_launcher(name), []).append(name)
    return [
        f"Hidden from the ranks: {_listed(names)}; {launcher} uses such variables to number its own processes."
        for launcher, names in by_launcher.items()
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def _cpus(count: int) -> str:
    return "1 CPU" if count == 1 else f"{count} CPUs"


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes else "unknown"
