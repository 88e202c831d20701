"""Look at this machine: CPUs, memory, devices, and what else decides a plan. Runs in the kernel, without torch."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
from msgspec.structs import replace

from ...devices import find_devices
from ...devices.xla import tpu_evidence
from ...protocol import environment
from ...protocol.hardware import DeviceInfo, NodeHardware, SavedConfig
from ..cgroups import read_limits


def probe_node() -> NodeHardware:
    """This machine as its drivers and the operating system describe it; torch's own count is laid over it by
    `with_counts`. Takes some milliseconds; may be called in any thread.
    """
    variables = environment.current()
    limits = read_limits()
    memory = psutil.virtual_memory()
    cpu_count = len(usable_cpus())
    found = {device.kind: device.probe() for device in find_devices()}
    ids = {device.kind: device.visible_ids(variables) for device in find_devices()}
    unusable = {device.kind: device.unusable_because() for device in find_devices()}
    return NodeHardware(
        host=socket.gethostname(),
        cpu_count=min(cpu_count, limits.cpus or cpu_count),
        memory_bytes=min(memory.total, limits.memory_bytes or memory.total),
        memory_available_bytes=min(
            memory.available, memory.available if limits.memory_free_bytes is None else limits.memory_free_bytes
        ),
        devices={kind: devices for kind, devices in found.items() if devices},
        visible_ids={kind: entries for kind, entries in ids.items() if entries is not None},
        unusable={kind: sentence for kind, sentence in unusable.items() if sentence},
        platform=sys.platform,
        tpu_evidence=tpu_evidence(),
        mpi_command=mpi_command(variables),
        saved_config=saved_config(variables),
    )


def with_counts(hardware: NodeHardware, counts: Mapping[str, int]) -> NodeHardware:
    """`hardware` with torch's count of each kind in `counts` obeyed: surplus devices are cut from the end, missing ones
    made up without figures, a kind of which torch can use none is gone. A contradiction leaves a note.
    """
    devices = {kind: found for kind, found in hardware.devices.items() if kind not in counts}
    notes = list(hardware.notes)
    for kind, count in counts.items():
        found = hardware.devices.get(kind, ())
        if count < len(found):
            notes.append(
                f"The driver lists {len(found)} {kind} device{'s' if len(found) != 1 else ''}, "
                f"but torch can use {count or 'none'} of them in this environment."
            )
        made_up = tuple(_made_up(hardware, kind, position) for position in range(len(found), count))
        if count:
            devices[kind] = (*found[:count], *made_up)
    return replace(hardware, devices=devices, notes=tuple(notes))


def mpi_command(variables: Mapping[str, str]) -> str:
    """Path of ``mpirun`` or ``mpiexec`` on PATH; empty without either."""
    search = variables.get("PATH", os.defpath)
    return shutil.which("mpirun", path=search) or shutil.which("mpiexec", path=search) or ""


def saved_config(variables: Mapping[str, str]) -> SavedConfig | None:
    """The file that ``accelerate config`` writes (``accelerate/commands/config/config_args.py``), if there is one."""
    cache = Path(variables.get("XDG_CACHE_HOME") or Path(variables.get("HOME") or "~").expanduser() / ".cache")
    path = Path(variables.get("HF_HOME") or cache / "huggingface") / "accelerate" / "default_config.yaml"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return SavedConfig(path=str(path), keys=tuple(_top_level_keys(text)))


def _top_level_keys(text: str) -> list[str]:
    """Keys of a mapping in YAML, or in JSON as ``write_basic_config`` writes it: the file is named, not obeyed yet."""
    if text.lstrip().startswith("{"):
        try:
            return list(json.loads(text))
        except ValueError:
            return []
    at_margin = (line.partition(":")[0] for line in text.splitlines() if ":" in line)
    return [key for key in at_margin if key.isidentifier()]


def usable_cpus() -> tuple[int, ...]:
    """Numbers of the CPUs that this process may run on."""
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except AttributeError:  # macOS
        return tuple(range(os.cpu_count() or 1))


def _made_up(hardware: NodeHardware, kind: str, position: int) -> DeviceInfo:
    """A device that torch counts and no driver describes: ROCm, WSL, a missing NVML."""
    entries = hardware.visible_ids.get(kind, ())
    if position >= len(entries):
        return DeviceInfo(index=position)
    entry = entries[position]
    return DeviceInfo(index=int(entry)) if entry.isdecimal() else DeviceInfo(index=position, uuid=entry)
