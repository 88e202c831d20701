"""What the lifecycle tests run on ranks. Imports nothing beyond the standard library, so that no server learns it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def summed(offset: int) -> tuple[int, float]:
    """(rank, sum over the ranks of offset + rank)."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1) * (offset + dist.get_rank())
    dist.all_reduce(total)
    return dist.get_rank(), float(total)


def own_pid() -> int:
    return os.getpid()


def server_of_this_rank() -> int:
    """The pid of what forked the keeper of this rank."""
    return _state(os.getppid())[1]


def marks(file: str) -> None:
    Path(file).write_text(str(os.getpid()))


def writes_lines(num_lines: int, width: int, pause_s: float) -> None:
    """A hundred at a time, with a pause in between."""
    for start in range(0, num_lines, 100):
        print("\n".join(f"{number:<{width}}" for number in range(start, min(start + 100, num_lines))))
        time.sleep(pause_s)


def nothing() -> None:
    pass


def umask() -> int:
    return os.umask(0)


def with_a_whole_family() -> list[int]:
    """What a training script may leave behind when it returns: two DataLoader workers, a sleep, a daemon."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(torch.arange(8.0)), num_workers=2, persistent_workers=True)
    batches = iter(loader)
    list(batches)
    globals()["kept"] = batches
    workers = [worker.pid for worker in batches._workers]  # type: ignore[attr-defined]  # private to torch
    return [*workers, subprocess.Popen(["sleep", "600"]).pid, daemonised()]


def daemonised() -> int:
    """The pid of a process that has left its parents, its session and its process group."""
    source = (
        "import os, sys, time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0);"
        "print(os.getpid(), flush=True); os.close(1); time.sleep(600)"
    )
    started = subprocess.run([sys.executable, "-c", source], check=True, stdout=subprocess.PIPE, text=True)
    return int(started.stdout)


def orphan_zombies(num_orphans: int) -> int:
    """How many ended processes wait for the keeper, which has inherited them, and go on waiting."""
    for _ in range(num_orphans):
        os.system("sleep 0.05 &")
    time.sleep(1.5)
    deadline = time.monotonic() + 20
    while True:
        states = [_state(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        if not (left := states.count(("Z", os.getppid()))) or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def _state(pid: int) -> tuple[str, int]:
    """Its state's letter and its parent."""
    try:
        letter, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return letter, int(parent)


def exits(code: object) -> None:
    sys.exit(code)  # type: ignore[arg-type]  # what a user may write


def leaves_early(code: int) -> None:
    os._exit(code)


def one_fails() -> int:
    """Rank 1 raises after rank 0 has returned."""
    if os.environ["RANK"] == "1":
        time.sleep(0.1)
        raise ValueError("no")
    return 5


def fails(text: str) -> None:
    raise ValueError(text)


def fails_first(attempts: int) -> tuple[str, str, str]:
    """Raises on rank 1 in that many attempts; afterwards what torchrun's variables say."""
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(f"attempt {restarts}", flush=True)
    if int(restarts) < attempts and os.environ["RANK"] == "1":
        raise ValueError(f"attempt {restarts}")
    group = summed(int(restarts))
    return restarts, os.environ["TORCHELASTIC_MAX_RESTARTS"], str(group[1])


def dies_first(attempts: int) -> str:
    """Rank 1 is killed in that many attempts while rank 0 waits for it in a collective."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if int(restarts) < attempts and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))
    return restarts


def sleeps(seconds: float = 600) -> int:
    print("up", flush=True)
    time.sleep(seconds)
    return os.getpid()


def sleeps_with_children(folder: str) -> None:
    """Writes the pids of what it starts to files ``*.pid`` there."""
    daemon = daemonised()
    pids = {"rank": os.getpid(), "sleep": subprocess.Popen(["sleep", "600"]).pid, "daemon": daemon}
    for name, pid in pids.items():
        Path(folder, f"{name}{os.environ['RANK']}.pid").write_text(str(pid))
    print("up", flush=True)
    time.sleep(600)


def waits_in_a_collective() -> None:
    """Rank 0 waits in all_reduce, in gloo itself, for rank 1, which sleeps."""
    import torch
    import torch.distributed as dist

    from accel_nb import unchecked

    dist.init_process_group("gloo")
    print("up", flush=True)
    if os.environ["RANK"] == "0":
        with unchecked():
            dist.all_reduce(torch.ones(1))
    time.sleep(600)


def goes_on_when(file: str, seconds: float = 60) -> str:
    """Prints "up", waits until `file` exists, prints "on" and computes together with the others."""
    print("up", flush=True)
    end = time.monotonic() + seconds
    while not Path(file).exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    print("on", flush=True)
    return str(summed(0)[1])


def reads_with_workers_of_a_fork_server() -> float:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, num_workers=1, multiprocessing_context="forkserver")
    return float(sum(batch.sum() for (batch,) in loader))
