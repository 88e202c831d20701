"""A run that ends by itself: everything is reaped, nothing complains, exit statuses mean what they mean elsewhere."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from accel_nb import notebook_launcher
from accel_nb.launch.servers.warm_client import POOL
from tests.notebook_kernel import REPOSITORY

from .census import until_up, wait_until
from .launching import Launched, launch, on_ranks, start
from .lifecycle_code import (
    exits,
    leaves_early,
    one_fails,
    own_pid,
    reads_with_workers_of_a_fork_server,
    sleeps,
    with_a_whole_family,
)


def zombies() -> list[psutil.Process]:
    POOL.pids()  # looking at the servers reaps those that earlier tests let go
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.is_running() and child.status() == psutil.STATUS_ZOMBIE]


def living(pids: Iterable[int]) -> list[int]:
    """Zombies count. Numbers are not given out again for as long as a test takes."""
    return [pid for pid in pids if psutil.pid_exists(pid)]


def test_y11_ranks_are_reaped_when_the_launch_returns() -> None:
    ranks = on_ranks(own_pid)

    assert not living(ranks)
    wait_until(lambda: not zombies(), 5, lambda: str(zombies()))


def test_y11_what_ranks_leave_behind_is_ended_with_a_successful_run() -> None:
    launched = launch(with_a_whole_family)

    assert [len(family) for family in launched.values] == [4, 4]
    assert not living(pid for family in launched.values for pid in family)
    assert launched.run.state.leftovers >= 4, "sleeps and daemons"
    wait_until(lambda: not zombies(), 5, lambda: str(zombies()))


LOUD_SCRIPT = """
import sys
from accel_nb import notebook_launcher

def train():
    import multiprocessing, os
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, TensorDataset
    dist.init_process_group("gloo")
    loader = DataLoader(TensorDataset(torch.arange(8.)), num_workers=2)
    for (batch,) in loader:
        dist.all_reduce(batch)
    kept = multiprocessing.get_context("spawn").Semaphore()
    torch.ones(3).share_memory_()
    return os.getpid()

if __name__ == "__main__":
    run = notebook_launcher(train, num_processes=2, device="cpu", block=False)
    assert len(run.result(100)) == 2
    sys.exit(any(run.logs(rank) for rank in range(2)) and run.logs(0) + run.logs(1))
"""


def test_y11_a_good_end_has_no_warnings(tmp_path: Path) -> None:
    """No group not destroyed, no leaked semaphore, neither in the ranks' logs nor at the exit of the kernel."""
    script = tmp_path / "script.py"
    script.write_text(LOUD_SCRIPT)

    ended = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**psutil.Process().environ(), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("code", [0, None])
def test_y11_exit_0_is_a_success(code: object) -> None:
    assert on_ranks(exits, code) == [None, None]


def test_y11_exit_3_is_a_failure() -> None:
    failure = launch(exits, 3).failure

    assert "exit status 3" in str(failure)
    assert failure.cause.exit_code == 3
    assert failure.ranks == (0, 1)


def test_y11_exit_with_a_text_is_a_failure_that_shows_it() -> None:
    failure = launch(exits, "no data in /data").failure

    assert "no data in /data" in str(failure)
    assert "exit status 1" in str(failure)


@pytest.mark.parametrize(
    ("code", "told"), [(0, "exited early without returning"), (5, "exited with status 5 without returning")]
)
def test_y11_leaving_without_a_word_is_a_failure(code: int, told: str) -> None:
    assert told in str(launch(leaves_early, code).failure)


def num_fds() -> int:
    return psutil.Process().num_fds()


@pytest.mark.parametrize(("function", "options"), [(one_fails, {}), (own_pid, {"returns": "main"}), (own_pid, {})])
def test_values_that_nobody_takes_keep_no_descriptor(function: object, options: dict[str, object]) -> None:
    assert callable(function)
    held: list[Launched] = [launch(function, **options)]
    before = num_fds()

    for _ in range(5):
        held.append(launch(function, **options))
        try:
            held[-1].run.result()
        except Exception as error:  # noqa: BLE001  kept on purpose, as a notebook keeps the last one
            kept = error
            assert kept.__traceback__ is not None
    time.sleep(0.1)

    assert num_fds() <= before + 1


def test_a_dropped_run_keeps_no_descriptor() -> None:
    launch(own_pid)
    before = num_fds()

    for _ in range(5):
        launch(own_pid)

    wait_until(lambda: num_fds() <= before + 1, 5, lambda: f"{num_fds()} instead of {before}")


def test_nothing_is_shown_of_nothing() -> None:
    result = notebook_launcher(exits, (0,), num_processes=2, device="cpu")

    assert repr(result).startswith("RunResult([None, None], ")


def test_waiting_for_ranks_costs_no_processor_time() -> None:
    """Neither the kernel nor the server nor the keeper is woken but by news."""
    run = until_up(start(sleeps))
    keeper = psutil.Process(psutil.Process(run.state.ranks[0].pid).ppid())
    server = psutil.Process(keeper.ppid())
    watched = [psutil.Process(), keeper, server]

    before = [sum(process.cpu_times()[:2]) for process in watched]
    time.sleep(2)
    spent = [sum(process.cpu_times()[:2]) - earlier for process, earlier in zip(watched, before, strict=True)]

    run.stop(0.0)
    assert run.wait(10)
    assert max(spent) < 0.5, f"one that spins takes 2 s: {dict(zip(watched, spent, strict=True))}"


def test_servers_of_multiprocessing_are_no_leftovers() -> None:
    """They end by themselves, a moment after the rank."""
    launched = launch(reads_with_workers_of_a_fork_server)

    assert launched.values == [28.0, 28.0]
    assert launched.run.state.leftovers == 0, launched.text
