"""`start_method="spawn"` and `"fork"`: the same outcomes as from the warm server."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from accel_nb.launch.run_files import server_log
from accel_nb.launch.servers.warm_client import POOL
from tests.notebook_kernel import NotebookKernel

from .census import Census, alive, expect_gone, id_of, until_up, wait_until, written_pids
from .launching import launch, start
from .lifecycle_code import (
    fails,
    goes_on_when,
    leaves_early,
    sleeps,
    sleeps_with_children,
    summed,
    with_a_whole_family,
)
from .test_lifecycle_interrupt import DEAF, IMPORTS, interrupted, is_interrupt, start_busy

pytestmark = pytest.mark.faults

METHODS = pytest.mark.parametrize("start_method", ["spawn", "fork"])


def zombies() -> list[psutil.Process]:
    POOL.pids()  # looking at the servers reaps those that earlier tests let go
    return [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


@METHODS
def test_success_leaves_no_zombie(start_method: str) -> None:
    assert launch(summed, 3, start_method=start_method).values == [(0, 7.0), (1, 7.0)]
    assert not zombies()


@METHODS
def test_an_error_and_an_early_exit_are_told(start_method: str) -> None:
    assert "ValueError: so" in str(launch(fails, "so", start_method=start_method).failure)
    assert "exited early without returning" in str(launch(leaves_early, 0, start_method=start_method).failure)
    assert not zombies()


@METHODS
def test_a_killed_rank_is_told(start_method: str) -> None:
    run = until_up(start(sleeps, start_method=start_method))
    ranks = [id_of(run.state.ranks[rank].pid) for rank in range(2)]

    os.kill(ranks[1][0], signal.SIGKILL)

    assert run.wait(10)
    assert [failure.signal for failure in run.state.failures if failure.kind == "died"] == ["SIGKILL"]
    assert not alive(ranks)
    assert not zombies()


@METHODS
def test_what_ranks_leave_behind_is_ended(start_method: str) -> None:
    launched = launch(with_a_whole_family, start_method=start_method)

    assert not [pid for family in launched.values for pid in family if psutil.pid_exists(pid)]


@METHODS
def test_y04_a_killed_keeper_takes_ranks_and_all_they_started_along(start_method: str, tmp_path: Path) -> None:
    run = until_up(start(sleeps_with_children, str(tmp_path), start_method=start_method))
    started = {id_of(pid) for pid in written_pids(tmp_path)}
    keeper = psutil.Process(run.state.ranks[0].pid).parent()
    assert keeper is not None
    guard = id_of(keeper.ppid())
    assert guard[0] != os.getpid()

    keeper.kill()

    assert run.wait(10)
    assert run.status == "failed"
    assert f"its keeper (pid {keeper.pid})" in run.state.failures[0].message
    assert f"{server_log()} says why" in run.state.failures[0].message
    assert len(started) == 6
    assert not alive({*started, guard}), "nothing is left when the run is over"
    assert f"keeper {keeper.pid} ended: exit code None, signal SIGKILL" in server_log().read_text()
    wait_until(lambda: not zombies(), 5, lambda: str(zombies()))


@METHODS
def test_a_run_survives_the_death_of_its_guard(start_method: str, tmp_path: Path) -> None:
    run = until_up(start(goes_on_when, str(tmp_path / "go"), start_method=start_method))
    keeper = psutil.Process(run.state.ranks[0].pid).parent()
    assert keeper is not None
    guard = id_of(keeper.ppid())
    os.kill(guard[0], signal.SIGKILL)
    expect_gone([guard])

    (tmp_path / "go").touch()

    assert list(run.result(60)) == ["1.0", "1.0"]
    assert not zombies()


@METHODS
def test_a_stuck_keeper_is_ended_with_all_that_is_its_own(start_method: str, tmp_path: Path) -> None:
    run = until_up(start(sleeps_with_children, str(tmp_path), start_method=start_method))
    started = {id_of(pid) for pid in written_pids(tmp_path)}
    keeper = psutil.Process(run.state.ranks[0].pid).parent()
    assert keeper is not None
    keeper.suspend()

    run.stop(0.0)

    assert run.wait(20)
    assert run.status == "stopped"
    assert not alive(started)
    assert not zombies()


@pytest.mark.parametrize("start_method", [pytest.param("spawn", marks=pytest.mark.slow), "fork"])
def test_y01_interrupt_in_a_notebook(kernel: NotebookKernel, start_method: str) -> None:
    census = Census(kernel)
    kernel.ok(IMPORTS)
    kernel.ok(DEAF)
    cell = start_busy(kernel, f"start_method={start_method!r}", "device='cpu'")
    running = census.of_runs()

    executed, took_s = interrupted(kernel, cell, group=True)

    assert len(running) == 4, running
    assert is_interrupt(executed), executed.described()
    assert took_s < 10
    expect_gone(running)
    census.expect_only_servers()
    again = kernel.ok(f"print(list(notebook_launcher(lambda: 7, num_processes=2, start_method={start_method!r})))")
    assert "[7, 7]" in again.stdout


@pytest.mark.slow
@METHODS
def test_y02_killed_kernel(kernel: NotebookKernel, start_method: str) -> None:
    census = Census(kernel)
    kernel.ok(IMPORTS)
    kernel.ok(DEAF)
    start_busy(kernel, f"start_method={start_method!r}", "device='cpu'")
    running = census.of_runs()

    kernel.kill()

    assert len(running) == 4, running
    expect_gone(running)
