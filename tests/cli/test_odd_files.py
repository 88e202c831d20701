"""Configuration files as people have them: JSON, old, with secrets, in places that are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from accel_nb.cli.config import Question, asked_config
from accel_nb.cli.file_options import chosen_file
from accel_nb.cli.launch import request_of
from accel_nb.cli.main import main, parsers
from accel_nb.errors import ConfigError
from accel_nb.launch.planning.planner import make_plan
from accel_nb.launch.settings.cluster_config import ClusterConfig, config_of, load_config_from_file, read_mapping
from accel_nb.launch.settings.settings_file import read_settings
from accel_nb.protocol.hardware import NodeHardware
from accel_nb.protocol.plan import LaunchRequest

HERE = Path("here.yaml")


@pytest.fixture(autouse=True)
def _no_settings_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_NB_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "ours"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "theirs"))


def test_json_may_be_indented_by_tabs_and_is_told_by_line(tmp_path: Path) -> None:
    path = tmp_path / "default_config.json"
    path.write_text('{\n\t"num_processes": 2\n}\n')
    assert load_config_from_file(path).num_processes == 2

    path.write_text('{\n\t"num_processes": 2,\n}\n')

    with pytest.raises(ConfigError, match=r"default_config\.json, line 3: this is no JSON \(.+\)\. Correct it"):
        load_config_from_file(path)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (
            {"deepspeed_config": {"zero_stage": {"a": 1}, "deepspeed_config_file": "hidden"}},
            "here.yaml: deepspeed_config: zero_stage: a dict has the wrong type (Expected",
        ),
        ({"tpu_env": {"HF_TOKEN": "hidden"}}, "here.yaml: tpu_env: a dict has the wrong type (Expected"),
        ({"tpu_env": ["HF_TOKEN=hidden", 3]}, "here.yaml: tpu_env: a list has the wrong type (Expected"),
        ({"num_processes": "two"}, "here.yaml: num_processes: 'two' has the wrong type (Expected"),
    ],
)
def test_a_wrong_type_is_told_with_its_key_and_without_what_stands_beside_it(
    found: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(found, HERE)

    assert str(caught.value).startswith(told)
    assert "hidden" not in str(caught.value)


def test_a_report_about_a_broken_file_has_no_secret_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"tpu_env": {"HF_TOKEN": "hidden"}}))

    assert main(["env", "--config-file", str(path)]) == 0

    text = capsys.readouterr().out
    assert "tpu_env: a dict has the wrong type" in text
    assert "hidden" not in text


def test_no_without_quotes_is_no_backend_of_the_compiler(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("num_processes: 1\ndynamo_backend: NO\n")

    assert read_settings(path).settings.variables == {}


def test_an_old_file_is_renewed_within_its_sections(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.yaml"
    old = {"num_processes": 2, "dynamo_config": {"use_xpu": 1, "dynamo_backend": "EAGER"}}
    path.write_text(yaml.safe_dump(old))
    assert main(["launch", "--config-file", str(path), __file__]) == 2
    assert "dynamo_config: 'use_xpu' (Accelerate itself has dropped it) is no key" in capsys.readouterr().err

    assert main(["config", "update", "--config-file", str(path)]) == 0

    assert "dynamo_config: use_xpu is left out" in capsys.readouterr().out
    assert load_config_from_file(path) == ClusterConfig(num_processes=2, dynamo_config={"dynamo_backend": "EAGER"})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--force"], "--force goes with default"),
        (["update", "--force"], "--force goes with default"),
        (["update", "--mixed-precision", "bf16"], "--mixed-precision goes with default"),
        (["default", "--config-file", "file/c.yaml"], "file/c.yaml cannot be written: File exists"),
    ],
)
def test_what_config_cannot_obey_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()

    assert main(["config", *words]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"accel-nb config: {told}")


def test_settings_that_are_not_to_be_kept_are_not_written_into_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCEL_NB_CONFIG", os.devnull)
    path = tmp_path / "named.yaml"

    for words in ([], ["default", "--force"], ["update"]):
        assert main(["config", *words]) == 2
        assert f"ACCEL_NB_CONFIG is {os.devnull}, so that no settings are kept" in capsys.readouterr().err

    assert main(["config", "default", "--config-file", str(path)]) == 0
    assert read_mapping(path)["num_machines"] == 1


def test_the_default_answers_fit_a_machine_without_gpus() -> None:
    asked = []
    hardware = NodeHardware(host="here", cpu_count=4, memory_bytes=1 << 30, memory_available_bytes=1 << 30)

    def answer(question: Question) -> object:
        asked.append((question.text, question.default))
        return question.read("cuda" if question.text.startswith("What") else question.default)

    config = asked_config(hardware, answer)

    assert ("How many ranks?", "all") in asked
    assert (config.num_processes, config.distributed_type, config.use_cpu) == (-1, "MULTI_GPU", False)


def test_home_is_known_without_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    options = parsers()[1]["env"].parse_args(["--config-file", "~/c.yaml"])

    assert chosen_file(options) == tmp_path / "c.yaml"


def launched(path: Path, line: str) -> LaunchRequest:
    """What ``accel-nb launch`` asks of the launcher with the settings of `path`."""
    options = parsers()[0].parse_args(["launch", "--config-file", str(path), *line.split(), "train.py"])
    return request_of(options, read_settings(path), "train.py")


def test_what_would_have_to_be_left_out_of_the_file_is_left_out_when_the_line_says_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    two = {"num_machines": 2, "machine_rank": 1, "main_process_ip": "10.0.0.1", "main_process_port": 29511}
    path.write_text(yaml.safe_dump({**two, "num_processes": 4, "rdzv_backend": "c10d"}))
    default = LaunchRequest()

    first = launched(path, "--machine-rank 0")
    assert (first.num_nodes, first.node_rank, first.master_addr, first.use_port) == (2, 0, "10.0.0.1", 29511)
    alone = launched(path, "--num-machines 1")
    assert (alone.node_rank, alone.master_addr, alone.rdzv_backend) == (0, default.master_addr, default.rdzv_backend)
    by_mpirun = launched(path, "--backend mpi")
    assert (by_mpirun.num_nodes, by_mpirun.use_port, by_mpirun.master_addr) == (1, None, "10.0.0.1")
    assert launched(path, "--backend ray").master_addr == default.master_addr
    assert launched(path, "--backend elastic").num_nodes == 2


def test_a_refusal_names_the_file_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"main_process_port": 70000, "use_cpu": True}))

    for words in (["launch", "--config-file", str(path), __file__], ["test", "--config-file", str(path)]):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "use_port=70000: a port is a whole number" in line
        assert line.endswith(f" From {path}: device, use_port.")


def test_the_settings_of_several_machines_are_told_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    several = {"num_machines": 2, "num_processes": 4, "main_process_ip": "10.0.0.1", "main_process_port": 29511}
    path.write_text(yaml.safe_dump({**several, "use_cpu": True}))
    hardware = NodeHardware(host="here", cpu_count=4, memory_bytes=1 << 30, memory_available_bytes=1 << 30)

    plan = make_plan(launched(path, "--machine-rank 1"), hardware, kernel_env={}, run_id="r")

    assert plan.reasons[0] == (
        f"Settings: num_processes, num_nodes, device, master_addr and use_port from {path}, node_rank from the command "
        "line, the rest are defaults."
    )


FIELDS = (
    *({"num_processes": 3}, {"num_machines": 2}, {"machine_rank": 1}, {"gpu_ids": 0}, {"main_process_ip": "10.0.0.1"}),
    *({"main_process_port": 29511}, {"rdzv_backend": "c10d"}, {"main_training_function": "train"}),
    *({"enable_cpu_affinity": True}, {"downcast_bf16": "yes"}, {"distributed_type": "FSDP"}, {"use_cpu": True}),
    *({"mixed_precision": "bf16"}, {"debug": True}, {"compute_environment": "AMAZON_SAGEMAKER"}),
    *({"fp8_config": {"backend": "TE"}}, {"deepspeed_config": {"zero_stage": 2}}, {"fsdp_config": {"fsdp_version": 2}}),
    *({"parallelism_config": {"parallelism_config_tp_size": 2}}, {"megatron_lm_config": {"megatron_lm_tp_degree": 2}}),
    *({"mpirun_config": {"mpirun_hostfile": "/h"}}, {"dynamo_config": {"dynamo_backend": "EAGER"}}),
    *({"tpu_name": "a"}, {"tpu_zone": "a"}, {"tpu_use_cluster": True}, {"tpu_use_sudo": True}, {"command_file": "a"}),
    *({"commands": ["a"]}, {"tpu_vm": ["a"]}, {"tpu_env": ["A=1"]}),
)
MEANS_NOTHING = {"same_network"}
"""Machines meet in the same way in every network."""


@pytest.mark.parametrize("more", FIELDS, ids=lambda more: next(iter(more)))
def test_every_key_is_obeyed_told_or_refused(tmp_path: Path, more: dict[str, object]) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(more))

    try:
        found = read_settings(path).settings
    except ConfigError as error:
        assert next(iter(more)) in str(error)  # noqa: PT017  some of them are refused
    else:
        assert found.fields or found.variables or next(iter(more)) in " ".join(found.notices)


def test_no_key_is_left_out_of_the_test_above() -> None:
    assert {next(iter(more)) for more in FIELDS} | MEANS_NOTHING == set(ClusterConfig.__struct_fields__)


def test_a_file_for_mpirun_starts_all_its_ranks_from_here(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    several = {"num_machines": 4, "machine_rank": 0, "main_process_ip": "10.0.0.1", "main_process_port": 29500}
    mpirun = {"distributed_type": "MULTI_CPU", "mpirun_config": {"mpirun_hostfile": "/h"}}
    path.write_text(yaml.safe_dump({**several, **mpirun, "num_processes": 16, "rdzv_backend": "static"}))

    found = read_settings(path).settings

    assert found.fields == {
        "device": "cpu", "num_processes": 16, "backend": "mpi", "hostfile": "/h", "master_addr": "10.0.0.1"
    }  # fmt: skip
    why = "mpirun starts the ranks, on the hosts of mpirun_hostfile"
    assert found.notices == (f"{path}: num_machines, main_process_port: no effect, {why}.",)


def test_what_is_about_several_machines_means_nothing_on_one(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"main_process_ip": "10.0.0.1", "rdzv_backend": "c10d", "main_process_port": 29511}))

    found = read_settings(path).settings

    assert found.fields == {"use_port": 29511}
    assert found.notices == (f"{path}: main_process_ip, rdzv_backend: no effect, num_machines is 1.",)


def test_no_without_quotes_is_no_in_a_section_too(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("dynamo_config:\n  dynamo_backend: NO\n  dynamo_use_dynamic: no\n")

    assert read_settings(path).settings.variables == {
        "ACCELERATE_DYNAMO_BACKEND": "no", "ACCELERATE_DYNAMO_USE_DYNAMIC": "false"
    }  # fmt: skip
