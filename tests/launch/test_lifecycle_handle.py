"""`block=False`: a handle to a run in the background."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from accel_nb import RunFailed, RunStopped, notebook_launcher
from accel_nb.launch.run import Run
from tests.notebook_kernel import NotebookKernel

from .census import Census, expect_gone, id_of, until_up, wait_until
from .lifecycle_code import fails, goes_on_when, sleeps, waits_in_a_collective

pytestmark = pytest.mark.faults


def background(function: Callable[..., object], *args: object) -> Run:
    run = notebook_launcher(function, args, num_processes=2, device="cpu", block=False)
    assert isinstance(run, Run)
    return run


def status_of(run: Run) -> str:
    """Asked anew: it changes between two looks."""
    return run.status


def test_a_background_run_from_start_to_end(tmp_path: Path, runs: list[Run]) -> None:
    go = tmp_path / "go"
    started = time.monotonic()
    run = background(goes_on_when, str(go))
    runs.append(run)
    until_up(run)

    assert status_of(run) == "running"
    assert not run.wait(0.05)
    with pytest.raises(TimeoutError, match=r"goes_on_when is running after 0\.05 s"):
        run.result(0.05)
    assert "goes_on_when on 2 ranks, running" in repr(run)

    go.touch()

    assert run.wait(60)
    assert status_of(run) == "finished"
    assert list(run.result()) == ["1.0", "1.0"]
    assert run.result() is run.result()
    assert run.logs(1) == "up\non\n"
    assert (run.log_dir / "rank_0.log").read_text() == "up\non\n"
    assert run.result().duration_s <= time.monotonic() - started
    assert run.stacks() == {}
    run.stop()
    assert status_of(run) == "finished"


def test_logs_of_a_rank_that_is_not_there(runs: list[Run]) -> None:
    run = background(sleeps)
    runs.append(run)

    with pytest.raises(KeyError, match="This run has ranks 0 to 1, not 2"):
        run.logs(2)


def test_stop_ends_the_ranks(runs: list[Run]) -> None:
    run = until_up(background(sleeps))
    runs.append(run)
    ranks = {id_of(run.state.ranks[rank].pid) for rank in range(2)}

    run.stop()

    assert run.wait(10)
    assert status_of(run) == "stopped"
    expect_gone(ranks)
    with pytest.raises(RunStopped, match=r"sleeps was stopped\. Logs: "):
        run.result()


def test_stop_right_after_the_start(runs: list[Run]) -> None:
    for step in range(10):
        run = background(sleeps)
        runs.append(run)
        time.sleep(step * 0.005)

        run.stop()

        assert run.wait(10)
        assert status_of(run) == "stopped"


def test_a_failure_in_the_background_is_raised_by_result(runs: list[Run]) -> None:
    run = background(fails, "background")
    runs.append(run)

    with pytest.raises(RunFailed, match="ValueError: background"):
        run.result(60)
    assert status_of(run) == "failed"


@pytest.mark.parametrize(("function", "where"), [(waits_in_a_collective, "all_reduce"), (sleeps, "in sleeps")])
def test_stacks_come_within_3_s_also_from_a_collective(function: object, where: str, runs: list[Run]) -> None:
    assert callable(function)
    run = until_up(background(function))
    runs.append(run)
    # From the line that says so into the wait itself.
    time.sleep(0.3)
    started = time.monotonic()

    stacks = run.stacks()

    print(f"stacks after {time.monotonic() - started:.2f} s")
    assert time.monotonic() - started < 3
    assert sorted(stacks) == [0, 1]
    assert where in stacks[0]
    assert "lifecycle_code.py" in stacks[1]
    assert where in run.stacks()[0], "again"


def test_two_background_runs_at_once(tmp_path: Path, runs: list[Run]) -> None:
    gates = [tmp_path / "one", tmp_path / "two"]
    both = [background(goes_on_when, str(gate)) for gate in gates]
    runs += both
    for run in both:
        until_up(run)
    assert {run.status for run in both} == {"running"}
    assert both[0].log_dir != both[1].log_dir

    gates[1].touch()
    assert list(both[1].result(60)) == ["1.0", "1.0"]
    assert both[0].status == "running"
    gates[0].touch()

    assert list(both[0].result(60)) == ["1.0", "1.0"]


def test_a_run_in_the_foreground_beside_one_in_the_background(tmp_path: Path, runs: list[Run]) -> None:
    go = tmp_path / "go"
    behind = until_up(background(goes_on_when, str(go)))
    runs.append(behind)
    go.touch()

    foreground = notebook_launcher(sleeps, (0,), num_processes=2, device="cpu")

    assert len(set(foreground)) == 2
    assert list(behind.result(60)) == ["1.0", "1.0"]


def test_an_interrupted_cell_ends_its_own_run_only(kernel: NotebookKernel) -> None:
    """The cell that waits for the background run is interrupted: the wait ends, the run does not."""
    census = Census(kernel)
    kernel.ok("""
from accel_nb import notebook_launcher
def busy():
    import time
    print("up", flush=True)
    time.sleep(600)
run = notebook_launcher(busy, num_processes=2, device="cpu", block=False)
""")
    wait_until(lambda: kernel.value('"up" in run.logs(0) and "up" in run.logs(1)') is True, 60, lambda: "not up")
    cell = kernel.start("print('waiting', flush=True)\nrun.result()")
    kernel.wait_for(cell, "waiting")
    time.sleep(0.2)
    kernel.interrupt()
    waited = kernel.collect(cell)
    still = kernel.value("run.status")

    kernel.ok("run.stop()")

    assert waited.ename == "KeyboardInterrupt"
    assert still == "running"
    assert kernel.value("[run.wait(10), run.status]") == [True, "stopped"]
    census.expect_only_servers()
