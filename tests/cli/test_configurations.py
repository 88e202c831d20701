"""Configuration files: each set of keys that Accelerate writes, each refusal, the questions, and what a launch makes of
them.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from accel_nb.cli.file_options import chosen_file
from accel_nb.cli.launch import request_of
from accel_nb.cli.main import main, parsers
from accel_nb.errors import ConfigError, ConfigNotFound
from accel_nb.launch.planning.planner import make_plan
from accel_nb.launch.settings.cluster_config import SECTIONS, ClusterConfig, load_config_from_file
from accel_nb.launch.settings.launch_settings import settings_of
from accel_nb.launch.settings.settings_file import read_settings
from accel_nb.protocol.hardware import NodeHardware
from accel_nb.protocol.plan import LaunchRequest

CPU_ONLY = NodeHardware(host="here", cpu_count=4, memory_bytes=1 << 30, memory_available_bytes=1 << 30)
PLAIN = {
    "compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "downcast_bf16": "no", "machine_rank": 0,
    "main_process_ip": None, "main_process_port": None, "main_training_function": "main", "mixed_precision": "no",
    "num_machines": 1, "num_processes": 1, "rdzv_backend": "static", "same_network": True, "use_cpu": False,
    "debug": False, "enable_cpu_affinity": False, "gpu_ids": "all", "tpu_env": [], "tpu_use_cluster": False,
    "tpu_use_sudo": False,
}  # fmt: skip
"""What ``accelerate config`` writes for one machine without anything special."""
Write = Callable[[object], Path]


@pytest.fixture(autouse=True)
def _no_settings_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_NB_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "ours"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "theirs"))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(content: object) -> Path:
        path = tmp_path / "settings.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return written


def asked(line: str) -> LaunchRequest:
    """What ``accel-nb launch`` asks of the launcher."""
    options = parsers()[0].parse_args(["launch", *line.split(), "train.py"])
    return request_of(options, read_settings(chosen_file(options)), "train.py")


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_every_section_loads(write: Write, section: str) -> None:
    keys = dict.fromkeys(sorted(SECTIONS[section]), "1")

    assert getattr(load_config_from_file(write({**PLAIN, section: keys})), section) == keys


@pytest.mark.parametrize(
    ("more", "fields", "variables"),
    [
        ({}, {"num_processes": 1, "mixed_precision": "no"}, {}),
        ({"distributed_type": "MULTI_CPU", "num_processes": 4}, {"num_processes": 4, "device": "cpu"}, {}),
        ({"distributed_type": "MULTI_GPU", "gpu_ids": "2,0", "num_processes": 2}, {"devices": (2, 0)}, {}),
        ({"gpu_ids": 3}, {"devices": (3,)}, {}),
        ({"use_cpu": True, "mixed_precision": "bf16"}, {"device": "cpu", "mixed_precision": "bf16"}, {}),
        ({"debug": True, "main_process_port": 29511}, {"debug": True, "use_port": 29511}, {}),
        ({"debug": "yes"}, {"debug": True}, {}),
        ({"distributed_type": "TPU"}, {"device": "tpu"}, {}),
        ({"mpirun_config": {"mpirun_hostfile": "/h"}}, {"backend": "mpi", "hostfile": "/h"}, {}),
        (
            {"num_machines": 2, "machine_rank": 1, "main_process_ip": "10.0.0.1", "num_processes": 4},
            {"num_nodes": 2, "node_rank": 1, "num_processes": 2, "master_addr": "10.0.0.1"},
            {},
        ),
        ({"fp16": True, "mixed_precision": None}, {}, {}),
        (
            {"dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_use_fullgraph": True}},
            {},
            {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR", "ACCELERATE_DYNAMO_USE_FULLGRAPH": "true"},
        ),
        ({"dynamo_backend": "EAGER"}, {}, {"ACCELERATE_DYNAMO_BACKEND": "EAGER"}),
        (
            {"parallelism_config": {"parallelism_config_dp_replicate_size": 2}},
            {},
            {"PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "2", "ACCELERATE_USE_PARALLELISM_CONFIG": "true"},
        ),
    ],
)
def test_a_key_becomes_an_argument_or_a_variable(
    write: Write, more: dict[str, object], fields: dict[str, object], variables: dict[str, str]
) -> None:
    path = write({**PLAIN, **more})

    found = settings_of(load_config_from_file(path), path)

    assert found.fields.items() >= fields.items()
    assert found.variables == variables


def test_words_that_yaml_takes_for_no_are_words(write: Write) -> None:
    path = write("distributed_type: NO\nmixed_precision: no\nnum_processes: 2\n")

    assert settings_of(load_config_from_file(path), path).fields == {"num_processes": 2, "mixed_precision": "no"}


def test_the_old_name_of_half_precision_counts_when_there_is_no_new_one(write: Write) -> None:
    path = write({"distributed_type": "NO", "num_processes": 1, "fp16": True})

    assert settings_of(load_config_from_file(path), path).fields["mixed_precision"] == "fp16"


def test_what_has_no_effect_is_told(write: Write) -> None:
    path = write({**PLAIN, "fsdp_config": {"fsdp_version": 2}, "tpu_name": "mine", "tpu_zone": "there"})

    assert settings_of(load_config_from_file(path), path).notices == (
        f"{path}: fsdp_config: no effect, distributed_type is not FSDP.",
        f"{path}: tpu_name, tpu_zone: no effect, it concerns TPU pods.",
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({**PLAIN, "num_proceses": 2}, "settings.yaml: 'num_proceses' (nearest: 'num_processes') is no key"),
        ({**PLAIN, "a": 1, "b": 2}, "'a', 'b' are no keys of a configuration. Correct or remove it."),
        ({**PLAIN, "fsdp_config": {"fsdp_versoin": 2}}, "fsdp_config: 'fsdp_versoin' (nearest: 'fsdp_version')"),
        ({**PLAIN, "ipex_config": {}}, "'ipex_config' (Accelerate itself has dropped it) is no key"),
        ({**PLAIN, "num_processes": "two"}, "num_processes: 'two' has the wrong type (Expected `int`, got `str`)"),
        ({**PLAIN, "fsdp_config": 3}, "fsdp_config: 3 has the wrong type"),
        ({**PLAIN, "use_cpu": "perhaps"}, "use_cpu: 'perhaps' is neither yes nor no"),
        ({**PLAIN, "distributed_type": "FSDP"}, "distributed_type is 'FSDP', and sharded models (FSDP) are not part"),
        ({**PLAIN, "distributed_type": "MEGATRON_LM"}, "Megatron-LM is out of scope"),
        ({**PLAIN, "distributed_type": "MULTI_NPU"}, "NPU devices are not part of this version"),
        ({**PLAIN, "distributed_type": "SOME"}, "distributed_type is 'SOME', which is not known"),
        ({**PLAIN, "use_cpu": True, "distributed_type": "MULTI_GPU"}, "use_cpu and distributed_type 'MULTI_GPU' contr"),
        ({**PLAIN, "enable_cpu_affinity": True}, "enable_cpu_affinity is not part of this version"),
        ({**PLAIN, "gpu_ids": "0,,1"}, "gpu_ids: '0,,1' has an empty entry"),
        ({"compute_environment": "AMAZON_SAGEMAKER"}, "compute_environment is 'AMAZON_SAGEMAKER', and only"),
        ("a: 1\nb: : 2\n", "settings.yaml, line 2: this is no YAML (mapping values are not allowed here)"),
        ("- one\n- two\n", "settings.yaml is a list, not keys with values"),
        ("", "settings.yaml is empty, not keys with values"),
    ],
)
def test_a_bad_file_is_one_clear_line_and_exit_status_2(
    write: Write, capsys: pytest.CaptureFixture[str], content: object, told: str
) -> None:
    path = write(content)
    (path.parent / "train.py").touch()

    status = main(["launch", "--config-file", str(path), str(path.parent / "train.py")])

    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert str(path) in line
    assert status == 2


def test_a_missing_file_is_told_by_both_its_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigNotFound, match=r"lost\.yaml: there is no such configuration file\. accel-nb config"):
        load_config_from_file(tmp_path / "lost.yaml")

    assert issubclass(ConfigNotFound, FileNotFoundError)
    assert issubclass(ConfigError, ValueError)


def test_the_command_line_overrules_the_file_field_by_field(write: Write) -> None:
    path = write({**PLAIN, "num_processes": 3, "mixed_precision": "bf16", "use_cpu": True, "debug": True})

    request = asked(f"--config-file {path} --mixed-precision no --num_cpu_threads_per_process 2 --env A=1")

    assert (request.num_processes, request.mixed_precision, request.device, request.debug) == (3, "no", "cpu", True)
    assert request.env == {"OMP_NUM_THREADS": "2", "A": "1"}


def test_the_ranks_of_the_command_line_overrule_all_that_the_file_says_of_ranks(write: Write) -> None:
    path = write({**PLAIN, "distributed_type": "MULTI_GPU", "num_processes": 2, "gpu_ids": "0,1"})

    assert asked(f"--config-file {path}").devices == (0, 1)
    alone = asked(f"--config-file {path} --cpu")
    assert (alone.device, alone.devices, alone.num_processes) == ("cpu", None, None)
    assert asked(f"--config-file {path} --devices 3").num_processes is None


def test_one_line_says_where_settings_come_from(write: Write) -> None:
    path = write({**PLAIN, "num_processes": 2, "mixed_precision": "bf16", "use_cpu": True})

    plan = make_plan(asked(f"--config-file {path} --max-restarts 1"), CPU_ONLY, kernel_env={}, run_id="r")

    told = f"Settings: num_processes, device and mixed_precision from {path}, max_restarts from the command line, "
    assert [line for line in plan.notable if line.startswith("Settings")] == [f"{told}the rest are defaults."]


def test_accelerates_variables_count_where_neither_line_nor_file_says_anything(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "true"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    plan = make_plan(asked("--num-processes 2"), CPU_ONLY, kernel_env=variables, run_id="r")

    assert (plan.mixed_precision, plan.device_kind) == ("bf16", "cpu")
    assert plan.reasons[0] == (
        "Settings: num_processes from the command line, device from ACCELERATE_USE_CPU, mixed_precision from "
        "ACCELERATE_MIXED_PRECISION, the rest are defaults."
    )
    assert [line for line in plan.reasons if line.startswith("Ignored")] == []
    said = asked(f"--mixed-precision fp16 --config-file {write({**PLAIN, 'distributed_type': 'MULTI_GPU'})}")
    assert (said.mixed_precision, said.device) == ("fp16", "cuda")


def test_our_own_file_counts_before_accelerates_and_none_when_none_is_wanted(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / "accelerate" / "default_config.yaml"
    theirs.parent.mkdir(parents=True)
    theirs.write_text(yaml.safe_dump({**PLAIN, "num_processes": 5}))
    assert asked("").num_processes == 5

    ours = tmp_path / "ours" / "accel_nb" / "config.yaml"
    ours.parent.mkdir(parents=True)
    ours.write_text(yaml.safe_dump({**PLAIN, "num_processes": 3}))

    assert asked("").num_processes == 3
    assert asked("--no-config").num_processes is None


def test_the_questions_write_a_file_that_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("cpu\nmany\n4\nbf17\nbf16\ninductor\nyes\n"))

    assert main(["config"]) == 0

    path = tmp_path / "ours" / "accel_nb" / "config.yaml"
    assert load_config_from_file(path) == ClusterConfig(
        distributed_type="MULTI_CPU", num_processes=4, mixed_precision="bf16", use_cpu=True, debug=True,
        dynamo_config={"dynamo_backend": "INDUCTOR"},
    )  # fmt: skip
    request = asked("")
    assert (request.num_processes, request.device, request.debug) == (4, "cpu", True)


def test_questions_without_anybody_to_answer_name_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))

    assert main(["config"]) == 2
    assert "accel-nb config default asks nothing" in capsys.readouterr().err


def test_the_default_is_written_once_and_replaced_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made" / "new.yaml"

    assert main(["config", "default", "--config-file", str(path), "--mixed-precision", "bf16"]) == 0
    assert main(["config", "default", "--config-file", str(path)]) == 2
    assert f"{path} exists already" in capsys.readouterr().err
    assert load_config_from_file(path).mixed_precision == "bf16"
    assert main(["config", "default", "--config-file", str(path), "--force"]) == 0
    assert load_config_from_file(path).mixed_precision == "no"


def test_an_old_file_is_renewed(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write({"distributed_type": "NO", "num_processes": 2, "fp16": True, "ipex_config": {"ipex": True}})

    assert main(["config", "update", "--config-file", str(path)]) == 0

    assert "ipex_config is left out" in capsys.readouterr().out
    assert load_config_from_file(path) == ClusterConfig(num_processes=2, mixed_precision="fp16")


def test_accelerate_itself_reads_what_is_written(tmp_path: Path) -> None:
    upstream = pytest.importorskip("accelerate.commands.config.config_args")
    path = tmp_path / "ours.yaml"

    ClusterConfig(distributed_type="MULTI_CPU", num_processes=4, mixed_precision="bf16", use_cpu=True).to_yaml_file(
        path
    )

    read = upstream.load_config_from_file(str(path))
    assert (read.num_processes, read.mixed_precision, read.use_cpu) == (4, "bf16", True)
