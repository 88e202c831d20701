"""What every kind of hardware has to fulfil. A new file in accel_nb/devices/ is tested without another line here."""

from __future__ import annotations

import subprocess
import sys
import threading
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint

import psutil
import pytest

from accel_nb import devices
from accel_nb.devices import count_devices, find_devices
from accel_nb.devices.base import DeviceBase
from accel_nb.devices.cpu import CpuDevice
from accel_nb.devices.device import Device
from accel_nb.protocol.hardware import DeviceFigures, DeviceInfo
from accel_nb.protocol.plan import StartMethod
from accel_nb.training.ranks.distributed_type import DistributedType

ALL = pytest.mark.parametrize("device", find_devices(), ids=lambda device: device.kind)


@ALL
def test_it_is_a_device(device: Device) -> None:
    assert isinstance(device, Device)
    assert device.kind.islower()
    assert device.process_group
    assert device.distributed_type in DistributedType.__members__
    assert "no" in device.precisions
    assert set(device.start_methods) <= set(typing.get_args(StartMethod))
    assert device.start_methods


@ALL
def test_probing_leaves_no_thread_and_no_descriptor(device: Device) -> None:
    device.probe()
    threads, descriptors = psutil.Process().num_threads(), psutil.Process().num_fds()

    found = device.probe()

    assert all(isinstance(info, DeviceInfo) for info in found)
    assert psutil.Process().num_threads() == threads
    assert psutil.Process().num_fds() == descriptors


@ALL
def test_probing_works_in_any_thread(device: Device) -> None:
    found: list[tuple[DeviceInfo, ...]] = []
    thread = threading.Thread(target=lambda: found.append(device.probe()))
    thread.start()
    thread.join()

    assert [info.uuid for info in found[0]] == [info.uuid for info in device.probe()]


@ALL
def test_figures_are_those_of_the_devices_that_are_shown(device: Device) -> None:
    shown = device.figures(dict.fromkeys(device.visibility_variables, "0"))

    assert all(isinstance(figures, DeviceFigures) for figures in shown)
    assert len(shown) <= 1
    assert device.figures(device.env_for(())) == ()


@ALL
def test_the_visibility_written_is_the_visibility_read(device: Device) -> None:
    chosen = (DeviceInfo(index=3, uuid="ID-c"), DeviceInfo(index=1))

    shown, hidden = device.env_for(chosen), device.env_for(())

    assert hidden.keys() <= set(device.visibility_variables) <= shown.keys()
    if device.visibility_variables:
        assert device.visible_ids(shown) == ("ID-c", "1")
    if hidden:
        assert device.visible_ids(hidden) == ()
    assert device.visible_ids({}) is None


@ALL
def test_here_it_is_closed_unless_somebody_has_opened_it(device: Device) -> None:
    device.empty_cache()
    if not device.is_open():
        assert device.memory() is None


@ALL
def test_what_is_here_is_usable_or_has_a_reason(device: Device) -> None:
    if device.unusable_because():
        assert device.probe() == ()
        assert device.unusable_because().endswith(".")


@ALL
def test_all_visible_devices_may_be_chosen(device: Device) -> None:
    visible = tuple(DeviceInfo(index=index) for index in range(4))

    assert device.refused_choice(visible, visible) == ""
    assert device.refused_choice(visible[:1], visible) == ""


@ALL
def test_ranks_bind_to_what_is_here(device: Device) -> None:
    """In a process of its own, on a machine that has such a device."""
    if device.one_rank_each and not device.probe():
        pytest.skip(f"no {device.kind} here")
    code = (
        "from accel_nb.devices import find_device\n"
        f"device = find_device({device.kind!r})\n"
        "place = device.bind(0, 1)\n"
        "assert place.type == device.torch_type\n"
        "import torch; value = torch.ones(2, device=place); assert value.sum().item() == 2\n"
        "state = device.random_state(place)\n"
        "draws = torch.rand(3, device=place).tolist()\n"
        "state is None or (device.restore_random_state(state, place), "
        "exec('assert torch.rand(3, device=place).tolist() == draws'))\n"
        "saved = device.random_states(place); device.restore_random_states(saved, place)\n"
        "assert device.transport_device(place).type in (place.type, 'cpu')\n"
        "receive = device.batch_receiver(place); receive is None or receive([value])\n"
        "end = device.step_ender(); end is None or end()\n"
        "average = device.gradient_averager(); average is None or average([value])\n"
    )

    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@ALL
def test_kinds_that_share_the_machine_have_nothing_to_show(device: Device) -> None:
    if not device.one_rank_each:
        assert device.probe() == ()
        assert device.count() == 0
        assert device.visibility_variables == ()


def test_kinds_are_unique_and_the_most_preferred_comes_first() -> None:
    kinds = [device.kind for device in find_devices()]

    assert len(set(kinds)) == len(kinds)
    assert [device.preference for device in find_devices()] == sorted(
        (device.preference for device in find_devices()), reverse=True
    )
    assert {"cpu", "cuda", "tpu", "xpu", "mps"} <= set(kinds)


def test_finding_and_probing_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from accel_nb.devices import find_devices\n"
        "[device.probe() for device in find_devices()]\n"
        "assert 'torch' not in sys.modules"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_counting_agrees_with_torch_in_a_child_of_its_own() -> None:
    code = (
        "import torch\n"
        "from accel_nb.devices import count_devices\n"
        "for kind, count in count_devices().items():\n"
        "    library = getattr(torch, kind)\n"
        "    available = torch.backends.mps.is_available() if kind == 'mps' else library.is_available()\n"
        "    assert count == (library.device_count() if available else 0), kind"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class NpuDevice(DeviceBase):
    """Another package's hardware."""

    kind = torch_type = "npu"
    process_group = "hccl"
    preference = 200
    visibility_variables = ("NPU_VISIBLE",)
    out_of_memory_texts = ("NPU has no room",)
    rank_overhead_bytes = 1 << 20

    def probe(self) -> tuple[DeviceInfo, ...]:
        return (DeviceInfo(index=0),)

    def figures(self, variables: Mapping[str, str]) -> tuple[DeviceFigures, ...]:  # noqa: ARG002
        return ()

    def count(self) -> int:
        return 1

    def visible_ids(self, variables: Mapping[str, str]) -> tuple[str, ...] | None:
        return (variables["NPU_VISIBLE"],) if "NPU_VISIBLE" in variables else None

    def env_for(self, chosen: Sequence[DeviceInfo]) -> dict[str, str]:
        return {"NPU_VISIBLE": " ".join(str(device.index) for device in chosen)}


NPU = NpuDevice()
SECOND_CPU = CpuDevice()
NO_DEVICE = object()


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Entry points that are installed for one test."""
    offers: list[EntryPoint] = []
    monkeypatch.setattr(devices, "entry_points", lambda group: [offer for offer in offers if offer.group == group])
    find_devices.cache_clear()
    yield offers
    find_devices.cache_clear()


def offer(name: str) -> EntryPoint:
    return EntryPoint(name=name.lower(), value=f"{__name__}:{name}", group="accel_nb.devices")


def test_another_packages_device_is_found(offered: list[EntryPoint]) -> None:
    offered.append(offer("NPU"))

    assert find_devices()[0] is NPU
    assert count_devices()["npu"] == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MISSING", r"The device '.*:MISSING' cannot be loaded: AttributeError: "),
        ("NO_DEVICE", r"':?.*:NO_DEVICE' is left out: it lacks members of a Device\."),
        ("SECOND_CPU", r":SECOND_CPU is left out: a device of kind 'cpu' exists already\."),
    ],
)
def test_a_device_that_is_none_is_left_out_with_a_warning(offered: list[EntryPoint], name: str, text: str) -> None:
    offered.append(offer(name))

    with pytest.warns(UserWarning, match=text):
        found = find_devices()

    assert [device.kind for device in found] == ["cuda", "tpu", "xpu", "mps", "cpu"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_devices() is found
