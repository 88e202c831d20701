"""One kernel through everything that can happen to launches, in random order: each ends as it should, nothing stays."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.notebook_kernel import Executed, NotebookKernel

from .census import Census, alive, children, id_of, is_server, wait_until

pytestmark = pytest.mark.faults

NUM_LAUNCHES = 25
OUTCOME_S = 10.0
COLD_OUTCOME_S = 60.0
"""A launch that has to start a server first waits for the import of torch, on a machine that other tests keep busy."""
DESCRIPTORS_ALLOWED = 5

FUNCTIONS = """
import threading
from accel_nb import notebook_launcher
from accel_nb.launch.servers.warm_client import POOL

def good():
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    return float(total)

def bad():
    import os
    good()
    if os.environ["RANK"] == "1":
        raise ValueError("as it happens")
    good()

def busy():
    import time
    print("up", flush=True)
    time.sleep(600)

def killed():
    import os, signal
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))

def gated(gate):
    import pathlib, time
    print("up", flush=True)
    while not pathlib.Path(gate).exists():
        time.sleep(0.01)
    return good()
"""


class Launches:
    """The ways a launch can go, each from its cell to what the cell must give."""

    def __init__(self, kernel: NotebookKernel, folder: Path) -> None:
        self.kernel = kernel
        self._gates = folder
        self._num_gates = 0
        self._runs: set[Path] = set()

    def success(self) -> None:
        self._expect_good(self._launched("good"))

    def user_error(self) -> None:
        executed = self._launched("bad")
        assert executed.ename == "RunFailed", executed.described()
        assert "ValueError: as it happens" in executed.evalue, executed.described()

    def interrupt(self) -> None:
        cell = self._start("busy")
        self.kernel.interrupt()
        executed = self.kernel.collect(cell)
        assert executed.ename == "RunInterrupted", executed.described()

    def killed_rank(self) -> None:
        executed = self._launched("killed")
        assert executed.ename == "RunFailed", executed.described()
        assert "rank 1 of 2 (cpu) died: killed by SIGKILL" in executed.evalue, executed.described()

    def unpicklable(self) -> None:
        executed = self._launched("good, (threading.Lock(),)")
        assert executed.ename == "NotPicklable", executed.described()

    def killed_idle_server(self) -> None:
        self._kill_servers()
        self._expect_good(self._launched("good"))

    def killed_busy_server(self) -> None:
        self._num_gates += 1
        gate = self._gates / str(self._num_gates)
        cell = self._start(f"gated, ({str(gate)!r},)")
        self._kill_servers()
        gate.touch()
        self._expect_good(self.kernel.collect(cell))

    def killed_keeper(self) -> None:
        cell = self._start("busy")
        os.kill(self._keeper(), signal.SIGKILL)
        executed = self.kernel.collect(cell)
        assert executed.ename == "RunFailed", executed.described()
        assert "the process that holds the ranks, was killed from outside" in executed.evalue, executed.described()

    def all(self) -> list[Callable[[], None]]:
        return [
            self.success,
            self.user_error,
            self.interrupt,
            self.killed_rank,
            self.unpicklable,
            self.killed_idle_server,
            self.killed_busy_server,
            self.killed_keeper,
        ]

    def _launched(self, arguments: str) -> Executed:
        return self.kernel.run(self._cell(arguments))

    @staticmethod
    def _cell(arguments: str) -> str:
        return f"print(list(notebook_launcher({arguments}, num_processes=2, device='cpu')))"

    def _start(self, arguments: str) -> str:
        """The cell of a function that prints "up", once both ranks have."""
        before = set(self.kernel.log_dir.glob("run-*"))
        cell = self.kernel.start(self._cell(arguments))
        wait_until(
            lambda: len([log for log in self._new_logs(before) if "up" in log.read_text()]) == 2,
            COLD_OUTCOME_S,
            lambda: self.kernel.so_far(cell).described(),
        )
        return cell

    def _new_logs(self, before: set[Path]) -> list[Path]:
        return [log for run in set(self.kernel.log_dir.glob("run-*")) - before for log in run.glob("rank_*.log")]

    @staticmethod
    def _expect_good(executed: Executed) -> None:
        assert executed.ename is None, executed.described()
        assert "[2.0, 2.0]" in executed.stdout, executed.described()

    def servers(self) -> list[psutil.Process]:
        """Of the kernel, which cannot be asked while its cell runs."""
        return [child for child in children(psutil.Process(self.kernel.pid)) if is_server(child)]

    def _kill_servers(self) -> None:
        for server in self.servers():
            server.kill()
            wait_until(lambda server=server: not is_server(server), 5, lambda: "alive")  # type: ignore[misc]

    def _keeper(self) -> int:
        """The one that has opened the files of a run."""
        for keeper in [keeper for server in self.servers() for keeper in children(server)]:
            if any(file.path.endswith("run.jsonl") for file in keeper.open_files()):
                return keeper.pid
        raise AssertionError("no keeper has a run")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
@pytest.mark.timeout(400)
def test_y12_whatever_happens_the_next_launch_works(kernel: NotebookKernel, tmp_path: Path, seed: int) -> None:
    launches, census = Launches(kernel, tmp_path), Census(kernel)
    kernel.ok(FUNCTIONS)
    num_descriptors = num_fds(kernel)
    ways = (launches.all() * 4)[:NUM_LAUNCHES]
    random.Random(seed).shuffle(ways)
    print(f"seed {seed}")

    for way in ways:
        is_warm = bool(launches.servers())
        started = time.monotonic()
        way()
        took_s = time.monotonic() - started
        print(f"{way.__name__}: {took_s:.2f} s{'' if is_warm else ', cold'}")
        is_warm = is_warm and way.__name__ != "killed_idle_server"
        assert took_s < (OUTCOME_S if is_warm else COLD_OUTCOME_S), way.__name__

    census.expect_only_servers()
    assert num_fds(kernel) <= num_descriptors + DESCRIPTORS_ALLOWED
    servers = kernel.value("POOL.pids()")
    assert isinstance(servers, list)
    assert sorted(servers) == sorted(server.pid for server in launches.servers())
    kernel.ok("POOL.stop_all()")
    left = {id_of(process.pid) for process in census.everything()}
    wait_until(lambda: not alive(left), OUTCOME_S, lambda: f"left of the servers: {left}")


def num_fds(kernel: NotebookKernel) -> int:
    return psutil.Process(kernel.pid).num_fds()
