"""How fast loaders give batches, side by side with Hugging Face Accelerate's and plain PyTorch in one run.

    python benchmarks/loaders.py [--short] [--only CASE ...] [--ranks N] [--json FILE]

Every case is one launch of CPU ranks with gloo, which read the same data through each side's loader in turns, so that
whatever else the machine does meets all sides. Samples are tensors that exist already: what is timed is collating,
sharing and sending. Printed are medians of MiB per second, all ranks together (slowest rank), the ratio to the other
side, and the ratio that is wanted. "raw" is a plain DataLoader on every rank over its own part of the data: the least
that reading takes when nothing is shared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from accel_nb import debug_launcher

SIDES = ("ours", "upstream", "raw")
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """What is read, and how."""

    sample_bytes: int
    batch_size: int
    num_batches: int
    """Of each rank, in one pass."""
    dispatches: bool
    wanted_ratio: float | None = None
    """Ours to upstream's throughput, at least."""


CASES = {
    "dispatch-1KiB": Case(1 << 10, 32, 300, dispatches=True, wanted_ratio=2.0),
    "dispatch-1MiB": Case(1 << 20, 8, 16, dispatches=True, wanted_ratio=2.0),
    "shard-1KiB": Case(1 << 10, 32, 300, dispatches=False),
    "shard-1MiB": Case(1 << 20, 8, 16, dispatches=False),
}


@dataclass
class Row:
    """One line of the table."""

    case: str
    other: str
    ours_s: list[float]
    other_s: list[float]
    pass_mib: float
    wanted_ratio: float | None = None

    @property
    def ratio(self) -> float:
        """Ours to the other's throughput, by the medians of all rounds."""
        return statistics.median(self.other_s) / statistics.median(self.ours_s)


def passes_of_all_sides(case: Case, num_rounds: int) -> dict[str, list[float]]:
    """On every rank: seconds of each pass, by side. The order of the sides changes from round to round."""
    import time

    import torch
    from accelerate.data_loader import prepare_data_loader as upstreams
    from accelerate.state import PartialState as UpstreamsState
    from torch import distributed
    from torch.utils.data import DataLoader, IterableDataset

    from accel_nb.training.data.preparing import prepare_data_loader as ours
    from accel_nb.training.ranks.state import PartialState

    torch.set_num_threads(1)
    UpstreamsState(cpu=True)  # without it a CPU rank is rank 0 of 1 to upstream
    rank, num_ranks = PartialState().process_index, PartialState().num_processes
    pool = [torch.full((case.sample_bytes,), index, dtype=torch.uint8) for index in range(64)]
    num_samples = case.batch_size * case.num_batches

    class Samples(IterableDataset[Any]):
        def __init__(self, length: int) -> None:
            self.length = length

        def __iter__(self) -> Iterator[Any]:
            return (pool[index % len(pool)] for index in range(self.length))

    def plain(length: int) -> DataLoader[Any]:
        return DataLoader(Samples(length), case.batch_size)

    whole = num_samples * num_ranks
    loaders: dict[str, Iterable[Any]] = {
        "ours": ours(plain(whole), put_on_device=True, dispatch_batches=case.dispatches),
        "upstream": upstreams(plain(whole), put_on_device=True, dispatch_batches=case.dispatches),
        "raw": plain(num_samples),
    }

    def one_pass(loader: Iterable[Any]) -> float:
        distributed.barrier()
        started = time.perf_counter()
        num_rows = sum(len(batch) for batch in loader)
        distributed.barrier()
        taken_s = time.perf_counter() - started
        assert num_rows == num_samples, (type(loader), rank, num_rows)
        return taken_s

    taken: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(num_rounds + 1):
        names = list(loaders)
        for name in names[number % 3 :] + names[: number % 3]:
            taken_s = one_pass(loaders[name])
            if number:  # the first round warms up
                taken[name].append(taken_s)
    return taken


def rows_of(name: str, case: Case, num_ranks: int, num_rounds: int) -> list[Row]:
    result = debug_launcher(passes_of_all_sides, (case, num_rounds), num_ranks)
    slowest = {
        side: [max(of_ranks) for of_ranks in zip(*(taken[side] for taken in result), strict=True)] for side in SIDES
    }
    pass_mib = case.sample_bytes * case.batch_size * case.num_batches * num_ranks / MIB
    return [
        Row(name, other, slowest["ours"], slowest[other], pass_mib, case.wanted_ratio if other == "upstream" else None)
        for other in ("upstream", "raw")
    ]


def shown(row: Row, taken_s: list[float]) -> str:
    """Median and best in MiB per second."""
    return f"{row.pass_mib / statistics.median(taken_s):.0f} ({row.pass_mib / min(taken_s):.0f})"


def print_row(row: Row) -> None:
    verdict = ""
    if row.wanted_ratio is not None:
        verdict = f"at least {row.wanted_ratio:g}: {'met' if row.ratio >= row.wanted_ratio else 'MISSED'}"
    print(
        f"{row.case:<16} {shown(row, row.ours_s):>16} {shown(row, row.other_s):>16}  {row.other:<10} "
        f"{row.ratio:>6.2f}  {verdict}",
        flush=True,
    )


def machine() -> dict[str, object]:
    versions = {name: metadata.version(name) for name in ("torch", "accelerate")}
    return {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": sys.version.split()[0], **versions}


def main() -> int:
    parser = argparse.ArgumentParser(description="Time loaders beside Hugging Face Accelerate's and plain PyTorch.")
    parser.add_argument("--short", action="store_true", help="few rounds: does it run, and roughly how fast")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="CPU ranks; 2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single figure to FILE")
    options = parser.parse_args()

    print(*(f"{name} {value}" for name, value in machine().items()), sep=", ")
    print(f"{'case':<16} {'ours, MiB/s':>16} {'other, MiB/s':>16}  {'other':<10} {'ratio':>6}  median (best)")
    rows: list[Row] = []
    for name in options.only:
        for row in rows_of(name, CASES[name], options.ranks, 3 if options.short else 15):
            print_row(row)
            rows.append(row)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": [asdict(row) for row in rows]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
