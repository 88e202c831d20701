"""What becomes of a meeting is said once, and reaches those who wait, whatever kind of store the run has; and who
watches for it ends with the program.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is public, says the documentation

from accel_nb.training.checkpoints.meeting import _settle


@pytest.mark.parametrize("use_libuv", [True, False])  # a launch's store is one without
def test_the_first_word_wakes_those_who_wait_and_stays(*, use_libuv: bool) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=use_libuv)
    waiting = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)

    with ThreadPoolExecutor(1) as threads:
        woken = threads.submit(waiting.wait, ["meeting/settled"], timedelta(seconds=20))
        time.sleep(0.3)  # until it waits
        _settle(server, "meeting", "first")
        woken.result()  # DistStoreError when nobody woke it
    _settle(waiting, "meeting", "second")

    assert waiting.get("meeting/settled") == b"first"


PROGRAM = """
import sys
import torch
from accel_nb import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(1, 1)
prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
accelerator.backward(prepared(torch.ones(1, 1)).sum())
optimizer.step()
accelerator.save_state(sys.argv[1])
"""


def started(rank: int, port: int, folder: Path) -> subprocess.Popen[str]:
    """As mpirun or a script of one's own starts a rank: rank 0 holds the store, and Python ends as it always does."""
    variables = {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder)],
        cwd=Path(__file__).parents[3], env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_ranks_that_have_trained_and_saved_end_well(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    ranks = [started(rank, port, tmp_path / "saved") for rank in range(2)]
    said = [rank.communicate(timeout=90)[1] for rank in ranks]

    assert [rank.returncode for rank in ranks] == [0, 0], said
