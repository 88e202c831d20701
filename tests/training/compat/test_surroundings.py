"""What the machine offers."""

from __future__ import annotations

import socket

import pytest

from accel_nb.devices.cuda import DEVICE
from accel_nb.errors import TrainingError
from accel_nb.training.compat.surroundings import (
    CPUInformation,
    are_libraries_initialized,
    get_cpu_distributed_information,
    get_current_device_type,
    get_driver_version,
    get_free_port,
    get_gpu_info,
    is_port_in_use,
)

NO_GPU = not DEVICE.probe()


def test_the_rank_of_this_process_is_told_whatever_launched_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_cpu_distributed_information() == CPUInformation()

    for name, value in {"RANK": 3, "SIZE": 4, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}.items():
        monkeypatch.setenv(f"MV2_COMM_WORLD_{name}", str(value))

    assert get_cpu_distributed_information() == CPUInformation(3, 4, 1, 2)


def test_imported_libraries_are_told() -> None:
    assert are_libraries_initialized("torch", "no_such_library") == ["torch"]


def test_a_port_is_in_use_while_somebody_listens() -> None:
    with socket.create_server(("localhost", 0)) as server:
        assert is_port_in_use(server.getsockname()[1])

    assert not is_port_in_use(get_free_port())


@pytest.mark.skipif(not NO_GPU, reason="for machines without an NVIDIA GPU")
def test_without_a_gpu() -> None:
    assert get_gpu_info() == ([], 0)
    assert get_current_device_type()[0] in {"cuda", "mps"}
    with pytest.raises(TrainingError, match="no NVIDIA driver answers here"):
        get_driver_version()


@pytest.mark.skipif(NO_GPU, reason="for machines with an NVIDIA GPU")
def test_gpus_are_told_by_the_driver() -> None:
    names, num_gpus = get_gpu_info()

    assert len(names) == num_gpus > 0
    assert get_driver_version().split(".")[0].isdecimal()
    assert get_current_device_type() == ("cuda", "MULTI_GPU")
