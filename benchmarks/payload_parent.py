"""The process that plays the notebook kernel in `payload.py`: holds large data, launches functions that capture it.

    driver process                 this process, one per side                     its ranks
    payload.py  -- case name -->   launch a function that uses ARRAY, TENSOR -->  a time stamp in a file, then wait
                <-- figures ---    added memory, measured while they wait    <--

Requests and replies are lines on two inherited pipes. Time stamps are those of ``time.monotonic``, which on Linux is
one clock for all processes. Memory is PSS: a page that n processes map counts 1/n in each, so sums are true.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import torch
from latency_parent import LAUNCHERS

NUM_RANKS = 4
CHUNK_BYTES = 64 << 20

# One thread: upstream forks this process, and a child of a process that used torch's threads hangs in its first sum.
torch.set_num_threads(1)
ARRAY = np.zeros(0, np.uint8)
TENSOR = torch.zeros(0, dtype=torch.uint8)
UNUSED = np.zeros(0, np.uint8)
ENORMOUS = np.zeros(0, np.uint8)


def enter(folder: str) -> None:
    """Captures the data and does nothing with it. Runs in each rank."""
    now = time.monotonic()
    assert ARRAY.size == TENSOR.numel()
    Path(folder, f"entered_{os.environ['RANK']}").write_text(repr(now))


def read_all(folder: str) -> None:
    """Reads every byte, then stays until the memory of all has been measured. Runs in each rank."""
    assert ARRAY.max() == TENSOR.max() == 1  # a sum would make a copy of eight times the size
    Path(folder, f"entered_{os.environ['RANK']}").write_text(repr(time.monotonic()))
    while not Path(folder, "measured").exists():
        time.sleep(0.02)


def use_enormous(folder: str) -> None:
    Path(folder, f"entered_{os.environ['RANK']}").write_text(str(ENORMOUS[0]))


def use_little(folder: str) -> None:
    Path(folder, f"entered_{os.environ['RANK']}").write_text("0.0")


def tree_pss_bytes() -> int:
    """Of this process and all below it."""
    own = psutil.Process()
    total = 0
    for process in (own, *own.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # it ended meanwhile
            continue
    return total


def entered(folder: str) -> list[float]:
    return [float(path.read_text() or 0) for path in Path(folder).glob("entered_*")]


def timed(side: str, function: Callable[[str], None]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        called = time.monotonic()
        LAUNCHERS[side](function, folder, NUM_RANKS)
        returned = time.monotonic()
        stamps = entered(folder)
    assert len(stamps) == NUM_RANKS, f"{len(stamps)} of {NUM_RANKS} ranks did their work"
    return {"entered_s": max(stamps) - called, "return_s": returned - called}


def launch(side: str) -> dict[str, float]:
    """Seconds from the call until the last rank is in the function, and until the call returns."""
    return timed(side, enter)


def memory(side: str) -> dict[str, float]:
    """PSS that a launch adds while all ranks have read all data."""
    before = tree_pss_bytes()
    added: list[int] = []
    with tempfile.TemporaryDirectory() as folder:

        def measure() -> None:
            while len(entered(folder)) < NUM_RANKS:
                time.sleep(0.05)
            added.append(tree_pss_bytes() - before)
            Path(folder, "measured").touch()

        thread = threading.Thread(target=measure, daemon=True)
        thread.start()
        LAUNCHERS[side](read_all, folder, NUM_RANKS)
        thread.join()
    return {"added_pss_bytes": added[0]}


def write_once(_: str) -> dict[str, float]:
    """The same bytes, written once to a fresh memory file: the yardstick."""
    started = time.monotonic()
    fd = os.memfd_create("yardstick")
    offset = 0
    for data in (ARRAY.data, TENSOR.numpy().data):
        for begin in range(0, data.nbytes, CHUNK_BYTES):
            offset += os.pwrite(fd, data[begin : begin + CHUNK_BYTES], offset)
    seconds = time.monotonic() - started
    os.close(fd)
    return {"write_s": seconds}


def unused(_: str) -> dict[str, float]:
    """Size of the payload of a function that uses none of the large globals."""
    from accel_nb.launch.payload.packing import pack

    with pack(use_little, ("folder",)) as packed:
        return {"size_bytes": packed.size_bytes}


def too_large(side: str) -> dict[str, float | str]:
    """A launch whose payload no memory can hold: the refusal, how long it took, what it cost."""
    global ENORMOUS  # noqa: PLW0603  it is this global that the function captures
    fd = os.memfd_create("enormous")
    os.ftruncate(fd, 1 << 43)
    ENORMOUS = np.frombuffer(mmap.mmap(fd, 1 << 43, prot=mmap.PROT_READ), np.uint8)  # nothing of it was ever written
    os.close(fd)
    before, started = tree_pss_bytes(), time.monotonic()
    try:
        timed(side, use_enormous)
    except Exception as error:  # noqa: BLE001  whatever a launcher raises is its outcome
        text = f"{type(error).__name__}: {error}"
    else:
        text = "started"
    seconds = time.monotonic() - started
    return {"refused_s": seconds, "text": text, "added_pss_bytes": tree_pss_bytes() - before}


CASES: dict[str, Callable[[str], dict[str, float] | dict[str, float | str]]] = {
    "launch": launch,
    "memory": memory,
    "write_once": write_once,
    "unused": unused,
    "too_large": too_large,
}


def main(side: str, num_bytes: int, request_fd: int, reply_fd: int) -> None:
    global ARRAY, TENSOR, UNUSED  # noqa: PLW0603  as in a notebook
    ARRAY = np.ones(num_bytes, np.uint8)
    TENSOR = torch.ones(num_bytes, dtype=torch.uint8)
    UNUSED = np.ones(num_bytes, np.uint8)
    with os.fdopen(request_fd) as requests, os.fdopen(reply_fd, "w", buffering=1) as replies:
        for case in requests:
            try:
                reply: dict[str, object] = {"figures": CASES[case.strip()](side)}
            except Exception as error:  # noqa: BLE001  whatever a launcher raises is its outcome, and is reported
                reply = {"error": f"{type(error).__name__}: {error}"}
            replies.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
