"""Which processes a notebook kernel has started, whatever became their parent, and which of them may stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from accel_nb.launch.run import Run
from tests.notebook_kernel import NotebookKernel

ProcessId = tuple[int, float]
"""Process id and start time: ids are used again."""

_SERVER = "accel_nb.launch.servers.warm_server"
GONE_S = 5.0


class Census:
    """Of one kernel. What it starts inherits the variable that names its folder of runs."""

    def __init__(self, kernel: NotebookKernel) -> None:
        self._kernel_pid = kernel.pid
        self._mark = str(kernel.log_dir)

    def everything(self) -> set[psutil.Process]:
        """All that the kernel started and that is alive, itself left out."""
        return {process for process in psutil.process_iter() if self._is_ours(process) and process.is_running()}

    def of_runs(self) -> set[ProcessId]:
        """Keepers that have a run, ranks, and what they started. Warm servers and what they forked ahead may stay."""
        everything = self.everything()
        servers = {process for process in everything if is_server(process)}
        idle = {keeper for server in servers for keeper in children(server) if not self._has_run_files(keeper)}
        ahead = {rank for keeper in idle for rank in children(keeper)}
        return ids(everything - servers - idle - ahead)

    def zombies(self) -> list[str]:
        """Children that ended and that the kernel has not waited for."""
        children = psutil.Process(self._kernel_pid).children(recursive=True)
        return [described(child) for child in children if _status(child) == psutil.STATUS_ZOMBIE]

    def expect_only_servers(self) -> None:
        """Fail unless soon nothing but the warm servers, and what they forked ahead, is left."""
        wait_until(lambda: not self.of_runs(), GONE_S, lambda: f"left behind: {named(self.of_runs())}")
        wait_until(lambda: not self.zombies(), GONE_S, lambda: f"zombies: {self.zombies()}")

    def _is_ours(self, process: psutil.Process) -> bool:
        if process.pid == self._kernel_pid:
            return False
        try:
            return process.environ().get("ACCEL_NB_LOG_DIR") == self._mark
        except psutil.Error:
            return False

    def _has_run_files(self, process: psutil.Process) -> bool:
        try:
            return any(file.path.startswith(f"{self._mark}/run-") for file in process.open_files())
        except psutil.Error:
            return False


def ids(processes: Iterable[psutil.Process]) -> set[ProcessId]:
    found = set()
    for process in processes:
        try:
            found.add((process.pid, process.create_time()))
        except psutil.NoSuchProcess:
            continue
    return found


def id_of(pid: int) -> ProcessId:
    return pid, psutil.Process(pid).create_time()


def is_alive(process: ProcessId) -> bool:
    """Whether that very process still runs; one that only waits to be reaped does not."""
    pid, start = process
    try:
        found = psutil.Process(pid)
        return found.create_time() == start and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def alive(processes: Iterable[ProcessId]) -> list[ProcessId]:
    return [process for process in processes if is_alive(process)]


def expect_gone(processes: Iterable[ProcessId], within_s: float = GONE_S) -> float:
    """Fail unless none of them is left within that time; gives how long it took."""
    started = time.monotonic()
    wait_until(lambda: not alive(processes), within_s, lambda: f"still there: {named(alive(processes))}")
    return time.monotonic() - started


def wait_until(is_so: Callable[[], bool], within_s: float, complaint: Callable[[], str]) -> None:
    end = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end, f"after {within_s:g} s: {complaint()}"
        time.sleep(0.02)


def named(processes: Iterable[ProcessId]) -> str:
    texts = []
    for pid, _ in processes:
        try:
            texts.append(described(psutil.Process(pid)))
        except psutil.NoSuchProcess:
            texts.append(f"{pid}: has just ended")
    return "\n".join(texts)


def described(process: psutil.Process) -> str:
    try:
        return f"{process.pid} (parent {process.ppid()}, {process.status()}): {' '.join(process.cmdline())}"
    except psutil.NoSuchProcess:
        return f"{process.pid}: has just ended"


def until_up(run: Run) -> Run:
    """Until every rank has printed "up" and this process knows that they run."""
    ranks = range(run.plan.num_ranks)
    wait_until(lambda: all("up" in run.logs(rank) for rank in ranks), 60, lambda: f"{run.status} {run.logs(0)}")
    wait_until(
        lambda: all(rank in run.state.ranks and run.state.ranks[rank].pid for rank in ranks), 5, lambda: str(run)
    )
    return run


def written_pids(folder: Path, pattern: str = "*.pid") -> list[int]:
    """Numbers that ranks wrote into files of that name."""
    return [int(file.read_text()) for file in folder.glob(pattern) if file.read_text()]


def children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []


def is_server(process: psutil.Process) -> bool:
    """The server itself, not what it forked, which has the same command line."""
    try:
        parent = process.parent()
        forked = parent is not None and _SERVER in " ".join(parent.cmdline())
        return _SERVER in " ".join(process.cmdline()) and not forked
    except psutil.Error:
        return False


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return ""
