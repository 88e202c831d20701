"""Options by Accelerate's names: which launch they ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from accel_nb.cli.launch import request_of
from accel_nb.cli.main import parsers
from accel_nb.errors import InvalidArgument
from accel_nb.launch.settings.settings import Found
from accel_nb.launch.settings.settings_file import read_settings
from accel_nb.protocol.plan import LaunchRequest


def asked(line: str, found: Found | None = None) -> LaunchRequest:
    options = parsers()[0].parse_args(["launch", *line.split(), "train.py"])
    return request_of(options, found or Found(), "train.py")


def test_processes_of_all_machines_are_divided_among_them() -> None:
    by_their_name = asked("--num_machines 2 --num_processes 8")
    by_ours = asked("--num-nodes 2 --num-processes 8")

    assert (by_their_name.num_nodes, by_their_name.num_processes) == (2, 4)
    assert (by_ours.num_nodes, by_ours.num_processes) == (2, 8)
    assert asked("--num_machines 1 --num_processes 8").num_processes == 8
    with pytest.raises(InvalidArgument, match="--num-machines 2: num_processes is 3, of all 2 machines together"):
        asked("--num_machines 2 --num_processes 3")
    with pytest.raises(InvalidArgument, match="--num-machines and --num-nodes say the same"):
        asked("--num_machines 2 --num-nodes 2")


def test_all_devices_overrule_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"gpu_ids": "0", "num_processes": 1}))
    found = read_settings(path)

    assert asked("", found).devices == (0,)
    assert asked("--gpu_ids all", found).devices is None
    assert asked("--gpu_ids 1,GPU-4f", found).devices == (1, "GPU-4f")


def test_a_number_that_is_0_is_passed_on_and_not_taken_for_unsaid() -> None:
    request = asked("--num_cpu_threads_per_process 0 --gradient_accumulation_steps 0")

    assert request.env == {"OMP_NUM_THREADS": "0", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "0"}


def test_their_host_file_means_mpirun() -> None:
    request = asked("--mpirun_hostfile /h --num_processes 4")

    assert (request.backend, request.hostfile, request.num_processes) == ("mpi", "/h", 4)
    for other in ("--backend local", "--hostfile /i"):
        with pytest.raises(InvalidArgument, match="--mpirun-hostfile means --backend mpi --hostfile"):
            asked(f"--mpirun_hostfile /h {other}")


def test_accelerates_short_options_are_known() -> None:
    assert asked("-q") == asked("")
    with pytest.raises(InvalidArgument, match="--tee: output always goes"):
        asked("-t 3")
