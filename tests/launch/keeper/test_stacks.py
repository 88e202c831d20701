"""Python stacks: asked of ranks that can answer, told as evidence where they are some."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

import psutil

from accel_nb.launch.run import Run
from accel_nb.launch.servers.warm_client import POOL
from tests.launch.census import children, until_up, wait_until
from tests.launch.launching import on_ranks, start
from tests.launch.lifecycle_code import goes_on_when, own_pid, sleeps


def test_e02_stacks_that_were_asked_for_are_no_evidence_of_a_kill(runs: list[Run]) -> None:
    run = until_up(start(sleeps))
    runs.append(run)
    assert "in sleeps" in run.stacks()[1]

    os.kill(run.state.ranks[1].pid, signal.SIGKILL)

    assert run.wait(20)
    (died,) = (failure for failure in run.state.failures if failure.kind == "died")
    assert (died.rank, died.signal, died.stack) == (1, "SIGKILL", "")


def test_e02_the_stack_of_a_crash_is_that_of_the_crash(tmp_path: Path, runs: list[Run]) -> None:
    def crashes_when(file: str) -> None:
        print("up", flush=True)

        def waits() -> None:
            while not Path(file).exists():
                time.sleep(0.01)

        waits()
        ctypes.string_at(0)

    run = until_up(start(crashes_when, str(tmp_path / "go")))
    runs.append(run)
    assert all("in waits" in stack for stack in run.stacks().values())

    (tmp_path / "go").touch()

    assert run.wait(30)
    crashed = [failure for failure in run.state.failures if failure.signal == "SIGSEGV"]
    assert crashed
    for failure in crashed:
        assert failure.stack.startswith("Fatal Python error: Segmentation fault")
        assert "in crashes_when" in failure.stack
        assert "in waits" not in failure.stack, "what it wrote on request before"


def test_a_rank_that_has_ended_is_not_asked(tmp_path: Path, runs: list[Run]) -> None:
    def rank_1_stays(file: str) -> None:
        print("up", flush=True)
        if os.environ["RANK"] == "1":
            goes_on_when(file)

    run = until_up(start(rank_1_stays, str(tmp_path / "go")))
    runs.append(run)
    wait_until(lambda: run.state.ranks[0].gone, 20, lambda: "rank 0 goes on")

    started = time.monotonic()
    stacks = run.stacks()

    assert sorted(stacks) == [1]
    assert "in rank_1_stays" in stacks[1]
    assert time.monotonic() - started < 1.9, "nobody was waited for"


def test_a_rank_that_has_not_begun_is_not_asked(tmp_path: Path, runs: list[Run]) -> None:
    """It handles the signal only once it has begun: before that it would be killed."""
    on_ranks(own_pid)
    wait_until(lambda: len(idle_ranks()) == 2, 60, lambda: f"forked ahead: {idle_ranks()}")
    late = sorted(idle_ranks(), key=lambda rank: rank.pid)[1]
    late.suspend()
    run = start(goes_on_when, str(tmp_path / "go"))
    runs.append(run)
    try:
        wait_until(lambda: "up" in run.logs(0), 30, lambda: str(run))
        stacks = run.stacks()
    finally:
        late.resume()
    (tmp_path / "go").touch()

    assert sorted(stacks) == [0]
    assert list(run.result(60)) == ["1.0", "1.0"]


def idle_ranks() -> list[psutil.Process]:
    """Of keepers that wait for a run; the last run's may still be on its way out."""
    keepers = [keeper for pid in POOL.pids() for keeper in children(psutil.Process(pid))]
    return [rank for keeper in keepers for rank in children(keeper)]
