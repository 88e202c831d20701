"""What it costs that ranks compare their operations first: a small gather, checks on and off, ours and Accelerate's.

    python benchmarks/checks.py [--short] [--device cpu|cuda] [--ranks N] [--json FILE]

Every rank of one launch holds all four sides and runs them in turns, a block of operations each, the order changing
from round to round, so that whatever else the machine does meets all of them. The time of a block is the slowest
rank's; the table shows the median over the rounds in microseconds per turn, and the median of each round's ratio.

    back to back   gather, gather, gather: nothing else happens
    in a step      one gather after each training step of a small model in DistributedDataParallel; the step counts, too
    ledger         noting one call, its user's line included, on each rank alone
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from accel_nb import notebook_launcher

LIBRARIES = ("ours", "upstream")
WORK = ("back to back", "in a step")
SHAPE = (32, 10)
WIDTH = 64
BATCH_SIZE = 16

AIM_RATIO = 1.3
"""Checks on to checks off, at most: on CPU ranks with gloo, and on GPUs with NCCL."""
AIM_LEDGER_US = 2.0

Side = tuple[str, bool]
"""Whose gather, and whether checks are on."""


@dataclass
class Row:
    """One line of the table: microseconds per turn, a figure for each round."""

    work: str
    library: str
    on_us: list[float]
    off_us: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(on / off for on, off in zip(self.on_us, self.off_us, strict=True))


class Blocks:
    """What one rank does in turns."""

    def __init__(self, device: str) -> None:
        import torch
        from accelerate.state import PartialState as UpstreamsState
        from accelerate.utils import gather as upstreams_gather
        from torch.nn.parallel import DistributedDataParallel

        from accel_nb import PartialState, gather

        cpu = device == "cpu"
        self._states: dict[str, Any] = {"ours": PartialState(cpu), "upstream": UpstreamsState(cpu)}
        self._gathers: dict[str, Callable[[Any], Any]] = {"ours": gather, "upstream": upstreams_gather}
        place = self._states["ours"].device
        self._data = torch.randn(SHAPE, device=place)
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))
        self._model = DistributedDataParallel(model.to(place))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._features = torch.randn(BATCH_SIZE, WIDTH, device=place)
        self._finish: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None

    def taken_us(self, work: str, side: Side, num_turns: int) -> float:
        """Microseconds per turn of one block."""
        import time

        from torch import distributed

        library, on = side
        # Upstream's is timed without ours, which would compare what it sends.
        for name, state in self._states.items():
            state.debug = on and name == library
        gather = self._gathers[library]
        for _ in range(3):
            gather(self._data)
        distributed.barrier()
        started = time.perf_counter()
        for _ in range(num_turns):
            if work == "in a step":
                self._train()
            gather(self._data)
        self._finish()
        return (time.perf_counter() - started) / num_turns * 1e6

    def _train(self) -> None:
        self._model(self._features).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def blocks_of_all_sides(device: str, num_rounds: int, num_turns: int) -> dict[str, dict[Side, list[float]]]:
    """On every rank: microseconds per turn in each block, by work and side."""
    blocks = Blocks(device)
    sides = [(library, on) for library in LIBRARIES for on in (False, True)]
    taken: dict[str, dict[Side, list[float]]] = {work: {side: [] for side in sides} for work in WORK}
    for number in range(num_rounds + 1):
        for work, side in itertools.product(WORK, sides if number % 2 else sides[::-1]):
            taken_us = blocks.taken_us(work, side, num_turns)
            if number:  # the first round warms up
                taken[work][side].append(taken_us)
    return taken


def ledger_alone(num_turns: int) -> float:
    """On every rank: microseconds for noting one call that ends at once; the best of some blocks."""
    import time

    from accel_nb.protocol import ledger
    from accel_nb.protocol.places import users_place

    own = ledger.own()
    assert own is not None
    best = float("inf")
    for _ in range(500):
        started = time.perf_counter()
        for _ in range(num_turns):
            own.end(own.begin("accel_nb.utils.gather", "[32, 10] float32", *users_place()))
        best = min(best, (time.perf_counter() - started) / num_turns * 1e6)
    return best


def rows_of(device: str, num_ranks: int, num_rounds: int, num_turns: int) -> list[Row]:
    result = notebook_launcher(blocks_of_all_sides, (device, num_rounds, num_turns), num_ranks, device=device)

    def slowest(work: str, side: Side) -> list[float]:
        return [max(of_ranks) for of_ranks in zip(*(taken[work][side] for taken in result), strict=True)]

    return [
        Row(work, library, slowest(work, (library, True)), slowest(work, (library, False)))
        for work in WORK
        for library in LIBRARIES
    ]


def verdict(figure: float, aim: float) -> str:
    return f"at most {aim:g}: {'met' if figure <= aim else 'MISSED'}"


def print_rows(rows: Sequence[Row]) -> None:
    print(f"{'':<13} {'':<9} {'checks on':>10} {'off':>10} {'on/off':>7}   microseconds per turn, medians")
    for row in rows:
        on, off = statistics.median(row.on_us), statistics.median(row.off_us)
        told = verdict(row.ratio, AIM_RATIO) if row.library == "ours" else ""
        print(f"{row.work:<13} {row.library:<9} {on:>10.1f} {off:>10.1f} {row.ratio:>7.2f}   {told}", flush=True)


def machine() -> dict[str, object]:
    versions = {name: metadata.version(name) for name in ("torch", "accelerate")}
    return {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": sys.version.split()[0], **versions}


def main() -> int:
    parser = argparse.ArgumentParser(description="Time a gather whose ranks compare first what they are about to do.")
    parser.add_argument("--short", action="store_true", help="few rounds: does it run, and roughly how fast")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single figure to FILE")
    options = parser.parse_args()

    print(*(f"{name} {value}" for name, value in machine().items()), sep=", ")
    num_rounds, num_turns = (20, 30) if options.short else (100, 100)
    rows = rows_of(options.device, options.ranks, num_rounds, num_turns)
    print_rows(rows)
    noting_us = max(notebook_launcher(ledger_alone, (300,), options.ranks, device=options.device))
    print(f"ledger: {noting_us:.2f} microseconds per call   {verdict(noting_us, AIM_LEDGER_US)}")
    if options.json:
        figures = {"machine": machine(), "rows": [asdict(row) for row in rows], "ledger_us": noting_us}
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
