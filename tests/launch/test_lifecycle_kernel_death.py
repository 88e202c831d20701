"""However the kernel ends, its ranks and all they started end too."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.notebook_kernel import REPOSITORY, NotebookKernel

from .census import Census, expect_gone, id_of, ids, wait_until, written_pids
from .test_lifecycle_interrupt import WITH_FAMILY

pytestmark = pytest.mark.faults

RANKS_GONE_S = 5.0
SERVERS_GONE_S = 10.0

FAMILY_CELL = f"""
from accel_nb import notebook_launcher
{WITH_FAMILY}
run = notebook_launcher(busy, num_processes=4, device="cpu", block=False)
"""
FAMILY = 1 + 4 * (1 + 2 + 1 + 1)
"""A keeper; of each rank itself, two DataLoader workers, a sleep and a daemon."""
IS_UP = 'all("up" in run.logs(rank) for rank in range(4))'

FORKED_CHILD = """
import os, time
if (child := os.fork()) == 0:
    time.sleep(120)
    os._exit(0)
"""


def with_family(kernel: NotebookKernel) -> Census:
    kernel.ok(FAMILY_CELL)
    wait_until(lambda: kernel.value(IS_UP) is True, 60, lambda: str(kernel.value("[run.status, run.logs(0)]")))
    return Census(kernel)


def test_y02_killed_kernel_takes_everything_along_though_a_fork_of_it_lives_on(kernel: NotebookKernel) -> None:
    census = with_family(kernel)
    running = census.of_runs()
    kernel.ok(FORKED_CHILD)
    child = id_of(int(str(kernel.value("child"))))
    everything = ids(census.everything()) - {child}
    try:
        kernel.kill()
        took_s = expect_gone(running, RANKS_GONE_S)
        expect_gone(everything, SERVERS_GONE_S)
        assert psutil.pid_exists(child[0]), "the fork holds the kernel's sockets to the end of the test"
    finally:
        psutil.Process(child[0]).kill()

    print(f"{len(running)} processes were gone {took_s:.2f} s after the kernel's death")
    assert len(running) == FAMILY, running


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGHUP, signal.SIGABRT])
@pytest.mark.slow
def test_y02_a_signal_that_ends_the_kernel_ends_the_ranks(
    kernel: NotebookKernel, signal_number: signal.Signals
) -> None:
    census = with_family(kernel)
    running = census.of_runs()

    kernel.process.send_signal(signal_number)
    kernel.process.wait(20)

    expect_gone(running, RANKS_GONE_S)


def test_y02_shutdown_by_the_front_end_ends_the_ranks(kernel: NotebookKernel) -> None:
    census = with_family(kernel)
    everything = ids(census.everything())
    started = time.monotonic()

    kernel.shutdown()

    print(f"the kernel was gone {time.monotonic() - started:.2f} s after the request")
    assert len(everything) > FAMILY
    expect_gone(everything, SERVERS_GONE_S)


DRIVER = """
import os, sys, time
from accel_nb import notebook_launcher

def busy(folder):
    import os, subprocess, time
    sleep = subprocess.Popen(["sleep", "600"])
    for name, pid in (("rank", os.getpid()), ("sleep", sleep.pid)):
        with open(f"{folder}/{name}{os.environ['RANK']}.pid", "w") as file:
            file.write(str(pid))
    time.sleep(600)

if __name__ == "__main__":
    run = notebook_launcher(busy, (sys.argv[1],), num_processes=2, device="cpu", block=False)
    while sum(bool(open(f"{sys.argv[1]}/{name}").read()) for name in os.listdir(sys.argv[1])) < 4:
        time.sleep(0.02)
    print("up", flush=True)
    {end}
"""


@pytest.mark.parametrize(
    "end",
    ["os._exit(3)", *(pytest.param(end, marks=pytest.mark.slow) for end in ("sys.exit(4)", "1 / 0", "os.abort()"))],
)
def test_y02_the_end_of_a_script_ends_its_background_run(tmp_path: Path, end: str) -> None:
    script, folder = tmp_path / "driver.py", tmp_path / "pids"
    folder.mkdir()
    script.write_text(textwrap.dedent(DRIVER.replace("{end}", end)))
    driver = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**psutil.Process().environ(), "PYTHONPATH": str(REPOSITORY)},
    )
    wait_until(lambda: len(written_pids(folder)) == 4, 60, lambda: str(driver.poll()))
    started = {id_of(pid) for pid in written_pids(folder)}

    output, _ = driver.communicate(timeout=30)

    assert driver.returncode != 0
    assert "up" in output
    expect_gone(started, RANKS_GONE_S)
