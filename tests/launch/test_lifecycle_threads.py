"""Launches from any thread, several at once, that touch nothing of the kernel."""

from __future__ import annotations

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from accel_nb import notebook_launcher
from accel_nb.launch.rank.surroundings import of_this_process

from .launching import on_ranks
from .lifecycle_code import summed, umask

NUM_THREADS = 4


def launched(offset: int) -> list[tuple[int, float]]:
    return list(notebook_launcher(summed, (offset,), num_processes=2, device="cpu"))


def of_the_kernel() -> dict[str, object]:
    """What user code would notice if it changed."""
    return {
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "wakeup": signal.set_wakeup_fd(-1),
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "umask": of_this_process({}).umask,
        "directory": Path.cwd(),
        "environment": dict(os.environ),
        "path": list(sys.path),
        "hooks": (sys.excepthook, threading.excepthook, sys.stdout, sys.stderr),
    }


def test_y10_launches_from_a_thread() -> None:
    before = of_the_kernel()

    with ThreadPoolExecutor(1) as pool:
        values = pool.submit(launched, 10).result(100)

    assert values == [(0, 21.0), (1, 21.0)]
    assert of_the_kernel() == before


def test_y10_several_launches_at_once_from_threads() -> None:
    before = of_the_kernel()

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        values = list(pool.map(launched, range(NUM_THREADS), timeout=100))

    assert values == [[(0, 2.0 * offset + 1), (1, 2.0 * offset + 1)] for offset in range(NUM_THREADS)]
    assert of_the_kernel() == before


def test_y10_the_main_thread_launches_while_others_do() -> None:
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(launched, 5)
        own = launched(7)

    assert own == [(0, 15.0), (1, 15.0)]
    assert other.result(100) == [(0, 11.0), (1, 11.0)]


def test_reading_the_umask_from_many_threads_does_not_change_it() -> None:
    """Setting it to read it would, once in a few thousand times, leave it at what another thread had set."""
    before = os.umask(0o027)
    try:
        with ThreadPoolExecutor(8) as pool:
            seen = set(pool.map(lambda _: of_this_process({}).umask, range(4000)))
        after = os.umask(0o027)
    finally:
        os.umask(before)

    assert seen == {0o027}
    assert after == 0o027


def test_a_rank_has_the_kernels_umask() -> None:
    before = os.umask(0o027)
    try:
        assert on_ranks(umask) == [0o027, 0o027]
    finally:
        os.umask(before)
