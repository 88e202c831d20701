"""What a training step costs beside plain PyTorch: DistributedDataParallel by hand, Hugging Face Accelerate, accel_nb.

    python benchmarks/step_overhead.py [--short] [--device cpu|cuda] [--ranks N ...] [--json FILE]

Each rank is a process that holds all three sides and runs them in turns, a block of steps each, so that whatever else
the machine does meets all of them. Printed are medians over the blocks: of the raw loop, and of what each library adds
to the raw block of the same round. A loop is what a person would write: accumulate, forward, backward, optimizer,
scheduler, zero_grad. On CUDA the times end with a synchronisation.

    driver  -- environment of torchrun -->  rank 0 .. N-1  -- JSON on stdout -->  driver
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

SIDES = ("raw", "upstream", "ours")
NUM_PAIRS = 10
NUM_STEPS = {"cpu": 1000, "cuda": 200}
NUM_STEPS_SHORT = 80
NUM_STEPS_OF_PART = 40
"""Of each round: every side takes so many steps in turn, so that a disturbance meets all of them, enough of them that
what a library does is in the caches, as it is where it alone trains. A pass over a loader is not divided: how it begins
is part of what it costs, spread over its batches.
"""
NUM_BATCHES = 200
"""Of a pass over a loader, at most."""
BATCH_SIZE = 16
WIDTH = {"cpu": 64, "cuda": 1024}
RANK_DEADLINE_S = 600

AIMS_US = {"step": 60.0, "batch": 25.0}
"""What may be added on CPU ranks, in microseconds."""
AIM_RATIO_CUDA = 1.03
"""Of a whole loop over a loader on CUDA, to the raw one."""


@dataclass
class Side:
    """One way to train."""

    model: Any
    optimizer: Any
    scheduler: Any
    loader: Any
    accumulate: Callable[..., AbstractContextManager[Any]]
    backward: Callable[[Any], None]
    num_schedule_steps: int = 1
    """At each update. Both libraries advance a schedule once per rank by themselves; a raw loop with the same learning
    rates calls it so often.
    """

    def step(self, features: Any, targets: Any) -> None:  # noqa: ANN401  tensors
        import torch

        with self.accumulate(self.model):
            self.backward(torch.nn.functional.mse_loss(self.model(features), targets))
            self.optimizer.step()
            for _ in range(self.num_schedule_steps):
                self.scheduler.step()
            self.optimizer.zero_grad()


def median(values: Iterable[float]) -> float:
    return float(statistics.median(values))


@dataclass
class Row:
    """One line of the table: microseconds per step or batch, a figure for each round."""

    case: str
    figure: str
    raw_us: list[float]
    upstream_us: list[float]
    ours_us: list[float]

    def added_us(self, side: str) -> float:
        """The median of what `side` adds to the raw figure of the same round."""
        return median(one - raw for one, raw in zip(getattr(self, f"{side}_us"), self.raw_us, strict=True))

    def ratio(self, side: str) -> float:
        return median(one / raw for one, raw in zip(getattr(self, f"{side}_us"), self.raw_us, strict=True))


def build(side: str, device: str, num_batches: int) -> Side:
    """The parts of `side` on this rank. All sides start from the same weights and data."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    num_ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    width = WIDTH[device]
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    data = TensorDataset(torch.randn(num_batches * BATCH_SIZE * num_ranks, width), torch.zeros(1).expand(
        num_batches * BATCH_SIZE * num_ranks, 1))  # fmt: skip
    if side != "raw":
        module = __import__("accelerate" if side == "upstream" else "accel_nb")
        accelerator = module.Accelerator(cpu=device == "cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        parts: list[Any] = accelerator.prepare(model, optimizer, schedule, DataLoader(data, BATCH_SIZE))
        model, optimizer, schedule, loader = parts
        return Side(model, optimizer, schedule, loader, accelerator.accumulate, accelerator.backward)
    place = f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" else "cpu"
    model = model.to(place)
    if num_ranks > 1:
        device_ids = [int(os.environ["LOCAL_RANK"])] if device == "cuda" else None
        model = nn.parallel.DistributedDataParallel(model, device_ids=device_ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    sampler: Any = DistributedSampler(data, num_ranks, rank, shuffle=False) if num_ranks > 1 else None
    loader = DataLoader(data, BATCH_SIZE, sampler=sampler)
    return Side(model, optimizer, schedule, loader, lambda _: nullcontext(), torch.Tensor.backward, num_ranks)


def batches(side: str, built: Side, device: str) -> Iterator[Any]:
    """A pass over the loader, each batch on the device."""
    if side == "raw" and device == "cuda":
        place = f"cuda:{os.environ['LOCAL_RANK']}"
        return ([tensor.to(place) for tensor in batch] for batch in built.loader)
    return iter(built.loader)


def timed(work: Callable[[], int], device: str) -> float:
    """Microseconds of each of the pieces that `work` says it did."""
    import torch

    def settle() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    settle()
    begin = time.perf_counter()
    num_pieces = work()
    settle()
    return (time.perf_counter() - begin) * 1e6 / num_pieces


def one_round(work: Callable[[str], int], device: str, number: int, num_parts: int) -> dict[str, float]:
    """Microseconds per piece for each side, the order of the sides changing from part to part: the median of the parts,
    of which a few are interrupted by what else the machine does.
    """
    parts: dict[str, list[float]] = {side: [] for side in SIDES}
    for part in range(num_parts):
        for turn in range(len(SIDES)):
            side = SIDES[(turn + part + number) % len(SIDES)]
            parts[side].append(timed(partial(work, side), device))
    return {side: median(figures) for side, figures in parts.items()}


def measure(device: str, num_steps: int) -> list[Row]:
    """All figures of one rank."""
    import torch

    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    num_ranks = int(os.environ["WORLD_SIZE"])
    if num_ranks > 1:
        torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    sides = {side: build(side, device, min(num_steps, NUM_BATCHES)) for side in SIDES}
    fixed = next(batches("raw", sides["raw"], device))

    def steps(side: str) -> int:
        for _ in range(NUM_STEPS_OF_PART):
            sides[side].step(*fixed)
        return NUM_STEPS_OF_PART

    def reading(side: str) -> int:
        return sum(1 for _ in batches(side, sides[side], device))

    def loop(side: str) -> int:
        count = 0
        for features, targets in batches(side, sides[side], device):
            sides[side].step(features, targets)
            count += 1
        return count

    case = f"{num_ranks} {device} rank{'s'[: num_ranks > 1]}"
    works: dict[str, tuple[Callable[[str], int], int]] = {
        "step": (steps, num_steps // NUM_STEPS_OF_PART), "batch": (reading, 1), "loop": (loop, 1)
    }  # fmt: skip
    return [Row(case, figure, *all_rounds(work, device, num_parts)) for figure, (work, num_parts) in works.items()]


def all_rounds(work: Callable[[str], int], device: str, num_parts: int) -> list[list[float]]:
    """For each side, its figures. The first round warms up and is not kept."""
    rounds = [one_round(work, device, number, num_parts) for number in range(NUM_PAIRS + 1)][1:]
    return [[one[side] for one in rounds] for side in SIDES]


def run_ranks(num_ranks: int, device: str, num_steps: int) -> list[Row]:
    """Rank 0's figures, in microseconds."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, says the documentation

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # the system chooses the port
    command = [sys.executable, __file__, "--device", device, "--as-rank", str(num_steps)]
    processes = []
    for rank in range(num_ranks):
        variables = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": str(device == "cpu").lower(),
        }  # fmt: skip
        processes.append(
            subprocess.Popen(
                command, env={**os.environ, **variables}, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            )
        )
    answer, _ = processes[0].communicate(timeout=RANK_DEADLINE_S)
    codes = [process.wait(timeout=RANK_DEADLINE_S) for process in processes]
    if any(codes):
        raise RuntimeError(f"the ranks ended with {codes}; see what they printed above.")
    return [Row(**row) for row in json.loads(answer.decode().splitlines()[-1])]


def print_row(row: Row, device: str) -> None:
    verdict = ""
    if device == "cpu" and row.figure in AIMS_US:
        met = row.added_us("ours") <= AIMS_US[row.figure]
        verdict = f"at most {AIMS_US[row.figure]:g} added: {'met' if met else 'MISSED'}; "
        verdict += f"below upstream's: {'met' if row.added_us('ours') < row.added_us('upstream') else 'MISSED'}"
    if device == "cuda" and row.figure == "loop":
        verdict = f"at most {AIM_RATIO_CUDA:g}: {'met' if row.ratio('ours') <= AIM_RATIO_CUDA else 'MISSED'}"
    print(
        f"{row.case:<14} {row.figure:<7} {statistics.median(row.raw_us):>9.1f} "
        f"{row.added_us('upstream'):>9.1f} {row.ratio('upstream'):>7.3f} "
        f"{row.added_us('ours'):>9.1f} {row.ratio('ours'):>7.3f}  {verdict}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Time training steps beside raw PyTorch and Hugging Face Accelerate.")
    parser.add_argument("--short", action="store_true", help="few steps: does it run, and roughly how fast")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], metavar="N", help="how many, each in turn")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single figure to FILE")
    parser.add_argument("--as-rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank is not None:
        print(json.dumps([asdict(row) for row in measure(options.device, options.as_rank)]), flush=True)
        return 0

    versions = {name: metadata.version(name) for name in ("torch", "accelerate")}
    print(*(f"{name} {version}" for name, version in versions.items()), f"cores {os.cpu_count()}", sep=", ")
    print(f"{'case':<14} {'figure':<7} {'raw, us':>9} {'upstream adds':>17} {'ours adds':>17}  medians of {NUM_PAIRS}")
    rows: list[Row] = []
    num_steps = NUM_STEPS_SHORT if options.short else NUM_STEPS[options.device]
    for num_ranks in options.ranks:
        for row in run_ranks(num_ranks, options.device, num_steps):
            print_row(row, options.device)
            rows.append(row)
    if options.json:
        options.json.write_text(json.dumps({"versions": versions, "rows": [asdict(row) for row in rows]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
