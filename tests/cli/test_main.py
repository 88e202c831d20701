"""``accel-nb`` from a shell: real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec

from accel_nb.protocol.diagnosis import Diagnosis
from accel_nb.protocol.version import __version__
from tests.layering import PROJECT


def accel_nb(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accel_nb.cli", *words],
        cwd=PROJECT, env={**os.environ, **variables}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_doctor_says_what_is_here_and_ends_with_0_when_nothing_is_wrong() -> None:
    done = accel_nb("doctor", "--device", "cpu", "--num-processes", "2")

    assert "2 ranks on cpu met over gloo" in done.stdout
    assert "nothing is wrong" in done.stdout
    assert done.returncode == 0, done.stderr


def test_doctor_ends_with_1_when_something_is_wrong() -> None:
    done = accel_nb("doctor", "--device", "cpu", GLOO_SOCKET_IFNAME="nosuch0")

    assert "problem: Ranks cannot work together here." in done.stdout
    assert done.returncode == 1


def test_doctor_can_speak_json() -> None:
    done = accel_nb("doctor", "--no-self-test", "--json")

    found = msgspec.json.decode(done.stdout, type=Diagnosis)
    assert "software" in found.groups
    assert done.returncode == int(not found.healthy)


def test_arguments_that_are_never_right_end_with_2() -> None:
    done = accel_nb("doctor", "--num_processes", "0")

    assert done.stderr.startswith("accel-nb doctor: num_processes=0: give a whole number")
    assert done.returncode == 2
    assert accel_nb("dance").returncode == 2


def test_output_that_nobody_reads_any_more_ends_the_command_quietly() -> None:
    recording = PROJECT / "tests" / "fixtures" / "runs" / "success.jsonl"
    closed, ours = os.pipe()
    os.close(closed)
    with os.fdopen(ours, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "accel_nb.cli", "replay", str(recording)],
            cwd=PROJECT, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=100, check=False,
        )  # fmt: skip

    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_the_command_has_a_version_and_help() -> None:
    assert accel_nb("--version").stdout == f"accel_nb {__version__}\n"
    assert "what is here, what works" in accel_nb("--help").stdout
