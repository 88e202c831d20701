"""Starts ranks for tests: one process that imported torch forks each rank, so that a test takes tenths of a second.

Run as a program it is that process: it reads the folder of a job from stdin, forks the job's ranks, and answers when
all have ended. Nothing of a rank's outlives the job.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cloudpickle
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is public, says the documentation

RANK_DEADLINE_S = 90
OTHERS_READ_S = 1.0


class RankFactory:
    """Owns the process that forks ranks, from ``__enter__`` to ``__exit__``."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.rank_factory"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2], env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=RANK_DEADLINE_S)
        self._process.stdout.close()

    def run(
        self,
        function: Callable[..., Any],
        num_ranks: int,
        *args: object,
        cpu: bool = True,
        local_rank: int | None = None,
    ) -> list[Any]:
        """What ``function(*args)`` returned on each rank. AssertionError with the tracebacks if any rank failed.

        `cpu`: as a launch for CPUs would say. `local_rank`: what each rank is told instead of its own.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # the system chooses the port
        with tempfile.TemporaryDirectory() as folder:
            variables = [_torchrun_variables(rank, num_ranks, store.port, cpu=cpu) for rank in range(num_ranks)]
            for one in variables if local_rank is not None else ():
                one["LOCAL_RANK"] = str(local_rank)
            Path(folder, "job").write_bytes(cloudpickle.dumps((function, args, variables)))
            self._process.stdin.write(f"{folder}\n")
            self._process.stdin.flush()
            assert self._process.stdout.readline() == "done\n", "the process that forks ranks died"
            answers = [_answer(Path(folder, f"rank{rank}")) for rank in range(num_ranks)]
        failures = [f"rank {rank}:\n{trace}" for rank, (_, trace) in enumerate(answers) if trace]
        assert not failures, "\n".join(failures)
        return [value for value, _ in answers]


def _answer(file: Path) -> tuple[object, str]:
    if not file.exists():
        return None, "it ended without an answer"
    value, trace = cloudpickle.loads(file.read_bytes())
    return value, trace


def _torchrun_variables(rank: int, num_ranks: int, port: int, *, cpu: bool) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks),
        "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_NVLS_ENABLE": "0", "ACCELERATE_USE_CPU": str(cpu).lower(),
    }  # fmt: skip


def _serve() -> None:
    import torch._dynamo  # noqa: F401  the first optimizer of each rank would import it, in seconds

    import accel_nb.training.accelerator  # noqa: F401

    for line in sys.stdin:
        folder = Path(line.strip())
        _, _, variables = cloudpickle.loads((folder / "job").read_bytes())
        pids = [_fork(folder, rank) for rank in range(len(variables))]
        for pid in pids:
            os.waitpid(pid, 0)
        print("done", flush=True)


def _fork(folder: Path, rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        faulthandler.dump_traceback_later(RANK_DEADLINE_S, exit=True)
        os.dup2(2, 1)  # what ranks print must not mix with the answers
        function, args, variables = cloudpickle.loads((folder / "job").read_bytes())
        os.environ.update(variables[rank])
        torch.seed()  # a forked process has its parent's
        answer = (function(*args), "")
    except BaseException:  # noqa: BLE001  it is the answer
        answer = (None, traceback.format_exc())
    (folder / f"rank{rank}").write_bytes(cloudpickle.dumps(answer))
    _wait_for_the_others(folder, len(variables))
    os._exit(0)


def _wait_for_the_others(folder: Path, num_ranks: int) -> None:
    """A process that ends with unread messages takes back what it has sent last: the others get time to read it."""
    end = time.monotonic() + OTHERS_READ_S
    while time.monotonic() < end and not all((folder / f"rank{rank}").exists() for rank in range(num_ranks)):
        time.sleep(0.005)


if __name__ == "__main__":
    _serve()
