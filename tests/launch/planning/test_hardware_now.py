"""How busy the machine is and who uses its devices, told without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from accel_nb.devices.cuda import CudaDevice
from accel_nb.launch import cgroups
from accel_nb.launch.cgroups import CpuUse, Limits, read_cpu_use
from accel_nb.launch.planning import hardware_now
from accel_nb.launch.planning.hardware_now import OUT_OF_SIGHT, THIS_KERNEL, HardwareMeter
from accel_nb.protocol.hardware import DeviceFigures, DeviceInfo
from accel_nb.protocol.panel import DeviceUser


class OneGpu(CudaDevice):
    """Says what a test wants to hear of one GPU."""

    def __init__(self, holders: tuple[tuple[int, int], ...] = (), own_bytes: int = 0) -> None:
        super().__init__(lambda: None)
        self._holders = holders
        self._own_bytes = own_bytes

    def probe(self) -> tuple[DeviceInfo, ...]:
        return (DeviceInfo(index=3, uuid="GPU-c", kernel_used_bytes=self._own_bytes),)

    def figures(self, variables: Mapping[str, str]) -> tuple[DeviceFigures, ...]:  # noqa: ARG002  all of them
        used_bytes = sum(size_bytes for _, size_bytes in self._holders)
        return (
            DeviceFigures(memory_bytes=80 << 30, memory_used_bytes=used_bytes, utilization=0.5, holders=self._holders),
        )


@pytest.fixture
def _driver_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes of this machine have a driver open."""
    monkeypatch.setattr(hardware_now, "_has_a_driver_open", lambda _: True)


def users(device: OneGpu, names: Mapping[int, str] | None = None) -> tuple[DeviceUser, ...]:
    [use] = HardwareMeter([device]).measure(names or {}).devices
    return use.users


@pytest.mark.usefixtures("_driver_open")
def test_who_uses_a_device_is_told_by_name() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", "ipykernel_launcher"], stdin=subprocess.PIPE) as other:
        parent = os.getppid()
        found = users(
            OneGpu(((os.getpid(), 1 << 30), (parent, 2 << 30), (other.pid, 3 << 30), (1, 4 << 30))),
            {parent: "rank 1 of train (run 9f3a)"},
        )
        other.communicate(b"\n")

    assert [(user.name, user.memory_bytes >> 30, user.is_kernel) for user in found[:2]] == [
        (THIS_KERNEL, 1, True),
        ("rank 1 of train (run 9f3a)", 2, False),
    ]
    # It is below a rank of ours, by the names that this test gives.
    assert found[2].name == "a process of rank 1 of train (run 9f3a)"
    assert found[3].name == psutil.Process(1).name()


@pytest.mark.usefixtures("_driver_open")
def test_another_kernel_on_the_same_device_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(psutil.Process):
        def parents(self) -> list[psutil.Process]:
            return []

        def cmdline(self) -> list[str]:
            return (
                ["python", "-m", "ipykernel_launcher"]
                if self.pid == 1
                else ["python", "-m", "accel_nb.launch.servers.warm_server"]
            )

    monkeypatch.setattr(psutil, "Process", Other)

    found = users(OneGpu(((1, 1 << 30), (os.getppid(), 2 << 30))))

    assert [user.name for user in found] == ["another kernel", "a rank of another kernel"]


def test_an_equal_pid_without_a_driver_open_is_another_process() -> None:
    [user] = users(OneGpu(((os.getpid(), 1 << 30),)), {os.getpid(): "rank 0"})

    assert (user.name, user.is_kernel) == (OUT_OF_SIGHT, False)


def test_the_kernels_own_memory_is_told_where_the_driver_does_not_see_it() -> None:
    found = users(OneGpu(((4_000_000, 5 << 30),), own_bytes=1 << 30))

    assert [(user.name, user.memory_bytes >> 30) for user in found] == [(OUT_OF_SIGHT, 5), (THIS_KERNEL, 1)]


def test_a_device_is_told_by_the_machines_number() -> None:
    [use] = HardwareMeter([OneGpu(((4_000_000, 5 << 30),))]).measure({}).devices

    assert (use.kind, use.index, use.memory_used_bytes, use.utilization) == ("cuda", 3, 5 << 30, 0.5)


def test_u11_memory_is_that_of_the_control_group_when_it_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(memory_bytes=4 << 30, memory_free_bytes=1 << 30)
    monkeypatch.setattr(hardware_now, "read_limits", lambda: limits)

    assert HardwareMeter([]).measure({}).memory_used_bytes == 3 << 30


def test_u11_cpus_are_those_of_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    use = [CpuUse(allowed=0.5, used_s=10.0), CpuUse(allowed=0.5, used_s=10.25)]
    clock = [100.0, 101.0]
    monkeypatch.setattr(hardware_now, "read_cpu_use", lambda: use.pop(0))
    meter = HardwareMeter([], lambda: clock.pop(0))
    monkeypatch.setattr(hardware_now, "read_limits", Limits)

    assert meter.measure({}).cpu_utilization == 0.5


def test_u11_a_busy_cpu_is_seen_without_a_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_now, "read_cpu_use", lambda: None)
    meter = HardwareMeter([])
    before = psutil.cpu_times()

    while psutil.cpu_times().user - before.user < 0.2:
        sum(range(10_000))

    assert 0 < meter.measure({}).cpu_utilization <= 1


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000", "cpu.stat": "usage_usec 2500000\nuser_usec 1"}, CpuUse(allowed=1.5, used_s=2.5)),
        ({"cpu.max": "max 100000", "cpu.stat": "usage_usec 2500000"}, None),
        (
            {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000", "cpuacct.usage": "3000000000"},
            CpuUse(allowed=0.5, used_s=3.0),
        ),
        ({"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_the_use_of_a_quota_in_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: CpuUse | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cgroups, "_group_folders", lambda _: (tmp_path,))

    assert read_cpu_use() == expected


def test_measuring_imports_no_torch_and_leaves_no_thread() -> None:
    code = (
        "import sys, threading\nfrom accel_nb.launch.planning.hardware_now import HardwareMeter\n"
        "HardwareMeter().measure({})\nprint('torch' in sys.modules, threading.active_count())"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False 1\n"
