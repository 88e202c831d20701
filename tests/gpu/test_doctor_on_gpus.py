"""The doctor and what initialised CUDA, on real GPUs. Skipped without."""

from __future__ import annotations

import pytest

from accel_nb.devices.nvml import load, read_gpus
from accel_nb.launch.doctor import self_test
from accel_nb.launch.doctor.self_test import try_out
from accel_nb.protocol.plan import LaunchRequest
from tests.notebook_kernel import NotebookKernel

NUM_GPUS = len(read_gpus(load()))
pytestmark = [
    pytest.mark.skipif(NUM_GPUS < 1, reason="needs a GPU"),
    pytest.mark.timeout(300),
]
two_gpus = pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs")


def origin(kernel: NotebookKernel) -> object:
    kernel.ok("from accel_nb.launch.cuda_origin import WATCH; seen = WATCH.look()", timeout_s=60)
    return kernel.value("None if seen is None else [seen.cell, seen.by_torch, seen.place]")


def test_w23_a_tensor_on_the_gpu_has_its_cell_and_line(kernel: NotebookKernel) -> None:
    kernel.ok("%load_ext accel_nb")
    kernel.ok("import torch", timeout_s=60)
    assert origin(kernel) is None
    kernel.ok("def move():\n    return torch.zeros(1, device='cuda')\n\nheld = move()", timeout_s=60)

    assert origin(kernel) == ["In[5]", True, "Cell In[5], line 2"]


def test_w23_the_driver_opened_by_another_library_is_seen(kernel: NotebookKernel) -> None:
    kernel.ok("%load_ext accel_nb")
    kernel.ok("import ctypes\nassert ctypes.CDLL('libcuda.so.1').cuInit(0) == 0")

    assert origin(kernel) == ["In[2]", False, "Cell In[2]"]


def test_l04_a_look_leaves_cuda_alone(kernel: NotebookKernel) -> None:
    kernel.ok("import accel_nb\nfound = accel_nb.doctor()", timeout_s=200)

    assert origin(kernel) is None
    assert kernel.value("'torch' in __import__('sys').modules") is False
    assert kernel.value("found.healthy") is True, kernel.value("str(found)")


@two_gpus
def test_k13_two_gpus_exchange_numbers_and_show_their_slots() -> None:
    request = LaunchRequest(num_processes=2, device="cuda")

    outcome = try_out(request)

    assert outcome.trouble == ""
    (fact,) = self_test.facts(outcome)
    assert "met over nccl and exchanged right numbers" in fact.value
    assert all(gpu.pci_bus_id for gpu in read_gpus(load()))


@two_gpus
def test_k13_a_broken_interface_of_nccl_is_explained_with_slots() -> None:
    broken = LaunchRequest(num_processes=2, device="cuda", env={"NCCL_SOCKET_IFNAME": "=nosuch0"})

    outcome = try_out(broken)
    (finding,) = self_test.findings(outcome, broken, read_gpus(load()))

    assert "NCCL_SOCKET_IFNAME" in finding.remedy
    assert finding.why.count("(PCI ") == 2
