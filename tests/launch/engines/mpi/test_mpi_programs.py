"""Which MPI is here, and its command line: without starting ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accel_nb.errors import EngineUnavailable, InvalidArgument, PlanError
from accel_nb.launch.engines.mpi import ENGINE
from accel_nb.launch.engines.on_mpi.hosts import HostLine, HostShare, read_hostfile, share_out
from accel_nb.launch.engines.on_mpi.programs import MpiProgram, find_program
from accel_nb.launch.engines.on_mpi.ssh_check import ssh_problems
from accel_nb.launch.planning.planner import make_plan
from accel_nb.launch.run import plan_for
from accel_nb.protocol.plan import LaunchRequest

from ...planning.machines import gpu, gpu_machine

TWO_HOSTS = [HostShare("a", 2, is_here=True), HostShare("b", 1)]
HERE = [HostShare("localhost", 4, is_here=True)]
ANSWERS = {
    "mpirun (Open MPI) 5.0.3": ("Open MPI", "5.0.3"),
    "mpirun.openmpi (OpenRTE) 4.1.4": ("Open MPI", "4.1.4"),
    "HYDRA build details:\\n    Version:   4.0.2": ("MPICH", "4.0.2"),
    "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260101": ("Intel MPI", "2021.18"),
}


def program_that_says(folder: Path, text: str, name: str = "mpirun") -> dict[str, str]:
    """Variables with a PATH on which it is the only mpirun."""
    script = folder / name
    script.write_text(f"#!/bin/sh\nprintf '{text}\\n'\n")
    script.chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: ANSWERS[answer][0])
def test_it_is_recognised_by_what_it_answers(answer: str, tmp_path: Path) -> None:
    found = find_program(program_that_says(tmp_path, answer))

    assert (found.family, found.version) == ANSWERS[answer]


def test_mpiexec_will_do(tmp_path: Path) -> None:
    found = find_program(program_that_says(tmp_path, "mpiexec (OpenRTE) 4.1.4", "mpiexec"))

    assert found.path == str(tmp_path / "mpiexec")


def test_n03_without_mpirun_the_refusal_lists_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(EngineUnavailable, match=r"neither mpirun nor mpiexec is on PATH .* Install Open MPI, MPICH"):
        plan_for(LaunchRequest(backend="mpi", num_processes=2))


def test_another_mpirun_is_refused_with_what_it_says(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="says 'Cray MPICH lookalike', so it is none of Open MPI"):
        find_program(program_that_says(tmp_path, "Cray MPICH lookalike"))


def test_open_mpi_is_told_in_its_own_options() -> None:
    command = MpiProgram("/usr/bin/mpirun", "Open MPI", "4.1.4").command(
        TWO_HOSTS, Path("/f"), ["PATH", "X"], ["agent"]
    )

    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    options = ["--oversubscribe", "--bind-to", "none", "-x", "PATH", "-x", "X", "--hostfile", "/f"]
    assert command == ["/usr/bin/mpirun", *root, *options, "-n", "3", "agent"]


def test_open_mpi_5_has_another_word_for_more_ranks_than_cores() -> None:
    command = MpiProgram("/usr/bin/mpirun", "Open MPI", "5.0.3").command(HERE, Path("/f"), [], ["agent"])

    assert "--map-by :OVERSUBSCRIBE" in " ".join(command)
    assert "--oversubscribe" not in command


@pytest.mark.parametrize("family", ["MPICH", "Intel MPI"])
def test_hydra_is_told_in_its_own_options(family: str) -> None:
    program = MpiProgram("/usr/bin/mpirun", family, "4.0.2")  # type: ignore[arg-type]  # by the parameters above

    assert program.command(TWO_HOSTS, Path("/f"), ["PATH"], ["agent"]) == [
        "/usr/bin/mpirun", "-genvall", "-f", "/f", "-n", "3", "agent",
    ]  # fmt: skip
    assert program.command(HERE, Path("/f"), ["PATH"], ["agent"]) == [
        "/usr/bin/mpirun", "-genvall", "-n", "4", "agent",
    ]  # fmt: skip


def test_each_has_its_own_host_file() -> None:
    assert MpiProgram("", "Open MPI", "4.1.4").hostfile_text(TWO_HOSTS) == "a slots=2\nb slots=1\n"
    assert MpiProgram("", "MPICH", "4.0.2").hostfile_text(TWO_HOSTS) == "a:2\nb:1\n"


def test_the_ssh_that_mpirun_uses_is_the_one_that_is_checked() -> None:
    variables = {
        "OMPI_MCA_plm_rsh_agent": "/usr/local/bin/ssh-in -q : rsh",
        "HYDRA_LAUNCHER_EXEC": "/usr/local/bin/hydra-ssh",
    }

    assert MpiProgram("", "Open MPI", "4.1.4").ssh(variables) == ("/usr/local/bin/ssh-in", "-q")
    assert MpiProgram("", "MPICH", "4.0.2").ssh(variables) == ("/usr/local/bin/hydra-ssh",)
    assert MpiProgram("", "Intel MPI", "2021.18").ssh(variables) == ("ssh",)


def test_where_a_scheduler_starts_the_helpers_no_ssh_is_asked() -> None:
    assert MpiProgram("", "Open MPI", "4.1.4").ssh({"OMPI_MCA_plm": "slurm"}) == ()
    assert MpiProgram("", "MPICH", "4.0.2").ssh({"HYDRA_LAUNCHER": "slurm"}) == ()
    assert MpiProgram("", "MPICH", "4.0.2").ssh({"HYDRA_LAUNCHER": "ssh"}) == ("ssh",)
    assert MpiProgram("", "Intel MPI", "2021.18").ssh({"I_MPI_HYDRA_BOOTSTRAP": "lsf"}) == ()


def test_ssh_is_asked_with_the_options_that_mpirun_gives_it(tmp_path: Path) -> None:
    program = tmp_path / "ssh"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/asked\n[ "$1" = -p ]\n')
    program.chmod(0o755)

    assert ssh_problems([str(program), "-p", "2222"], ["far"], dict(os.environ)) == {}
    assert (tmp_path / "asked").read_text().split()[:2] == ["-p", "2222"]
    assert (tmp_path / "asked").read_text().split()[-3:] == ["--", "far", "true"]
    assert ssh_problems([str(program)], ["far"], dict(os.environ)) == {"far": "exit status 1"}


def test_host_files_of_all_of_them_are_read(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\na slots=2  # the first\nb:3\nc\nd max_slots=4\na slots=1\n\n")

    assert read_hostfile(str(file)) == [HostLine("a", 3), HostLine("b", 3), HostLine("c", None), HostLine("d", 4)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no host"),
        ("a\nb:many\n", "line 2: 'b:many' is no host"),
        ("a two words\n", "line 1: .* is no host"),
        ("-oProxyCommand=x\n", "line 1: .* is no host"),
    ],
)
def test_what_is_no_host_file_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)

    with pytest.raises(InvalidArgument, match=complaint):
        read_hostfile(str(file))


def test_a_host_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="hostfile='/no/such' cannot be read: No such file"):
        read_hostfile("/no/such")


@pytest.mark.parametrize(
    ("slots", "num_ranks", "shares"),
    [
        ((2, 2), 4, [2, 2]),
        ((3, 2), 4, [3, 1]),
        ((2, 2), 2, [2]),
        ((1, 2), 5, [2, 3]),
        ((2, 3), None, [2, 3]),
        ((None, None), 4, [2, 2]),
        ((None, None), 3, [2, 1]),
        ((None, 5), 1, [1]),
    ],
)
def test_ranks_are_shared_out(slots: tuple[int | None, ...], num_ranks: int | None, shares: list[int]) -> None:
    hosts = [HostLine(f"host{index}", number) for index, number in enumerate(slots)]

    assert [share.num_ranks for share in share_out(hosts, num_ranks, frozenset())] == shares


def test_a_host_file_without_mpi_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is for backend='mpi'"):
        plan_for(LaunchRequest(hostfile=str(tmp_path / "hosts"), num_processes=2))


@pytest.mark.usefixtures("open_mpi")
def test_a_port_of_the_users_is_refused() -> None:
    with pytest.raises(PlanError, match="use_port=29500 is not possible with backend='mpi'"):
        plan_for(LaunchRequest(backend="mpi", use_port=29500, num_processes=2))


@pytest.mark.usefixtures("open_mpi")
def test_devices_by_rank_are_refused_on_several_hosts(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("a\nb\n")

    with pytest.raises(PlanError, match=r"devices=\[0, 1\] is not possible on the hosts of hostfile="):
        plan_for(LaunchRequest(backend="mpi", hostfile=str(hostfile), devices=(0, 1)))


def test_devices_of_several_hosts_go_by_number_and_are_named_once(tmp_path: Path) -> None:
    """An id is that of a device of one machine; a number that stands there twice hides all of CUDA's devices."""
    hostfile = tmp_path / "hosts"
    hostfile.write_text("a\nb\n")
    request = LaunchRequest(backend="mpi", hostfile=str(hostfile))
    machine = gpu_machine(gpu(0), gpu(1))

    several = make_plan(request, ENGINE.hardware(request, machine), kernel_env={}, run_id="r")
    alone = make_plan(LaunchRequest(backend="mpi"), machine, kernel_env={}, run_id="r")

    assert several.num_ranks == 4
    assert several.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert alone.env["CUDA_VISIBLE_DEVICES"] == "GPU-0aaa,GPU-1aaa"
