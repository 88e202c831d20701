from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from accel_nb.devices.xla import tpu_evidence
from accel_nb.launch.planning.hardware import mpi_command, probe_node, saved_config, with_counts
from accel_nb.protocol.hardware import DeviceInfo, SavedConfig

from .machines import CPU_ONLY, gpu, gpu_machine


def test_this_machine_is_probed_within_its_limits() -> None:
    hardware = probe_node()

    assert hardware.host == socket.gethostname()
    assert 1 <= hardware.cpu_count <= len(os.sched_getaffinity(0))
    assert 0 < hardware.memory_available_bytes <= hardware.memory_bytes <= psutil.virtual_memory().total
    assert hardware.platform == sys.platform
    assert "cpu" not in hardware.devices


def test_the_affinity_mask_is_respected() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert probe_node().cpu_count == 1
    finally:
        os.sched_setaffinity(0, before)


def test_the_variable_that_hides_devices_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "1, GPU-abc")

        assert probe_node().visible_ids == {"cuda": ("1", "GPU-abc")}

    with monkeypatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

        assert probe_node().visible_ids == {}


class TestCounts:
    def test_an_equal_count_changes_nothing(self) -> None:
        machine = gpu_machine(gpu(0), gpu(1))

        assert with_counts(machine, {"cuda": 2}) == machine

    def test_a_kind_without_a_count_keeps_its_figures(self) -> None:
        machine = gpu_machine(gpu(0))

        assert with_counts(machine, {}) == machine

    def test_devices_beyond_the_count_are_cut_and_that_is_noted(self) -> None:
        counted = with_counts(gpu_machine(gpu(0), gpu(1)), {"cuda": 1})

        assert counted.devices == {"cuda": (gpu(0),)}
        assert counted.notes == ("The driver lists 2 cuda devices, but torch can use 1 of them in this environment.",)

    def test_a_count_of_none_removes_the_kind(self) -> None:
        counted = with_counts(gpu_machine(gpu(0)), {"cuda": 0})

        assert counted.devices == {}
        assert counted.notes == ("The driver lists 1 cuda device, but torch can use none of them in this environment.",)

    def test_no_devices_and_a_count_of_none_is_no_contradiction(self) -> None:
        assert with_counts(CPU_ONLY, {"cuda": 0}) == CPU_ONLY

    def test_devices_that_no_driver_describes_are_made_up(self) -> None:
        counted = with_counts(CPU_ONLY, {"cuda": 2})

        assert counted.devices == {"cuda": (DeviceInfo(index=0), DeviceInfo(index=1))}
        assert counted.notes == ()

    def test_made_up_devices_keep_the_machines_numbering(self) -> None:
        restricted = replace(CPU_ONLY, visible_ids={"cuda": ("5", "GPU-abc", "2")})

        counted = with_counts(restricted, {"cuda": 3})

        assert counted.devices["cuda"] == (
            DeviceInfo(index=5),
            DeviceInfo(index=1, uuid="GPU-abc"),
            DeviceInfo(index=2),
        )


class TestTpuEvidence:
    @pytest.mark.parametrize(
        ("variables", "evidence"),
        [
            ({"PJRT_DEVICE": "TPU", "TPU_NAME": "x"}, "PJRT_DEVICE=TPU"),
            ({"TPU_NAME": "local"}, "TPU_NAME=local"),
            ({"TPU_WORKER_ID": "0"}, "TPU_WORKER_ID=0"),
            ({"PJRT_DEVICE": "CUDA"}, ""),
            ({"PJRT_DEVICE": "CPU", "TPU_NAME": ""}, ""),
            ({}, ""),
        ],
    )
    def test_x03_variables(
        self, variables: dict[str, str], evidence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

        assert tpu_evidence(tmp_path) == evidence

    def test_x03_device_files_of_a_tpu_vm(self, tmp_path: Path) -> None:
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev" / "accel0").touch()

        assert tpu_evidence(tmp_path) == "/dev/accel0"

    def test_x03_another_vendors_accelerator_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "dev" / "accel").mkdir(parents=True)
        (tmp_path / "dev" / "accel" / "accel0").touch()

        assert tpu_evidence(tmp_path) == ""

    @pytest.mark.parametrize(
        ("vendor", "device", "evidence"),
        [
            ("0x1ae0", "0x0063", "PCI device 0000:00:04.0"),
            ("0x1ae0", "0x0042", ""),  # Google's network card
            ("0x10de", "0x0063", ""),
        ],
    )
    def test_x03_vfio_needs_a_tpu_on_the_bus(self, vendor: str, device: str, evidence: str, tmp_path: Path) -> None:
        (tmp_path / "dev" / "vfio").mkdir(parents=True)
        (tmp_path / "dev" / "vfio" / "0").touch()
        bus = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:00:04.0"
        bus.mkdir(parents=True)
        (bus / "vendor").write_text(vendor + "\n")
        (bus / "device").write_text(device + "\n")

        assert tpu_evidence(tmp_path) == evidence


@pytest.mark.parametrize(
    ("programs", "found"), [(("mpirun", "mpiexec"), "mpirun"), (("mpiexec",), "mpiexec"), ((), "")]
)
def test_mpi_on_the_path(programs: tuple[str, ...], found: str, tmp_path: Path) -> None:
    for name in programs:
        (tmp_path / name).touch(mode=0o755)

    assert mpi_command({"PATH": str(tmp_path)}) == (str(tmp_path / found) if found else "")


class TestSavedConfig:
    TEXT = "compute_environment: LOCAL_MACHINE\nfsdp_config:\n  fsdp_version: 2\n# note: x\nmixed_precision: bf16\n"

    @pytest.mark.parametrize(
        ("variable", "below"),
        [("HF_HOME", ""), ("XDG_CACHE_HOME", "huggingface"), ("HOME", ".cache/huggingface")],
    )
    def test_l18_it_is_found_where_upstream_writes_it(self, variable: str, below: str, tmp_path: Path) -> None:
        path = tmp_path / below / "accelerate" / "default_config.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(self.TEXT)

        assert saved_config({variable: str(tmp_path)}) == SavedConfig(
            path=str(path), keys=("compute_environment", "fsdp_config", "mixed_precision")
        )

    def test_l18_a_file_that_is_broken_json_has_no_keys(self, tmp_path: Path) -> None:
        (tmp_path / "accelerate").mkdir()
        (tmp_path / "accelerate" / "default_config.yaml").write_text('{"mixed_precision": ')

        found = saved_config({"HF_HOME": str(tmp_path)})

        assert found is not None
        assert found.keys == ()

    def test_l18_without_a_file_there_is_none(self, tmp_path: Path) -> None:
        assert saved_config({"HF_HOME": str(tmp_path)}) is None

    def test_l18_upstream_agrees_about_the_place(self, tmp_path: Path) -> None:
        pytest.importorskip("accelerate")
        variables = {**os.environ, "HF_HOME": str(tmp_path)}
        code = "from accelerate.utils import write_basic_config; write_basic_config(mixed_precision='no')"

        subprocess.run([sys.executable, "-c", code], env=variables, check=True, capture_output=True)

        found = saved_config(variables)
        assert found is not None
        assert {"mixed_precision", "num_processes"} <= set(found.keys)
