"""Intel's and Apple's GPUs, on stand-ins for torch's namespaces: no such hardware has run a rank of ours yet."""

from __future__ import annotations

import platform
from typing import Any

import pytest
import torch

from accel_nb.devices.device import DeviceMemory
from accel_nb.devices.mps import MpsDevice
from accel_nb.devices.xpu import XpuDevice
from accel_nb.launch.planning.planner import make_plan
from accel_nb.protocol.hardware import DeviceInfo, NodeHardware
from accel_nb.protocol.plan import LaunchPlan, LaunchRequest
from tests.launch.planning.machines import CPU_ONLY

from .stand_ins import FakeNamespace


class StandInXpu(XpuDevice):
    def __init__(self, num_devices: int = 2) -> None:
        self.fake = FakeNamespace(num_devices)

    def namespace(self) -> Any:  # noqa: ANN401
        return self.fake

    def loaded_namespace(self) -> Any:  # noqa: ANN401
        return self.fake


class StandInMps(MpsDevice):
    def __init__(self) -> None:
        self.fake = FakeNamespace(1)

    def namespace(self) -> Any:  # noqa: ANN401
        return self.fake

    def loaded_namespace(self) -> Any:  # noqa: ANN401
        return self.fake


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")


def planned(kind: str, num_devices: int, **asked: Any) -> LaunchPlan:  # noqa: ANN401
    hardware = NodeHardware(
        host="box", cpu_count=4, memory_bytes=CPU_ONLY.memory_bytes, memory_available_bytes=1 << 30,
        devices={kind: tuple(DeviceInfo(index=index) for index in range(num_devices))},
    )  # fmt: skip
    return make_plan(LaunchRequest(device=kind, **asked), hardware, kernel_env={}, run_id="r1")


class TestXpu:
    def test_as_many_as_torch_counts(self) -> None:
        assert StandInXpu(3).count() == 3
        assert StandInXpu(0).count() == 0

    def test_a_rank_takes_the_device_of_its_local_rank(self) -> None:
        device = StandInXpu()

        assert device.bind(1, 2) == torch.device("xpu", 1)
        assert device.fake.current_device() == 1
        assert device.bind(None, 1) == torch.device("xpu", 1)
        assert device.module_device_ids(torch.device("xpu", 1)) == [1]
        assert device.group_device(torch.device("xpu", 1)) == torch.device("xpu", 1)
        assert device.transport_device(torch.device("xpu", 1)) == torch.device("xpu", 1)

    def test_what_is_not_open_is_left_alone(self) -> None:
        device = StandInXpu()

        device.empty_cache()

        assert device.memory() is None
        assert device.fake.emptied == 0

    def test_memory_of_an_open_device(self) -> None:
        device = StandInXpu()
        device.bind(0, 1)
        device.empty_cache()

        assert device.fake.emptied == 1
        assert device.memory() == DeviceMemory(
            free_bytes=6 << 30, total_bytes=16 << 30, allocated_bytes=1 << 30, reserved_bytes=2 << 30
        )

    def test_random_states_are_stored_under_upstreams_name_and_come_back(self) -> None:
        device, place = StandInXpu(), torch.device("xpu", 1)
        saved = device.random_states(place)
        device.restore_random_state(torch.tensor([99]), place)

        device.restore_random_states(saved, place)

        assert list(saved) == ["torch_xpu_manual_seed", "device_index"]
        assert device.random_state(place) == torch.tensor([1])

    def test_the_plan_shows_the_chosen_ones_to_every_rank(self) -> None:
        plan = planned("xpu", 4, devices=(3, 1))

        assert plan.env["ZE_AFFINITY_MASK"] == "3,1"
        assert (plan.process_group, plan.start_method, plan.num_ranks) == ("xccl", "forkserver", 2)


class TestMps:
    def test_only_an_apple_machine_has_one(self) -> None:
        assert MpsDevice().probe() == ()

    def test_it_has_the_machines_memory(self, mac: None) -> None:
        del mac
        [gpu] = MpsDevice().probe()

        assert (gpu.index, gpu.name) == (0, "Apple GPU")
        assert gpu.memory_bytes > 0

    def test_l10_one_rank_and_a_fresh_interpreter(self) -> None:
        plan = planned("mps", 1)

        assert (plan.num_ranks, plan.start_method, plan.process_group) == (1, "spawn", "gloo")
        assert any("fresh interpreters" in reason for reason in plan.reasons)

    def test_open_once_memory_was_taken(self, mac: None) -> None:
        del mac
        device = StandInMps()
        assert not device.is_open()
        assert device.memory() is None

        device.fake.opened = True

        assert device.memory() == DeviceMemory(
            free_bytes=14 << 30, total_bytes=16 << 30, allocated_bytes=1 << 30, reserved_bytes=2 << 30
        )

    def test_random_states_come_back(self) -> None:
        device, place = StandInMps(), torch.device("mps", 0)
        saved = device.random_states(place)
        device.restore_random_state(torch.tensor([99]), place)

        device.restore_random_states(saved, place)

        assert device.random_state(place) == torch.tensor([0])

    def test_its_only_device_has_no_number_to_give(self) -> None:
        device = StandInMps()
        place = device.bind(0, 1)
        device.make_current(place)

        assert place == torch.device("mps", 0)
        assert device.group_device(place) is None
        assert device.module_device_ids(place) is None
        assert device.transport_device(place) == torch.device("cpu")
        assert device.computes_in_bfloat16()
