"""What this process's machine offers: processors, ports, GPUs, libraries. No device is opened."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass

import torch

from ...devices import nvml
from ...devices.cuda import DEVICE as CUDA
from ...errors import TrainingError
from ...protocol import environment

DEFAULT_PORT = 29500
"""torchrun's (``torch/distributed/run.py``)."""


@dataclass
class CPUInformation:
    """Which rank a launcher made this process; one alone when none did."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def get_cpu_distributed_information() -> CPUInformation:
    """Which rank this process is, as torchrun, mpirun or srun told it."""
    rank = environment.read_rank()
    if rank is None:
        return CPUInformation()
    return CPUInformation(rank.rank, rank.world_size, rank.local_rank, rank.local_world_size)


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Those of the given modules that this process has imported."""
    return [name for name in library_names if name in sys.modules]


def get_current_device_type() -> tuple[str, str]:
    """The kind of accelerator that ranks would compute on, and the name of their `DistributedType`; CUDA's also where
    there is none.
    """
    if not CUDA.probe() and torch.backends.mps.is_available():
        return "mps", "NO"
    return "cuda", "MULTI_GPU"


def get_gpu_info() -> tuple[list[str], int]:
    """Names and number of the visible NVIDIA GPUs, as the driver tells them."""
    names = [device.name for device in CUDA.probe()]
    return names, len(names)


def get_driver_version() -> str:
    """Version of the NVIDIA driver. TrainingError when there is none."""
    version = nvml.driver_version(nvml.load())
    if version is None:
        raise TrainingError("no NVIDIA driver answers here.")
    return version


def is_port_in_use(port: int | None = None) -> bool:
    """Whether somebody listens on this machine's `port`; None: torchrun's default one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("localhost", DEFAULT_PORT if port is None else port)) == 0


def get_free_port() -> int:
    """A port that was free a moment ago. Another process may take it before you do: where you can, bind port 0 and ask
    which one it became.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
