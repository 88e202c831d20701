"""Processes of a joined run that are killed: a keeper, an agent, the kernel. Nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from accel_nb import RunFailed
from accel_nb.launch.run import Run
from tests.notebook_kernel import NotebookKernel

from ...census import ProcessId, expect_gone, id_of, until_up, wait_until
from ...launching import start
from .conftest import Install

pytestmark = [pytest.mark.engines, pytest.mark.faults]


def sleeps() -> None:
    print("up")
    time.sleep(100)


def under_way() -> tuple[Run, set[ProcessId]]:
    """A run, and its ranks."""
    run = until_up(start(sleeps, backend="loopback"))
    return run, {id_of(rank.pid) for rank in run.state.ranks.values()}


def failure_of(run: Run) -> RunFailed:
    assert run.wait(60)
    with pytest.raises(RunFailed) as raised:
        run.result()
    return raised.value


def test_a_killed_agent_takes_its_ranks_along_and_is_told(
    loopback: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = tmp_path / "folders"
    folders.mkdir()
    monkeypatch.setenv("TMPDIR", str(folders))
    engine = loopback()
    run, ranks = under_way()
    assert len(list(folders.glob("accel_nb_*"))) == 2

    os.kill(engine.agents[0].pid(1), signal.SIGKILL)

    failure = failure_of(run)
    assert failure.rank == 1
    assert "what held seat 1 on " in failure.cause.message
    assert "It ended by SIGKILL" in failure.cause.message
    expect_gone(ranks)
    wait_until(lambda: not list(folders.iterdir()), 30, lambda: f"left: {list(folders.iterdir())}")


def test_a_killed_keeper_is_told(loopback: Install) -> None:
    loopback()
    run, ranks = under_way()
    keeper = psutil.Process(run.state.ranks[0].pid).ppid()

    os.kill(keeper, signal.SIGKILL)

    failure = failure_of(run)
    assert failure.rank == 0
    assert "the keeper of rank 0" in failure.cause.message
    expect_gone(ranks)


def test_an_agent_that_is_told_to_end_says_so(loopback: Install) -> None:
    engine = loopback()
    run, ranks = under_way()

    os.kill(engine.agents[0].pid(0), signal.SIGTERM)

    assert "the agent of rank 0" in failure_of(run).cause.message
    expect_gone(ranks)


def test_nothing_is_left_when_the_kernel_is_killed(kernel: NotebookKernel, tmp_path: Path) -> None:
    kernel.run(
        "import os\n"
        "from pathlib import Path\n"
        "from accel_nb.launch.engines import find_engines\n"
        "from tests.launch.engines.remote.loopback import LoopbackEngine\n"
        f"engine = find_engines()['loopback'] = LoopbackEngine(Path({str(tmp_path)!r}), (0,), (1,))\n"
        "from accel_nb import notebook_launcher\n"
        "def sleeps(folder):\n"
        "    import os, time\n"
        "    open(f'{folder}/pid' + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
        "    time.sleep(100)\n"
        f"run = notebook_launcher(sleeps, ({str(tmp_path)!r},), num_processes=2, backend='loopback', block=False)\n"
    )
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files), 60, lambda: "the ranks do not run")
    started = {id_of(int(file.read_text())) for file in files}
    started |= {id_of(psutil.Process(pid).ppid()) for pid, _ in set(started)}

    kernel.kill()

    expect_gone(started)
