"""A kernel that does not listen holds no rank up, and no byte is lost."""

from __future__ import annotations

import signal
import time

import pytest

from tests.notebook_kernel import NotebookKernel

from .census import wait_until

pytestmark = pytest.mark.faults

ALLOWED_S = 1.0
"""The contract is 0.1 s. A machine that is busy with other things may take the processor away for longer."""

PRINT_CELL = """
from accel_nb import notebook_launcher
def chat(num_lines):
    import os, time
    rank, longest_s, started = os.environ["RANK"], 0.0, time.monotonic()
    for number in range(num_lines):
        time.sleep(max(0.0, started + number / 1000 - time.monotonic()))
        before = time.monotonic()
        print(f"{rank}:{number} " + "x" * 60)
        longest_s = max(longest_s, time.monotonic() - before)
    return longest_s, time.monotonic() - started
"""


def start_chat(kernel: NotebookKernel, num_lines: int) -> None:
    kernel.ok(PRINT_CELL)
    kernel.ok(f"run = notebook_launcher(chat, ({num_lines},), num_processes=4, device='cpu', block=False)")
    wait_until(lambda: kernel.value("all(run.logs(rank) for rank in range(4))") is True, 60, lambda: "no output")


def check_chat(kernel: NotebookKernel, num_lines: int, silent_s: float) -> None:
    times = kernel.value("[list(value) for value in run.result(100)]", timeout_s=110)
    logs = kernel.value("[str(run.log_dir / f'rank_{rank}.log') for rank in range(4)]")
    assert isinstance(times, list)
    assert isinstance(logs, list)

    longest_s = max(longest for longest, _ in times)
    print(f"longest write in a rank: {longest_s * 1000:.1f} ms; the ranks ran {[round(ran, 1) for _, ran in times]} s")
    assert min(ran for _, ran in times) > silent_s, "the kernel was silent while they printed"
    assert longest_s < ALLOWED_S
    for rank, log in enumerate(logs):
        expected = "".join(f"{rank}:{number} {'x' * 60}\n" for number in range(num_lines))
        with open(log, newline="") as file:  # noqa: PTH123  no newline translation
            assert file.read() == expected


@pytest.mark.parametrize("stopped_s", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_stopped_kernel_blocks_no_write(kernel: NotebookKernel, stopped_s: int) -> None:
    num_lines = 1000 * (stopped_s + 2)
    start_chat(kernel, num_lines)

    kernel.process.send_signal(signal.SIGSTOP)
    time.sleep(stopped_s)
    kernel.process.send_signal(signal.SIGCONT)

    check_chat(kernel, num_lines, stopped_s)


@pytest.mark.parametrize("held_s", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_a_kernel_that_holds_its_gil_blocks_no_write(kernel: NotebookKernel, held_s: int) -> None:
    num_lines = 1000 * (held_s + 2)
    start_chat(kernel, num_lines)

    # PyDLL, unlike CDLL, keeps the GIL.
    kernel.ok(f"import ctypes; ctypes.PyDLL(None).sleep({held_s})")

    check_chat(kernel, num_lines, held_s)
