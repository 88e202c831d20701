"""What is read of a machine, and which of it is worth a word."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from accel_nb.devices import nvml
from accel_nb.devices.nvml import read_gpus
from accel_nb.launch.doctor import gpus, leftovers, machine, mpi_hosts, software
from accel_nb.launch.doctor.machine import Limits
from accel_nb.protocol.diagnosis import Finding
from accel_nb.protocol.hardware import SavedConfig
from accel_nb.protocol.plan import LaunchPlan, RankPlan
from tests.devices.fake_nvml import FakeGpu, FakeNvml, Process
from tests.launch.planning.machines import CPU_ONLY, GIB, gpu, gpu_machine

ROOMY = Limits(kernel_release="6.1.0", shared_memory_bytes=8 * GIB, shared_memory_free_bytes=8 * GIB, open_files=65536)

SMALL = replace(ROOMY, shared_memory_bytes=64 << 20, shared_memory_free_bytes=64 << 20)


def told(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(finding.severity, finding.what) for finding in findings]


class TestMachine:
    def test_a_roomy_machine_is_worth_no_word(self) -> None:
        assert told(machine.findings(CPU_ONLY, ROOMY)) == []

    @pytest.mark.parametrize(
        ("limits", "finding"),
        [
            (SMALL, ("hint", "/dev/shm is 64 MiB.")),
            (replace(ROOMY, shared_memory_free_bytes=1 << 20), ("problem", "/dev/shm has 1 MiB left.")),
            (replace(ROOMY, shared_memory_bytes=None), ("problem", "There is no /dev/shm.")),
            (replace(ROOMY, open_files=1024), ("hint", "A process may have 1024 files open.")),
            (replace(ROOMY, kernel_release="5.4.0-42"), ("hint", "The Linux kernel of this machine is 5.4.0-42.")),
        ],
    )  # fmt: skip
    def test_e10_what_is_short_is_told(self, limits: Limits, finding: tuple[str, str]) -> None:
        assert told(machine.findings(CPU_ONLY, limits)) == [finding]

    def test_little_memory_is_told(self) -> None:
        short = replace(CPU_ONLY, memory_available_bytes=512 << 20)

        assert told(machine.findings(short, ROOMY)) == [("hint", "512 MiB of main memory are free.")]

    def test_a_system_without_such_folders_is_fine(self) -> None:
        assert told(machine.findings(replace(CPU_ONLY, platform="darwin"), Limits(kernel_release="24.1.0"))) == []

    def test_kernels_from_5_5_on_are_fine(self) -> None:
        assert told(machine.findings(CPU_ONLY, replace(ROOMY, kernel_release="5.5.0"))) == []

    def test_this_machine_can_be_read(self, tmp_path: Path) -> None:
        limits = machine.read_limits(tmp_path)

        assert limits.shared_memory_bytes
        assert limits.kernel_release == os.uname().release
        facts = {fact.name: fact.value for fact in machine.facts(CPU_ONLY, limits)}
        assert facts["CPUs"].startswith("8 usable")
        assert facts["memory"] == "30.0 GiB free of 32.0 GiB"
        assert machine.read_limits(tmp_path / "none").shared_memory_bytes is None


class TestSoftware:
    def test_what_is_installed_is_named(self) -> None:
        facts = {fact.name: fact.value for fact in software.facts()}

        assert facts["Python"].endswith(f"({sys.executable})")
        assert facts["torch"].startswith(str(software.version_of("torch")))
        assert "built for" in facts["torch"]
        assert facts["ipykernel"] == software.version_of("ipykernel")

    def test_what_is_needed_and_not_there_is_a_problem(self) -> None:
        found = list(software.findings(["nosuchpackage>=1", "msgspec>=99", "msgspec>=0.1", 'other>=1; extra == "x"']))

        assert [(one.severity, one.what) for one in found] == [
            ("problem", "nosuchpackage is missing."),
            ("problem", f"msgspec is {software.version_of('msgspec')}, too old."),
        ]
        assert found[1].remedy.endswith('-m pip install "msgspec>=99"')

    def test_a_kernel_that_loses_requests_is_named_as_that(self, monkeypatch: pytest.MonkeyPatch) -> None:
        project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        own = [text for text in project["dependencies"] if text.startswith("ipykernel")]

        def found_in(release: str) -> list[Finding]:
            monkeypatch.setattr(software, "version_of", lambda _: release)
            return list(software.findings(own))

        (found,) = found_in("7.3.0")
        assert found.what == "ipykernel is 7.3.0, which is excluded."
        assert "lose a request now and then: a cell waits for ever in an idle kernel" in found.why
        assert [found_in(release) for release in ("6.31.0", "7.4.0")] == [[], []]
        assert [one.what for release in ("6.30.1", "7.0.1") for one in found_in(release)] == [
            "ipykernel is 6.30.1, too old.",
            "ipykernel is 7.0.1, which is excluded.",
        ]


class TestGpus:
    CROWDED = FakeGpu("GPU-0", used=40 << 30, processes=[Process(os.getpid(), 8 << 30), Process(2**30, 30 << 30)])

    def test_who_holds_memory_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nvml, "has_cuda_open", lambda: True)
        seen = read_gpus(FakeNvml(self.CROWDED, FakeGpu("GPU-1")))
        hardware = gpu_machine(gpu(0), gpu(1))

        facts = {fact.name: fact.value for fact in gpus.facts(hardware, seen)}
        found = list(gpus.findings(hardware, seen, os.getpid()))

        assert facts["GPU 0"].startswith("NVIDIA H100, PCI 00000000:3B:00.0, 40.0 GiB of 80.0 GiB in use by ")
        assert f"pid {2**30} 30.0 GiB" in facts["GPU 0"]
        assert facts["cuda"] == "2 usable by torch here"
        uncounted = {fact.name: fact.value for fact in gpus.facts(hardware, seen, counted=False)}
        assert uncounted["cuda"] == "2 listed by the driver"
        assert told(found) == [("hint", "32.0 GiB of 80.0 GiB on GPU 0 are in use by others.")]
        assert str(2**30) in found[0].why

    def test_l12_gpus_that_torch_cannot_use_are_a_problem(self) -> None:
        note = "The driver lists 2 cuda devices, but torch can use none of them in this environment."

        assert told(gpus.findings(replace(CPU_ONLY, notes=(note,)), (), 1)) == [("problem", note)]

    def test_a_machine_without_gpus_says_so(self) -> None:
        facts = [fact.value for fact in gpus.facts(replace(CPU_ONLY, visible_ids={"cuda": ()}), ())]

        assert facts == ["none: hidden by the environment", "none that torch can use: ranks run on the CPU"]

    def test_k13_each_rank_is_shown_with_its_device_and_slot(self) -> None:
        ranks = tuple(RankPlan(rank=r, local_rank=r, device_index=r, device_label=f"cuda:{1 - r}") for r in (0, 1))
        plan = LaunchPlan(
            run_id="r", function_name="f", engine="local", device_kind="cuda", process_group="nccl", ranks=ranks,
            env={"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-0"},
        )  # fmt: skip
        seen = read_gpus(FakeNvml(FakeGpu("GPU-0"), FakeGpu("GPU-1", refuses=frozenset({"pci"}))))

        shown = gpus.places(plan, seen)

        assert shown == "rank 0 = cuda:1; rank 1 = cuda:0 (PCI 00000000:3B:00.0)"

    def test_old_bindings_answer_in_bytes(self) -> None:
        assert read_gpus(FakeNvml(FakeGpu("GPU-0"), old=True))[0].pci_bus_id == "00000000:3B:00.0"


class TestLeftovers:
    def test_the_server_of_a_kernel_that_is_gone_is_found(self) -> None:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        spec = f'[[], "accel_nb.launch.servers.warm_server", "serve", [{gone.pid}, 3, 4, "0"]]'
        command = "import sys; print(flush=True); sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-c", command, spec], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as left:
            assert left.stdout is not None
            left.stdout.readline()
            found = leftovers.leftover_pids()
            left.kill()

        assert left.pid in found
        assert [one.severity for one in leftovers.findings(found)] == ["hint"]
        assert list(leftovers.findings([])) == []

    def test_a_server_in_a_container_of_its_own_is_left_alone(self) -> None:
        spec = '[[], "accel_nb.launch.servers.warm_server", "serve", [999999999, 3, 4, "0"]]'
        command = ["unshare", "--pid", "--fork", sys.executable, "-c", "print(flush=True); input()", spec]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as own:
            assert own.stdout is not None
            if not own.stdout.readline():
                pytest.skip("needs the right to make a namespace")
            (inside,) = psutil.Process(own.pid).children()
            found = leftovers.leftover_pids()
            inside.kill()

        assert inside.pid not in found

    def test_other_programs_and_servers_of_kernels_that_live_are_left_alone(self) -> None:
        spec = f'[[], "accel_nb.launch.servers.warm_server", "serve", [{os.getpid()}, 3, 4, "0"]]'

        assert leftovers.kernel_of(["python", "-c", "boot", spec]) == os.getpid()
        assert leftovers.kernel_of(["grep", "accel_nb.launch.servers.warm_server"]) is None
        assert leftovers.kernel_of([]) is None


class TestMpi:
    def ssh(self, folder: Path) -> str:
        """A PATH with an ssh that reaches `near` only."""
        program = folder / "ssh"
        program.write_text(
            '#!/bin/sh\nfor word; do [ "$word" = near ] && exit 0; done\n'
            "echo 'Warning: something' >&2\necho 'far: Permission denied (publickey).' >&2\nexit 255\n"
        )
        program.chmod(0o755)
        return f"{folder}:/bin:/usr/bin"

    def test_n03_hosts_that_ssh_does_not_reach_are_named(self, tmp_path: Path) -> None:
        found = list(mpi_hosts.findings(["near", "far"], {"PATH": self.ssh(tmp_path)}))

        assert told(found) == [("problem", "ssh does not reach far without asking.")]
        assert "Permission denied (publickey)." in found[0].why
        assert "ssh-copy-id far" in found[0].remedy

    def test_without_other_hosts_nothing_is_asked(self) -> None:
        assert list(mpi_hosts.findings([], {})) == []

    def test_without_ssh_that_is_the_problem(self, tmp_path: Path) -> None:
        assert told(mpi_hosts.findings(["far"], {"PATH": str(tmp_path)})) == [
            ("problem", "MPI is configured for other hosts, and there is no ssh.")
        ]

    def test_hosts_come_from_where_mpi_looks(self, tmp_path: Path) -> None:
        hostfile, other, config = tmp_path / "hosts", tmp_path / "more", tmp_path / "default_config.yaml"
        hostfile.write_text("# ours\nnode1 slots=2\nnode2:4\nlocalhost\n\nbox\n")
        other.write_text("node2\nnode3\n")
        config.write_text(f"compute_environment: LOCAL_MACHINE\nmpirun_config:\n  mpirun_hostfile: {other}\n")
        hardware = replace(CPU_ONLY, saved_config=SavedConfig(path=str(config)))

        found = mpi_hosts.configured_hosts({"HYDRA_HOST_FILE": str(hostfile)}, hardware)

        assert found == ["node1", "node2", "node3"]
        assert mpi_hosts.configured_hosts({"HYDRA_HOST_FILE": str(tmp_path / "none")}, CPU_ONLY) == []

    def test_the_mpi_on_path_is_named_with_its_version(self, tmp_path: Path) -> None:
        program = tmp_path / "mpirun"
        program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
        program.chmod(0o755)

        facts = [fact.value for fact in mpi_hosts.facts(replace(CPU_ONLY, mpi_command=str(program)), ["node1"])]

        assert facts == [f"mpirun (Open MPI) 4.1.4 ({program})", "node1"]
        assert [fact.value for fact in mpi_hosts.facts(CPU_ONLY, [])] == ["none on PATH"]
        assert mpi_hosts.version(str(tmp_path / "gone")).startswith("does not answer: ")
