"""``accel-nb env``, ``test``, ``replay``, ``completion`` and ``to-fsdp2``."""

from __future__ import annotations

import io
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
import yaml
from rich.console import Console

from accel_nb.cli import self_test, to_fsdp2
from accel_nb.cli.completion import bash_script, fish_script
from accel_nb.cli.env import HIDDEN, without_secrets
from accel_nb.cli.main import COMMANDS, main, parsers
from accel_nb.cli.replay import _Clock, events_of, play
from accel_nb.cli.terminal_view import TerminalView, plain_view
from accel_nb.errors import ConfigError, StartError
from accel_nb.protocol.diagnosis import Fact
from accel_nb.protocol.events import RunEvent
from accel_nb.protocol.run_state import RunState
from accel_nb.protocol.version import __version__
from tests.layering import PROJECT

from .test_launch import accel_nb

pytestmark = pytest.mark.engines

RECORDINGS = PROJECT / "tests" / "fixtures" / "runs"
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FSDP1 = {
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_offload_params": False,
    "fsdp_sharding_strategy": "SHARD_GRAD_OP",
    "fsdp_use_orig_params": True,
}


@pytest.fixture(autouse=True)
def _no_settings_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_NB_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "ours"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "theirs"))


def test_the_self_test_trains_on_two_ranks_and_all_is_right(tmp_path: Path) -> None:
    done = accel_nb("test", "--cpu", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("2 ranks on cpu (asked: 2), gloo")
    checks = ["operations", "data", "training", "mismatched shapes are refused"]
    assert [line.partition(",")[0] for line in lines[1:-1]] == [f"right  {name}" for name in checks]
    assert lines[-1].startswith("all is right (")


def test_the_self_test_refuses_what_cannot_be_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test", "--num-processes", "0"]) == 2
    assert "num_processes=0: give a whole number" in capsys.readouterr().err


def test_a_self_test_whose_ranks_never_come_up_is_no_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start_run(*_given: object) -> NoReturn:
        raise StartError("The ranks never came up.")

    monkeypatch.setattr(self_test, "start_run", start_run)

    assert main(["test", "--cpu"]) == 1
    assert capsys.readouterr().out == "The ranks never came up.\n"


def test_a_report_has_what_is_needed_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump({"num_processes": 2, "tpu_env": ["HF_TOKEN=hidden1"], "use_cpu": True}))
    monkeypatch.setenv("CUDA_PLACE", "http://me:hidden2@host/logs")
    monkeypatch.setenv("ACCELERATE_API_KEY", "hidden3")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")

    assert main(["env", "--config-file", str(config)]) == 0

    text = capsys.readouterr().out
    for words in (__version__, "Python", "torch", "CPUs", "NCCL_DEBUG", "http://(not shown)@host"):
        assert words in text
    assert re.search(r"num_processes +2\n", text)
    assert "hidden" not in text


def test_a_report_can_be_json_and_tells_a_broken_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("nonsense: 1\n")

    assert main(["env", "--json", "--config-file", str(config)]) == 0

    facts = msgspec.json.decode(capsys.readouterr().out, type=list[Fact])
    (problem,) = [fact.value for fact in facts if fact.name == "problem"]
    assert "'nonsense' is no key" in problem


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HF_TOKEN", "x", HIDDEN),
        ("MY_PASSWD", "x", HIDDEN),
        ("PLACE", "hf_" + "a1" * 20, HIDDEN),
        ("PLACE", "s3://k:v@bucket", f"s3://{HIDDEN}@bucket"),
        (
            "CUDA_VISIBLE_DEVICES",
            "GPU-4f2a77aa-1111-2222-3333-444444444444",
            "GPU-4f2a77aa-1111-2222-3333-444444444444",
        ),
        (
            "CUDA_X",
            "GPU-4f2a77aa-1111-2222-3333-444444444444 hf_" + "a1" * 20,
            "GPU-4f2a77aa-1111-2222-3333-444444444444 " + HIDDEN,
        ),
        ("PLACE", "http://host/logs?api_key=short&x=1", f"http://host/logs?api_key={HIDDEN}&x=1"),
        ("NCCL_SOCKET_IFNAME", "eth0", "eth0"),
    ],
)
def test_what_looks_like_a_secret_is_not_shown(name: str, value: str, shown: str) -> None:
    assert without_secrets(name, value) == shown


def replayed(recording: Path) -> str:
    file, clock = io.StringIO(), _Clock()
    play(events_of(recording), plain_view(file, clock), clock, math.inf)
    return file.getvalue()


@pytest.mark.parametrize("recording", sorted(RECORDINGS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_every_recorded_run_can_be_shown_again_plain_and_on_a_terminal(recording: Path) -> None:
    file, clock = io.StringIO(), _Clock()
    terminal = TerminalView(Console(file=file, force_terminal=True, width=200), clock)

    play(events_of(recording), terminal, clock, math.inf)

    plain = replayed(recording)
    assert plain.startswith("accel_nb: ")
    assert "\x1b[" in file.getvalue()
    assert plain.splitlines()[0] in _COLOURS.sub("", file.getvalue())


def test_a_replay_keeps_the_pace_of_the_recording() -> None:
    slept: list[float] = []
    seen: list[RunEvent] = []

    class Seen:
        def update(self, events: Sequence[RunEvent], _state: RunState) -> None:
            seen.extend(events)

        def close(self, _state: RunState) -> None:
            slept.append(0.0)

    events = list(events_of(RECORDINGS / "success.jsonl"))
    play(iter(events), Seen(), _Clock(), 4.0, slept.append)

    lasted = max(event.time_s for event in events) - next(event.time_s for event in events if event.time_s)
    assert sum(slept) == pytest.approx(lasted / 4)
    assert seen == events


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"hello\n", "line 1: this is no event of a run"),
        (b"", "is empty: nothing has been recorded there"),
        (None, "cannot be read (No such file or directory); give a run.jsonl, or a run's folder"),
    ],
)
def test_what_is_no_recording_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, told: str
) -> None:
    file = tmp_path / "run.jsonl"
    if content is not None:
        file.write_bytes(content)

    assert main(["replay", str(file)]) == 2
    assert told in capsys.readouterr().err


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    whole = (RECORDINGS / "success.jsonl").read_bytes()
    (tmp_path / "run.jsonl").write_bytes(whole + b'{"type": "LogLi')

    assert list(events_of(tmp_path)) == list(events_of(RECORDINGS / "success.jsonl"))


def completed_in_bash(*words: str) -> list[str]:
    """What bash offers for the last of `words`, as it does at the press of the tabulator."""
    script = bash_script(parsers()[1])
    line = " ".join(f"'{word}'" for word in words)
    press = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _accel_nb; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{press}"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_and_values() -> None:
    assert completed_in_bash("accel-nb", "re") == ["replay"]
    assert set(completed_in_bash("accel-nb", "")) >= set(COMMANDS)
    assert completed_in_bash("accel-nb", "launch", "--num-p") == ["--num-processes"]
    assert completed_in_bash("accel-nb", "launch", "--mixed-precision", "") == ["no", "bf16", "fp16"]
    assert completed_in_bash("accel-nb", "config", "up") == ["update"]
    assert completed_in_bash("accel-nb", "launch", "--no-d") == ["--no-debug"]
    assert "--use-fsdp" not in completed_in_bash("accel-nb", "launch", "--")


@pytest.mark.parametrize("words", [["launch", ""], ["launch", "--config-file", ""], ["replay", ""]])
def test_where_a_file_may_stand_bash_is_left_to_offer_files(words: list[str]) -> None:
    assert completed_in_bash("accel-nb", *words) == []
    assert "complete -o default -F _accel_nb accel-nb\n" in bash_script(parsers()[1])


def test_the_other_shells_get_the_same_words(capsys: pytest.CaptureFixture[str]) -> None:
    commands = parsers()[1]

    fish = fish_script(commands)
    assert "-n '__fish_seen_subcommand_from launch' -l mixed-precision -x -a 'no bf16 fp16'" in fish
    assert all(f"-a {name} " in fish for name in commands)
    assert " -l no-debug " in fish
    assert main(["completion", "zsh"]) == 0
    zsh = capsys.readouterr().out
    assert zsh.endswith("autoload -U +X bashcompinit && bashcompinit\n" + bash_script(commands))
    if zsh_shell := shutil.which("zsh"):
        # Without the user's own files, which may have set up completion before.
        loaded = f"{zsh}\n(( $+functions[_accel_nb] )) && echo $_comps[accel-nb]"
        done = subprocess.run([zsh_shell, "-f", "-c", loaded], capture_output=True, text=True, check=True, timeout=60)
        assert (done.stdout, done.stderr) == ("_bash_complete -o default -F _accel_nb\n", "")
    if fish_shell := shutil.which("fish"):
        subprocess.run([fish_shell, "--no-execute", "-c", fish], check=True, timeout=60)


def test_every_command_has_a_help_that_shows_each_option_once(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])

        text = capsys.readouterr().out
        options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)
        assert len(options) == len(set(options))
        assert [option for option in options if "_" in option] == []


def test_a_configuration_is_converted_to_version_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = tmp_path / "old.yaml", tmp_path / "new.yaml"
    path.write_text(yaml.safe_dump({"distributed_type": "FSDP", "fsdp_config": FSDP1}))

    assert main(["to-fsdp2", "--config-file", str(path), "--output-file", str(target)]) == 0

    assert yaml.safe_load(target.read_text()) == {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_offload_params": False, "fsdp_reshard_after_forward": False, "fsdp_version": 2},
    }
    assert "fsdp_use_orig_params is left out: version 2 always does it." in capsys.readouterr().out
    assert main(["to-fsdp2", "--config-file", str(target), "--overwrite"]) == 0
    assert "is for version 2 already; nothing was written" in capsys.readouterr().out


def test_a_configuration_without_fsdp_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("num_processes: 2 # mine\n")

    assert main(["to-fsdp2", "--config-file", str(path), "--overwrite"]) == 0

    assert capsys.readouterr().out == f"{path} says nothing of FSDP; nothing was written.\n"
    assert path.read_text() == "num_processes: 2 # mine\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--config-file", "lost.yaml"], "lost.yaml: there is no such configuration file"),
        (["--config-file", "old.yaml"], "--output-file says where to write"),
        (
            ["--config-file", "old.yaml", "--output-file", "old.yaml"],
            "old.yaml exists already; --overwrite replaces it",
        ),
    ],
)
def test_a_conversion_that_would_go_wrong_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.yaml").write_text(yaml.safe_dump({"fsdp_config": FSDP1}))

    assert main(["to-fsdp2", *words]) == 2
    assert told in capsys.readouterr().err


def test_a_section_that_is_no_section_is_refused() -> None:
    with pytest.raises(ConfigError, match="fsdp_config is 3, not keys with values"):
        to_fsdp2.convert({"fsdp_config": 3})


def test_accelerates_names_are_where_people_who_move_look(tmp_path: Path) -> None:
    code = (
        "from accel_nb.commands.launch import launch_command, launch_command_parser\n"
        "from accel_nb.commands.config.config_args import ClusterConfig, load_config_from_file\n"
        "from accel_nb.commands.to_fsdp2 import convert_config_to_fsdp2\n"
        "from accel_nb.commands.accelerate_cli import main\n"
        "import sys\n"
        "parser = launch_command_parser()\n"
        "assert '--num_processes' in parser.format_help() and '--num-processes' not in parser.format_help()\n"
        "launch_command(parser.parse_args(['--cpu', '--no_config', sys.argv[1]]))\n"
    )
    (tmp_path / "exits.py").write_text("raise SystemExit(5)")

    done = subprocess.run(
        [sys.executable, "-c", code, "exits.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip

    assert done.returncode == 5, done.stderr
