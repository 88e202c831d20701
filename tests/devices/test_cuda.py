from __future__ import annotations

import os
from pathlib import Path

import pytest

from accel_nb.devices import nvml
from accel_nb.devices.cuda import CudaDevice, visible_devices
from accel_nb.devices.nvml import read_gpus
from accel_nb.protocol.hardware import DeviceInfo

from .fake_nvml import FakeGpu, FakeNvml, Process

H100S = [FakeGpu(f"GPU-{letter}") for letter in ("aa", "ab", "ba", "bb")]
MIG = FakeGpu("GPU-mm", instances=[FakeGpu("MIG-1", total=10 << 30), FakeGpu("MIG-2", total=20 << 30)])


def shown(text: str | None, *gpus: FakeGpu, **others: str) -> list[str]:
    """UUIDs that are visible under `text` as CUDA_VISIBLE_DEVICES."""
    variables = others if text is None else {"CUDA_VISIBLE_DEVICES": text, **others}
    return [device.uuid for device in visible_devices(read_gpus(FakeNvml(*(gpus or H100S))), variables)]


class TestNvml:
    def test_names_and_figures(self) -> None:
        library = FakeNvml(FakeGpu("GPU-aa", used=5 << 30))

        (gpu,) = read_gpus(library)

        assert (gpu.index, gpu.uuid, gpu.name) == (0, "GPU-aa", "NVIDIA H100")
        assert (gpu.memory_bytes, gpu.memory_used_bytes, gpu.own_bytes) == (80 << 30, 5 << 30, 0)
        assert library.open == 0

    def test_an_old_driver_answers_in_bytes_and_knows_no_second_version(self) -> None:
        (gpu,) = read_gpus(FakeNvml(FakeGpu("GPU-aa"), old=True))

        assert (gpu.uuid, gpu.name, gpu.memory_bytes) == ("GPU-aa", "NVIDIA H100", 80 << 30)

    def test_without_a_driver_there_is_none(self) -> None:
        assert read_gpus(FakeNvml(driver=False)) == ()

    def test_without_the_binding_there_is_none(self) -> None:
        assert read_gpus(None) == ()

    def test_a_lost_gpu_hides_no_other(self) -> None:
        gpus = read_gpus(FakeNvml(FakeGpu("GPU-aa", lost=True), FakeGpu("GPU-ab")))

        assert [(gpu.index, gpu.uuid) for gpu in gpus] == [(1, "GPU-ab")]

    def test_memory_that_may_not_be_asked_for_is_unknown(self) -> None:
        (gpu,) = read_gpus(FakeNvml(FakeGpu("GPU-aa", refuses=frozenset({"memory"}))))

        assert (gpu.memory_bytes, gpu.memory_used_bytes) == (0, 0)

    def test_the_library_is_closed_also_when_reading_fails(self) -> None:
        class Broken(FakeNvml):
            def nvmlDeviceGetCount(self) -> int:  # noqa: N802
                raise RuntimeError

        library = Broken()

        with pytest.raises(RuntimeError):
            read_gpus(library)
        assert library.open == 0

    def test_what_this_process_holds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        held = [Process(os.getpid(), 3 << 30), Process(os.getpid() + 1, 9 << 30), Process(os.getpid(), None)]
        library = FakeNvml(FakeGpu("GPU-aa", processes=held))
        monkeypatch.setattr(nvml, "has_cuda_open", lambda: True)

        assert read_gpus(library)[0].own_bytes == 3 << 30

    def test_without_a_context_of_ours_an_equal_pid_is_another_process(self) -> None:
        library = FakeNvml(FakeGpu("GPU-aa", processes=[Process(os.getpid(), 3 << 30)]))

        assert read_gpus(library)[0].own_bytes == 0

    def test_the_real_binding_has_every_function_used(self) -> None:
        library = nvml.load()

        assert library is not None
        used = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]
        assert len(used) > 10
        assert [name for name in used if not hasattr(library, name)] == []

    @pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="has a driver")
    def test_on_a_machine_without_a_driver_nothing_is_found(self) -> None:
        assert CudaDevice().probe() == ()


class TestVisible:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (None, ["GPU-aa", "GPU-ab", "GPU-ba", "GPU-bb"]),
            ("", []),
            ("2", ["GPU-ba"]),
            ("3,1", ["GPU-bb", "GPU-ab"]),
            (" 3 , 1 ", ["GPU-bb", "GPU-ab"]),
            ("GPU-ba,GPU-aa", ["GPU-ba", "GPU-aa"]),
            ("gpu-BB", ["GPU-bb"]),
            ("1,GPU-ba", ["GPU-ab", "GPU-ba"]),
            ("0,9,1", ["GPU-aa"]),  # the first that names nothing ends the list
            ("-1", []),
            ("0,-1,1", ["GPU-aa"]),
            ("GPU-a", []),  # ambiguous
            ("0,0", []),  # named twice
            ("0,GPU-aa", []),
            ("NoDevFiles", []),
        ],
    )
    def test_l14_the_variable_is_read_as_cuda_reads_it(self, text: str | None, expected: list[str]) -> None:
        assert shown(text) == expected

    def test_a_beginning_that_names_one(self) -> None:
        assert shown("GPU-b", FakeGpu("GPU-aa"), FakeGpu("GPU-bb")) == ["GPU-bb"]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (None, ["GPU-aa", "MIG-1"]),
            ("1", ["MIG-1"]),
            ("GPU-mm", ["MIG-1"]),
            ("MIG-2", ["MIG-2"]),
            ("MIG-2,0", ["MIG-2", "GPU-aa"]),
        ],
    )
    def test_mig_instances_stand_for_their_gpu(self, text: str | None, expected: list[str]) -> None:
        assert shown(text, FakeGpu("GPU-aa", instances=[]), MIG) == expected

    def test_a_mig_instance_has_its_own_memory(self) -> None:
        (device,) = visible_devices(read_gpus(FakeNvml(MIG)), {"CUDA_VISIBLE_DEVICES": "MIG-2"})

        assert device.memory_bytes == 20 << 30

    def test_among_unequal_gpus_an_index_is_not_trusted_to_mean_nvmls(self) -> None:
        unequal = [FakeGpu("GPU-aa", name="NVIDIA T4"), FakeGpu("GPU-bb", name="NVIDIA H100")]

        assert visible_devices(read_gpus(FakeNvml(*unequal)), {"CUDA_VISIBLE_DEVICES": "1,0"}) == (
            DeviceInfo(index=1),
            DeviceInfo(index=0),
        )
        assert shown("1", *unequal, CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["GPU-bb"]
        assert shown("GPU-bb", *unequal) == ["GPU-bb"]
        assert shown(None, *unequal) == ["GPU-aa", "GPU-bb"]


def test_the_probe_reads_the_environment_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    device = CudaDevice(binding=lambda: FakeNvml(*H100S))

    with monkeypatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
        found = device.probe()

    assert [(info.index, info.uuid) for info in found] == [(2, "GPU-ba"), (0, "GPU-aa")]
    assert found[0].memory_bytes == 80 << 30


def test_ids_are_preferred_and_an_index_is_written_where_there_is_none() -> None:
    chosen = (DeviceInfo(index=7), DeviceInfo(index=2, uuid="GPU-c"))

    assert CudaDevice().env_for(chosen) == {"CUDA_VISIBLE_DEVICES": "7,GPU-c"}


class TestFigures:
    def test_w06_figures_are_in_the_order_in_which_the_ranks_see_their_gpus(self) -> None:
        library = FakeNvml(
            FakeGpu("GPU-aa", used=1 << 30, busy=100),
            FakeGpu("GPU-bb", used=2 << 30, busy=25, processes=[Process(77, 1 << 30), Process(78, None)]),
        )
        device = CudaDevice(lambda: library)

        first, second = device.figures({"CUDA_VISIBLE_DEVICES": "GPU-bb,GPU-aa"})

        assert (first.memory_bytes, first.memory_used_bytes, first.utilization) == (80 << 30, 2 << 30, 0.25)
        assert first.holders == ((77, 1 << 30), (78, 0))
        assert (second.utilization, second.holders) == (1.0, ())

    def test_the_library_is_opened_once_and_kept_open(self) -> None:
        library = FakeNvml(FakeGpu("GPU-aa"))
        device = CudaDevice(lambda: library)

        assert [len(device.figures({})), len(device.figures({}))] == [1, 1]
        assert library.open == 1

    def test_a_gpu_that_tells_no_utilization_has_none(self) -> None:
        [figures] = CudaDevice(lambda: FakeNvml(FakeGpu("MIG-1"))).figures({})

        assert figures.utilization is None

    @pytest.mark.parametrize("binding", [None, FakeNvml(driver=False)], ids=["no binding", "no driver"])
    def test_without_nvml_nothing_is_known(self, binding: FakeNvml | None) -> None:
        assert CudaDevice(lambda: binding).figures({}) == ()
