"""One interrupt of the cell ends the ranks and all they started, whatever they are doing."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.notebook_kernel import Executed, NotebookKernel

from .census import Census, expect_gone

pytestmark = pytest.mark.faults

INTERRUPT_S = 10.0
MAX_LINES = 15
IMPORTS = "from accel_nb import notebook_launcher"
NEXT = "print('next', list(notebook_launcher(lambda: 7, num_processes=2)))"

PURE_PYTHON = """
def busy():
    print("up", flush=True)
    while True:
        sum(range(1000))
"""
IN_COLLECTIVE = """
def busy():
    import os, time
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    print("up", flush=True)
    if os.environ["RANK"] == "1":
        time.sleep(600)
    dist.all_reduce(torch.ones(1))
"""
SLEEPING = """
def busy():
    import time
    print("up", flush=True)
    time.sleep(600)
"""
DEAF = """
def busy():
    import signal, time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("up", flush=True)
    time.sleep(600)
"""
DEAF_TO_ALL = """
def busy():
    import signal, time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("up", flush=True)
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass
"""
IMPORTING = """
from pathlib import Path
Path("slow_module.py").write_text("import time; print('up', flush=True); time.sleep(600)")
def busy():
    import slow_module
"""
IN_RENDEZVOUS = """
def busy():
    import os, time
    import torch.distributed as dist
    print("up", flush=True)
    if os.environ["RANK"] == "1":
        time.sleep(600)
    dist.init_process_group("gloo")
"""
WAYS = {
    "a_in_pure_python": PURE_PYTHON,
    "b_blocked_in_a_collective": IN_COLLECTIVE,
    "c_in_time_sleep": SLEEPING,
    "d_ignoring_sigint": DEAF,
    "d_ignoring_sigint_and_sigterm": DEAF_TO_ALL,
    "e_still_importing": IMPORTING,
    "f_waiting_in_rendezvous": IN_RENDEZVOUS,
}


def start_busy(kernel: NotebookKernel, *more: str) -> str:
    """A cell that launches `busy` on two ranks, which both have written "up" to their logs."""
    runs = set(kernel.log_dir.glob("run-*"))
    cell = kernel.start(f"notebook_launcher({', '.join(['busy', 'num_processes=2', *more])})")
    end = time.monotonic() + 60
    while num_up(set(kernel.log_dir.glob("run-*")) - runs) < 2:
        assert time.monotonic() < end, kernel.so_far(cell).described()
        assert not kernel.so_far(cell).idle, kernel.so_far(cell).described()
        time.sleep(0.02)
    # The last of them is now on its way into what it blocks in.
    time.sleep(0.3)
    return cell


def num_up(runs: set[Path]) -> int:
    return sum("up" in log.read_text() for run in runs for log in run.glob("rank_*.log"))


def interrupted(kernel: NotebookKernel, cell: str, *, group: bool = False) -> tuple[Executed, float]:
    """What the cell gave, and the seconds it took from the interrupt to the end of the cell."""
    started = time.monotonic()
    kernel.interrupt(group=group)
    executed = kernel.collect(cell, timeout_s=30)
    return executed, time.monotonic() - started


def is_interrupt(executed: Executed) -> bool:
    return executed.ename == "RunInterrupted" and executed.traceback[0].startswith("KeyboardInterrupt: ")


def test_y01_interrupt_ends_ranks_whatever_they_do(kernel: NotebookKernel) -> None:
    """One kernel for all ways: each is also the next launch after the interrupt before it."""
    census = Census(kernel)
    kernel.ok(IMPORTS)
    for way, function in WAYS.items():
        kernel.ok(function)
        cell = start_busy(kernel)
        running = census.of_runs()

        executed, took_s = interrupted(kernel, cell)

        print(f"{way}: the cell was back {took_s:.2f} s after the interrupt")
        assert len(running) == 3, f"{way}: a keeper and two ranks"
        assert is_interrupt(executed), f"{way}: {executed.described()}"
        assert took_s < INTERRUPT_S, way
        expect_gone(running)
        census.expect_only_servers()
        assert "next [7, 7]" in kernel.ok(NEXT, timeout_s=INTERRUPT_S).stdout


WITH_FAMILY = """
def busy():
    import os, subprocess, sys, time
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    loader = DataLoader(TensorDataset(torch.arange(8.)), num_workers=2, persistent_workers=True)
    list(loader)
    subprocess.Popen(["sleep", "600"])
    daemon = "import os, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(600)"
    subprocess.run([sys.executable, "-c", daemon])
    print("up", flush=True)
    for batch in loader:
        time.sleep(600)
"""
FAMILY = 1 + 2 + 4 + 2 + 2
"""A keeper, two ranks, their DataLoader workers, sleeps and daemons."""


@pytest.mark.parametrize("group", [False, True], ids=["kernel_only", "whole_group"])
def test_y03_y04_interrupt_ends_what_ranks_started(kernel: NotebookKernel, group: bool) -> None:
    census = Census(kernel)
    kernel.ok(IMPORTS)
    kernel.ok(WITH_FAMILY)
    cell = start_busy(kernel)
    running = census.of_runs()

    executed, took_s = interrupted(kernel, cell, group=group)

    assert len(running) == FAMILY, running
    assert is_interrupt(executed), executed.described()
    assert executed.described().count("KeyboardInterrupt") == 1, executed.described()
    assert took_s < INTERRUPT_S
    expect_gone(running)
    census.expect_only_servers()
    assert "next [7, 7]" in kernel.ok(NEXT, timeout_s=INTERRUPT_S).stdout


STEPPING = """
def busy():
    import os, time
    from tqdm.auto import tqdm
    print("up", flush=True)
    for step in tqdm(range(1000), desc=f"train{os.environ['RANK']}"):
        time.sleep(0.02)
"""


def test_y09_an_interrupted_cell_shows_a_few_lines(kernel: NotebookKernel) -> None:
    kernel.ok(IMPORTS)
    kernel.ok(STEPPING)
    cell = start_busy(kernel)
    time.sleep(1)
    before = len(kernel.so_far(cell).text.splitlines())

    executed, _ = interrupted(kernel, cell)

    after = executed.text.splitlines()[before:] + "\n".join(executed.traceback).splitlines()
    assert len(after) <= MAX_LINES, after
    text = "\n".join(after)
    assert "busy was interrupted after" in text
    assert "2 ranks and 0 processes of theirs were stopped" in text
    assert "rank 0: train0: " in text, "the last step of each rank"
    assert "rank 1: train1: " in text, "the last step of each rank"
    assert "Traceback" not in executed.described()


def test_y01_second_interrupt_does_not_wait_for_the_grace(kernel: NotebookKernel) -> None:
    census = Census(kernel)
    kernel.ok(f"{IMPORTS}, Timeouts")
    kernel.ok(DEAF_TO_ALL)
    cell = start_busy(kernel, "timeouts=Timeouts(stop_grace_s=60)")
    running = census.of_runs()
    kernel.interrupt()
    time.sleep(0.5)
    assert not kernel.so_far(cell).idle

    executed, took_s = interrupted(kernel, cell)

    assert is_interrupt(executed), executed.described()
    assert took_s < INTERRUPT_S
    expect_gone(running)


@pytest.mark.slow
def test_y01_an_interrupt_at_any_moment_leaves_nothing_running(kernel: NotebookKernel) -> None:
    census = Census(kernel)
    kernel.ok(IMPORTS)
    kernel.ok(SLEEPING)
    kernel.ok(NEXT)
    for step in range(100):
        cell = kernel.start("print('go', flush=True)\nnotebook_launcher(busy, num_processes=2, device='cpu')")
        kernel.wait_for(cell, "go")
        time.sleep(step % 50 * 0.002)

        executed, _ = interrupted(kernel, cell)

        # Before the launcher is entered it is IPython's own.
        assert executed.ename in ("RunInterrupted", "KeyboardInterrupt"), (step, executed.described())
        census.expect_only_servers()
    assert "next [7, 7]" in kernel.ok(NEXT).stdout


def test_y01_no_interrupt_is_lost_in_a_loop_of_short_launches(kernel: NotebookKernel) -> None:
    """Many of them come when the ranks have returned and the result is on its way."""
    census = Census(kernel)
    kernel.ok(IMPORTS)
    kernel.ok(NEXT)
    for step in range(15):
        cell = kernel.start("""
print("go", flush=True)
for _ in range(10_000):
    list(notebook_launcher(lambda: 7, num_processes=2, device="cpu"))
""")
        kernel.wait_for(cell, "go")
        time.sleep(0.15 + step * 0.02)

        executed, took_s = interrupted(kernel, cell)

        # Between two launches it is Python's own.
        assert executed.ename in ("RunInterrupted", "KeyboardInterrupt"), executed.described()
        assert took_s < INTERRUPT_S
        assert len(executed.evalue.splitlines()) <= 4, executed.evalue
        census.expect_only_servers()


OBEDIENT = """
def busy():
    import time
    print("up", flush=True)
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        return "as far as it got"
"""


def test_y01_a_function_that_obeys_the_interrupt_gives_its_values(kernel: NotebookKernel) -> None:
    kernel.ok(IMPORTS)
    kernel.ok(OBEDIENT)
    cell = start_busy(kernel)

    executed, _ = interrupted(kernel, cell)

    assert executed.ename is None, executed.described()
    assert executed.result is not None
    assert executed.result.startswith("RunResult(['as far as it got', 'as far as it got']")


def test_y01_interrupt_while_the_server_starts(kernel: NotebookKernel) -> None:
    kernel.ok(IMPORTS)
    kernel.ok(SLEEPING)
    cell = kernel.start("notebook_launcher(busy, num_processes=2, device='cpu')")
    time.sleep(0.5)

    executed, took_s = interrupted(kernel, cell)

    assert is_interrupt(executed), executed.described()
    # The other on a machine so busy that the launch has not come that far.
    assert re.match("busy was interrupted (while its ranks were started|before it began); nothing", executed.evalue)
    assert took_s < 2
    assert "next [7, 7]" in kernel.ok(NEXT).stdout


def test_y08_the_kept_exception_holds_no_arguments(kernel: NotebookKernel) -> None:
    kernel.ok(IMPORTS)
    kernel.ok("""
import gc, sys, weakref
class Weights(list):
    pass
weights = Weights([1.0])
watched = weakref.ref(weights)
def fail(given):
    raise ValueError(len(given))
""")
    failed = kernel.run("notebook_launcher(fail, (weights,), num_processes=2)")

    kernel.ok("del weights; gc.collect()")

    assert failed.ename == "RunFailed", failed.described()
    assert kernel.value("type(sys.last_value).__name__") == "RunFailed"
    assert kernel.value("watched() is None")
