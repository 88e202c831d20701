"""The fixtures of tests/conftest.py fail a test that leaves something behind: each kind, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from . import PROJECT

IMPORTS = "import os, subprocess, sys, threading, time\n"
LEAKS = {
    "processes": "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(5)'])",
    "an orphan": (
        "subprocess.run([sys.executable, '-c', 'import subprocess, sys; subprocess.Popen("
        '[sys.executable, "-c", "import time; time.sleep(5)"], start_new_session=True)\'])'
    ),
    "threads": "threading.Thread(target=time.sleep, args=(2,)).start()",
    "file descriptors": "[os.open(os.devnull, os.O_RDONLY) for _ in range(6)]",
    "environment variables": "os.environ['LEFT_BEHIND'] = '1'",
}
TIDY = """
child = subprocess.Popen([sys.executable, '-c', 'pass'])
child.wait()
thread = threading.Thread(target=time.sleep, args=(0.01,))
thread.start()
os.close(os.open(os.devnull, os.O_RDONLY))
"""


def run_pytest(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    """One test with `body`, under a copy of the project's conftest."""
    conftest = (PROJECT / "tests" / "conftest.py").read_text(encoding="utf-8")
    impatient = conftest.replace("GRACE_S = 20.0", "GRACE_S = 0.5")
    assert impatient != conftest
    (folder / "conftest.py").write_text(impatient, encoding="utf-8")
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    (folder / "test_it.py").write_text(f"{IMPORTS}\ndef test_it():\n{lines}", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("kind", LEAKS)
def test_a_test_that_leaves_something_behind_fails(kind: str, tmp_path: Path) -> None:
    done = run_pytest(tmp_path, LEAKS[kind])

    what = "processes" if kind == "an orphan" else kind
    assert done.returncode == 1, done.stdout
    assert what in done.stdout


def test_a_tidy_test_passes(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, TIDY)

    assert done.returncode == 0, done.stdout


WARM_SERVER = """
import os, subprocess, sys, time

def fork(led):
    if pid := os.fork():
        return pid
    if led:
        os.setpgid(0, 0)
    return 0

if sys.argv[1:] == ["idle"] and not fork(led=True):
    fork(led=True)
if sys.argv[1:] == ["serving"] and not fork(led=True):
    file = open(os.environ["ACCEL_NB_LOG_DIR"] + "/run.jsonl", "w")
if sys.argv[1:] == ["left by a rank"]:
    fork(led=False)
if sys.argv[1:] == ["program"]:
    subprocess.Popen(["sleep", "5"], start_new_session=True)
time.sleep(5)
"""
"""Stands in for accel_nb.launch.servers.warm_server, with children of each kind."""


@pytest.mark.parametrize(
    ("state", "may_stay"),
    [("alone", True), ("idle", True), ("serving", False), ("left by a rank", False), ("program", False)],
)
def test_a_warm_server_and_what_it_forked_ahead_may_stay(state: str, tmp_path: Path, *, may_stay: bool) -> None:
    module = tmp_path / "accel_nb" / "launch" / "servers" / "warm_server.py"
    module.parent.mkdir(parents=True)
    for package in list(module.parents)[:3]:
        (package / "__init__.py").touch()
    module.write_text(WARM_SERVER, encoding="utf-8")
    command = f"[sys.executable, '-m', 'accel_nb.launch.servers.warm_server', {state!r}]"

    done = run_pytest(tmp_path, f"subprocess.Popen({command}, cwd={str(tmp_path)!r})\ntime.sleep(0.5)")

    assert done.returncode == int(not may_stay), done.stdout
    assert ("left processes behind" in done.stdout) is not may_stay
