"""What NVML says against what torch says, on real GPUs. Each question is asked in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from accel_nb.devices.cuda import CudaDevice
from accel_nb.devices.nvml import load, read_gpus
from accel_nb.launch.planning.hardware import probe_node, with_counts
from accel_nb.launch.planning.planner import make_plan
from accel_nb.protocol.plan import LaunchRequest

NUM_GPUS = len(read_gpus(load()))
pytestmark = [pytest.mark.gpu(1), pytest.mark.skipif(NUM_GPUS < 1, reason="needs a GPU")]
two_gpus = pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs")

TORCHS_VIEW = """
import json, torch
properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
print(json.dumps([[f"GPU-{p.uuid}", p.name, p.total_memory] for p in properties]))
"""


def asked(code: str, **variables: str) -> object:
    environment = {**os.environ, **variables}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return msgspec.json.decode(answer.stdout, type=object)


def seen_by_torch(**variables: str) -> list[tuple[str, str, int]]:
    """Id, name and memory of each device, in torch's order, in a process with `variables` added."""
    return msgspec.convert(asked(TORCHS_VIEW, **variables), list[tuple[str, str, int]])


def test_the_probe_agrees_with_torch_about_order_names_and_memory() -> None:
    seen = seen_by_torch()
    found = CudaDevice().probe()

    assert [(info.uuid, info.name) for info in found] == [entry[:2] for entry in seen]
    for info, (_, _, total) in zip(found, seen, strict=True):
        assert abs(info.memory_bytes - total) < 0.05 * total
        assert 0 <= info.memory_used_bytes <= info.memory_bytes


def test_counting_agrees_with_the_probe() -> None:
    code = "import json; from accel_nb.devices import count_devices; print(json.dumps(count_devices()))"

    assert msgspec.convert(asked(code), dict[str, int])["cuda"] == len(CudaDevice().probe())


def test_probing_opens_no_context() -> None:
    code = (
        "import json; from accel_nb.devices.cuda import DEVICE; from accel_nb.devices.nvml import has_cuda_open\n"
        "DEVICE.probe(); print(json.dumps(has_cuda_open()))"
    )

    assert asked(code) is False


def test_what_the_kernel_holds_is_seen() -> None:
    code = (
        "import json, torch; from accel_nb.devices.cuda import DEVICE\n"
        "held = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')\n"
        "print(json.dumps([info.kernel_used_bytes for info in DEVICE.probe()]))"
    )

    held, *others = msgspec.convert(asked(code), list[int])

    assert held >= 1 << 30
    assert set(others) <= {0}


@two_gpus
def test_l14_a_plans_order_is_the_order_torch_sees() -> None:
    hardware = with_counts(probe_node(), {"cuda": NUM_GPUS})
    plan = make_plan(LaunchRequest(devices=(1, 0)), hardware, kernel_env={}, run_id="r1")

    seen = [entry[0] for entry in seen_by_torch(**plan.env)]

    assert seen == [hardware.devices["cuda"][1].uuid, hardware.devices["cuda"][0].uuid]


@two_gpus
def test_l14_a_kernel_that_sees_one_is_planned_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = CudaDevice().probe()
    with monkeypatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "1")
        plan = make_plan(LaunchRequest(), probe_node(), kernel_env={"CUDA_VISIBLE_DEVICES": "1"}, run_id="r1")

    assert plan.env["CUDA_VISIBLE_DEVICES"] == everything[1].uuid
    assert [entry[0] for entry in seen_by_torch(**plan.env)] == [everything[1].uuid]


def test_l17_a_cpu_plan_hides_every_gpu() -> None:
    plan = make_plan(LaunchRequest(device="cpu"), probe_node(), kernel_env={}, run_id="r1")

    assert seen_by_torch(**plan.env) == []
