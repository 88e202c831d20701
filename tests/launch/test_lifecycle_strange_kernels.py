"""Kernels that ignore or block signals, have thousands of open files, a full disk, or no place for logs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from accel_nb import PlanError
from tests.notebook_kernel import REPOSITORY

from .launching import on_ranks
from .lifecycle_code import orphan_zombies, own_pid

pytestmark = pytest.mark.faults

SCRIPT = """
import os, resource, signal, time
from tests.launch.census import until_up, wait_until
from tests.launch.launching import launch, start
from tests.launch.lifecycle_code import *

def opened(num_files):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4 * num_files, hard), hard))
    return [os.open("/dev/null", os.O_RDONLY) for _ in range(num_files)]

def writes(num_lines):
    for _ in range(num_lines):
        print("x" * 99)
    return 5

if __name__ == "__main__":
    {body}
"""
IGNORED = """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert launch(summed, 3).values == [(0, 7.0), (1, 7.0)]
    assert "ValueError: so" in str(launch(fails, "so").failure)
    assert launch(summed, 3).values == [(0, 7.0), (1, 7.0)]
"""
IGNORED_BY_OTHERS = """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for start_method in ("spawn", "fork"):
        assert launch(own_pid, start_method=start_method).values
        assert "ValueError: so" in str(launch(fails, "so", start_method=start_method).failure)
"""
BLOCKED = """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    run = until_up(start(sleeps))
    assert sorted(run.stacks()) == [0, 1]
    started = time.monotonic()
    run.stop(60)
    assert run.wait(20) and run.status == "stopped", "SIGINT does not arrive"
"""
MANY_FILES = """
    files = opened(1500)
    assert launch(summed, 3).values == [(0, 7.0), (1, 7.0)]
    assert launch(own_pid, device="auto").values
    assert launch(fails_first, 1, max_restarts=1).values
    assert launch(own_pid, start_method="spawn").values
    run = until_up(start(sleeps))
    assert sorted(run.stacks()) == [0, 1]
    run.stop()
    assert run.wait(10)
"""
FULL_DISK = """
    # No file of this kernel, and of what it starts, may be longer.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    launched = launch(writes, 30_000)
    assert launched.values == [5, 5]
    assert "rank_0.log cannot be written, lines will be missing there: File too large. The run" in launched.text
    assert len(launched.run.logs(0)) == 1 << 20
    assert launch(summed, 3).values == [(0, 7.0), (1, 7.0)]
"""


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(IGNORED, id="ignored"),
        pytest.param(IGNORED_BY_OTHERS, id="ignored_by_others", marks=pytest.mark.slow),
        pytest.param(BLOCKED, id="blocked"),
        pytest.param(MANY_FILES, id="files"),
        pytest.param(FULL_DISK, id="disk"),
    ],
)
def test_launches_from_a_strange_kernel(tmp_path: Path, body: str) -> None:
    script = tmp_path / "strange.py"
    script.write_text(SCRIPT.replace("    {body}\n", body))

    ended = subprocess.run(
        [sys.executable, str(script)],
        env={**psutil.Process().environ(), "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout


def test_no_place_for_logs_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("ACCEL_NB_LOG_DIR", str(file))

    with pytest.raises(PlanError, match=r"Logs cannot be written to .*: Not a directory\. Set the variable"):
        on_ranks(own_pid)


def test_what_ranks_orphan_during_a_run_is_reaped_during_the_run() -> None:
    """A shell command with & in each step would otherwise fill the table of processes."""
    assert on_ranks(orphan_zombies, 10) == [0, 0]
