"""A process that SIGKILL does not end: the run ends without it, after a known time, and says so."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_nb import RunFailed, RunStopped
from accel_nb.launch.keeper.stopping import KILLED_ENDS_S

from .census import expect_gone, id_of, is_alive, until_up, wait_until
from .launching import launch, on_ranks, start
from .lifecycle_code import own_pid, sleeps

pytestmark = pytest.mark.faults

HOLD = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
# PTRACE_SEIZE with PTRACE_O_TRACEEXIT: it stops on its way out, until its tracer ends. linux/ptrace.h
print("held" if libc.ptrace(0x4206, int(sys.argv[1]), None, 0x40) == 0 else ctypes.get_errno(), flush=True)
time.sleep(600)
"""
HELD = (
    "did not end when it was killed: the system holds it, in state t (tracing stop). What it uses is taken until the "
    "system lets it go."
)
REST_S = 5.0
"""For all that is not the wait for the held process."""


@contextlib.contextmanager
def held(pid: int) -> Iterator[None]:
    """As by a driver that does not answer: that process ends only after this."""
    tracer = subprocess.Popen([sys.executable, "-c", HOLD, str(pid)], stdout=subprocess.PIPE, text=True)
    try:
        assert tracer.stdout is not None
        told = tracer.stdout.readline().strip()
        if told != "held":
            pytest.skip(f"this user may not trace processes: errno {told}")
        yield
    finally:
        tracer.kill()
        tracer.wait()
        tracer.stdout.close()  # type: ignore[union-attr]  # a pipe


def test_a_stop_ends_without_a_rank_that_cannot_be_killed() -> None:
    run = until_up(start(sleeps))
    ranks = [id_of(run.state.ranks[rank].pid) for rank in range(2)]
    with held(ranks[1][0]):
        began = time.monotonic()
        run.stop(0.0)
        run.draw()
        took_s = time.monotonic() - began
        still_there = is_alive(ranks[1])

        assert run.status == "stopped"
        with pytest.raises(RunStopped):
            run.result(0)
        assert KILLED_ENDS_S <= took_s < KILLED_ENDS_S + REST_S
        assert still_there
        assert not is_alive(ranks[0])
        assert run.state.notices == (f"rank 1 (pid {ranks[1][0]}) {HELD}",)
        assert len(on_ranks(own_pid)) == 2, "the next launch works"
    expect_gone(ranks)


def test_a_failure_ends_a_run_without_a_rank_that_cannot_be_killed(tmp_path: Path) -> None:
    def fails_when(file: str) -> None:
        print("up", flush=True)
        while os.environ["RANK"] == "0" or not Path(file).exists():
            time.sleep(0.01)
        raise ValueError("the cause")

    run = until_up(start(fails_when, str(tmp_path / "go"), max_restarts=1))
    rank_0 = id_of(run.state.ranks[0].pid)
    with held(rank_0[0]):
        (tmp_path / "go").touch()

        assert run.wait(run.plan.timeouts.stop_grace_s + 1 + KILLED_ENDS_S + REST_S)
        with pytest.raises(RunFailed, match="ValueError: the cause") as raised:
            run.result(0)
    assert raised.value.rank == 1
    assert [failure.kind for failure in raised.value.failures] == ["raised", "stopped"]
    assert f"rank 0 (pid {rank_0[0]}) did not end when it was killed" in run.state.notices[0]
    assert run.state.attempt == 0, "what it holds is not free for another attempt"
    expect_gone([rank_0])


def test_a_child_that_cannot_be_killed_does_not_hold_a_good_run_open(tmp_path: Path) -> None:
    def leaves_a_child(file: str) -> None:
        child = subprocess.Popen(["sleep", "600"])
        Path(f"{file}.new").write_text(str(child.pid))
        Path(f"{file}.new").rename(file)
        while not Path(f"{file}.held").exists():
            time.sleep(0.01)

    file = tmp_path / "child"
    run = start(leaves_a_child, str(file), num_processes=1)
    wait_until(file.exists, 60, lambda: str(run))
    child = id_of(int(file.read_text()))
    with held(child[0]):
        Path(f"{file}.held").touch()

        assert list(run.result(KILLED_ENDS_S + REST_S)) == [None]
        told = f"a process that the ranks had left behind (pid {child[0]}) {HELD}"
        assert [text for text in run.state.notices if "left behind" in text] == [told]
        assert is_alive(child)
    expect_gone([child])
    assert launch(own_pid).run.status == "finished"
