"""Launches from a subshell of ipykernel 7: a front end runs code there while a cell occupies the main shell."""

from __future__ import annotations

import time
from importlib.metadata import version

import pytest

from tests.launch.census import Census
from tests.notebook_kernel import Executed, NotebookKernel

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(int(version("ipykernel").split(".")[0]) < 7, reason="ipykernel 6 has no subshells"),
]

TRAIN = """
from accel_nb import notebook_launcher
import threading

def train(seconds):
    import os, time
    print("up", os.environ["RANK"], flush=True)
    time.sleep(seconds)
    return int(os.environ["RANK"])
"""


LINES = """
def lines():
    import time
    for number in range(6):
        print("line", number, flush=True)
        time.sleep(0.4)
"""


def test_y10_a_launch_from_a_subshell_beside_a_cell_of_the_main_shell(kernel: NotebookKernel) -> None:
    kernel.ok(TRAIN)
    subshell = kernel.create_subshell()
    busy = kernel.start("import time\nfor _ in range(300):\n    time.sleep(0.1)\nprint('main is over')")

    cell = kernel.start(
        "print(threading.current_thread() is threading.main_thread())\n"
        "print('values', list(notebook_launcher(train, (0.5,), num_processes=2)))",
        subshell=subshell,
    )
    done = kernel.collect(cell)
    main = kernel.so_far(busy)
    still_busy = not main.idle
    kernel.interrupt()
    kernel.collect(busy)

    assert done.ename is None, done.described()
    assert done.stdout.splitlines()[0] == "False"
    assert "values [0, 1]" in done.stdout
    assert {"[r0] up 0", "[r1] up 1"} <= set(done.stdout.splitlines())
    assert still_busy
    assert "up" not in main.stdout, "each cell has its own output"
    assert main.ename == "KeyboardInterrupt", "and its own interrupt"


def test_y10_a_failure_in_a_subshell_reads_as_one_in_a_cell(kernel: NotebookKernel) -> None:
    kernel.ok(TRAIN)
    kernel.ok("def fails():\n    raise ValueError('in a subshell')")
    subshell = kernel.create_subshell()

    done = kernel.collect(kernel.start("notebook_launcher(fails, num_processes=2)", subshell=subshell))

    assert done.ename == "RunFailed"
    assert "ValueError: in a subshell" in done.evalue
    assert kernel.value("list(notebook_launcher(train, (0,), num_processes=2))") == [0, 1]


def test_y03_a_run_of_a_subshell_is_stopped_by_its_handle_from_another(kernel: NotebookKernel) -> None:
    """The kernel's interrupt is for its main thread alone."""
    census = Census(kernel)
    kernel.ok(TRAIN)
    one, other = kernel.create_subshell(), kernel.create_subshell()
    begin = "run = notebook_launcher(train, (600,), num_processes=2, block=False)\nprint(run.wait(60), run.status)"
    waiting = kernel.start(begin, subshell=one)
    kernel.wait_for(waiting, "[r1] up 1")

    stopping = kernel.collect(kernel.start("run.stop(); print(run.wait(20))", subshell=other))
    waited = kernel.collect(waiting, timeout_s=30)

    assert stopping.stdout == "True\n"
    assert "True stopped" in waited.stdout
    census.expect_only_servers()


def test_o05_a_background_run_of_a_subshell_writes_into_its_own_cell(kernel: NotebookKernel) -> None:
    kernel.ok(
        TRAIN
        + "def lines():\n    import time\n    for n in range(6):\n        print('line', n, flush=True); time.sleep(0.4)"
    )
    subshell = kernel.create_subshell()
    launching = kernel.start("run = notebook_launcher(lines, num_processes=1, block=False)", subshell=subshell)
    kernel.collect(launching)
    others: list[Executed] = []
    end = time.monotonic() + 60
    while "line 5" not in kernel.so_far(launching).stdout:
        others.append(kernel.ok("print('another cell')"))
        others.append(kernel.collect(kernel.start("print('another cell')", subshell=subshell)))
        assert time.monotonic() < end, kernel.so_far(launching).described()
        time.sleep(0.1)

    shown = [line for line in kernel.so_far(launching).stdout.splitlines() if line.startswith("line")]
    assert shown == [f"line {number}" for number in range(6)]
    assert {cell.stdout for cell in others} == {"another cell\n"}
