"""Launch after launch in one process: nothing accumulates, nothing of the last one is in the way of the next."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from accel_nb.launch.servers.warm_client import POOL

from . import rank_code
from .launching import on_ranks

TRAIN_TEN_TIMES = """
    import time
    import psutil
    import torch
    from accel_nb import notebook_launcher

    def train(start):
        from torch import distributed
        distributed.init_process_group("gloo")
        weight = torch.tensor(start) + distributed.get_rank()
        distributed.all_reduce(weight)
        return weight

    def used():
        own = psutil.Process()
        family = [own, *own.children(recursive=True)]
        ports = [c for process in family for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        return len(family), own.num_fds(), len(ports)

    def settled():
        # The next keeper is forked in the background.
        seen = []
        for _ in range(200):
            try:
                seen.append(used())
            except psutil.NoSuchProcess:
                continue
            if seen[-10:] == [seen[-1]] * 10:
                break
            time.sleep(0.05)
        return seen[-1]

    weights = [1.0, 2.0]
    for number in range(10):
        first, second = notebook_launcher(train, (weights,), num_processes=2, device="cpu")
        assert first.tolist() == second.tolist() == [2 * weight + 1 for weight in weights]
        # The kernel uses the result.
        weights = (first @ torch.eye(2) / 4).tolist()
        if number in (1, 9):
            print("used", *settled())
"""


def test_l06_train_predict_train_again_ten_times(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(TRAIN_TEN_TIMES))

    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)

    figures = [[int(n) for n in line.split()[1:]] for line in done.stdout.splitlines() if line.startswith("used")]
    assert len(figures) == 2, done.stdout + done.stderr
    early, late = figures
    assert late[0] == early[0], "child processes"
    assert abs(late[1] - early[1]) <= 5, "file descriptors"
    assert late[2] == early[2], "listening ports"


def test_ranks_made_ahead_for_another_count_are_let_go() -> None:
    POOL.stop_all()  # those of other tests
    for num_ranks in (2, 3, 2, 4):
        assert on_ranks(lambda: int(os.environ["RANK"]), num_processes=num_ranks) == list(range(num_ranks))

    servers = [psutil.Process(pid) for pid in POOL.pids()]
    _until(lambda: _counts_of_ranks(servers) == [4])


def _counts_of_ranks(servers: list[psutil.Process]) -> list[int]:
    """Of each keeper that is there throughout."""
    counts = []
    for keeper in (keeper for server in servers for keeper in server.children()):
        with contextlib.suppress(psutil.NoSuchProcess):
            counts.append(len(keeper.children()))
    return counts


def test_servers_that_are_not_needed_any_more_end_at_once() -> None:
    assert on_ranks(lambda: int(os.environ["RANK"])) == [0, 1]
    servers = [psutil.Process(pid) for pid in POOL.pids()]
    _until(lambda: any(server.children() for server in servers))

    started = time.monotonic()
    POOL.stop_all()

    assert time.monotonic() - started < 4, "the servers waited until they gave up"
    assert not any(server.is_running() for server in servers)
    assert POOL.pids() == []


def _until(is_so: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end, f"not so after {timeout_s:g} s"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "function", [rank_code.plain_torch, rank_code.upstreams_accelerator, rank_code.our_accelerator]
)
def test_groups_are_opened_and_closed_twenty_times_in_one_launch(function: Callable[[], list[float]]) -> None:
    # 0 + n and 1 + n over two ranks, then that sum over both again
    assert on_ranks(function) == [[2.0 * (1 + 2 * number) for number in range(rank_code.ROUNDS)]] * 2
