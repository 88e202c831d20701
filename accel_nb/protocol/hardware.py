"""What a machine has, as data: read by the planner, shown by the panel."""

from __future__ import annotations

import msgspec


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator as the machine names it."""

    index: int
    """Position in the machine's own numbering, before any visibility variable."""
    uuid: str = ""
    """The vendor's stable id (``GPU-...``); empty when the probe cannot know it."""
    name: str = ""
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    """In use by anybody at the time of the probe."""
    kernel_used_bytes: int = 0
    """Of that, held by the process that probed: the notebook's own kernel."""


class DeviceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How one accelerator is used at one moment."""

    memory_bytes: int
    memory_used_bytes: int
    """In use by anybody."""
    utilization: float | None = None
    """Part of the time in which it computed for anybody, between 0 and 1; None: the driver does not tell."""
    holders: tuple[tuple[int, int], ...] = ()
    """(pid, bytes) of the processes that hold memory, as far as the driver tells; in a container pids may be the
    host's."""


class SavedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What ``accelerate config`` once wrote on this machine."""

    path: str
    keys: tuple[str, ...] = ()
    """Its top-level keys, in the file's order."""


class NodeHardware(msgspec.Struct, frozen=True, kw_only=True):
    """One machine. Figures respect the control group the process lives in."""

    host: str
    cpu_count: int
    """CPUs this process may use: affinity mask and cgroup quota applied, at least 1."""
    memory_bytes: int
    """Physical memory, or the cgroup's limit when that is lower."""
    memory_available_bytes: int
    devices: dict[str, tuple[DeviceInfo, ...]] = {}
    """Device kind -> devices visible to this process, in visible order. A kind that is absent has none."""
    visible_ids: dict[str, tuple[str, ...]] = {}
    """Device kind -> entries of the kernel's visibility variable, as written. A kind that is absent is unrestricted."""
    unusable: dict[str, str] = {}
    """Device kind -> why devices of it that are here cannot be used, a sentence."""
    notes: tuple[str, ...] = ()
    """Sentences for the user about figures that contradict each other."""
    platform: str = "linux"
    """``sys.platform`` of the machine."""
    kernel_cuda_origin: str = ""
    """Where the kernel initialised CUDA (``Cell In[3], line 2``); empty when it has not, or nobody saw it."""
    tpu_evidence: str = ""
    """What shows that a TPU is here (``PJRT_DEVICE=TPU``, a device file); empty when nothing does."""
    mpi_command: str = ""
    """Path of ``mpirun`` or ``mpiexec``; empty when neither is on PATH."""
    saved_config: SavedConfig | None = None
    """None: no configuration file of Accelerate exists."""
