"""How long the next launch takes from ranks in standby, from fresh ranks, and with Accelerate's notebook_launcher.

    python benchmarks/relaunch.py [--short] [--device cpu|cuda] [--ranks N] [--outcomes] [--json FILE]

Each side has a process of its own (`relaunch_parent.py`) and launches in turns with the others, so that whatever else
the machine does meets all of them. The function has 1 MiB of arguments. What standby ranks take to get ready is not
counted, as it passes while nobody waits; it is told beside. Printed are medians and minima.

With ``--outcomes``: 25 launches of ours that succeed, raise, are killed, interrupted or run out of memory, in random
order, with standby off and on; and on GPUs the memory in use above what was in use at the start.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DEADLINE_S = 180.0
SIDES = {"standby": ("ours", "on"), "fresh": ("ours", "off"), "upstream": ("upstream", "off")}
"""Name -> launcher, ACCEL_NB_STANDBY."""
WAYS = {"success": "finished", "user error": "failed", "kill": "failed", "interrupt": "stopped",
        "out of memory": "failed"}  # fmt: skip
"""Way to end -> status of the run."""
NUM_OUTCOMES = 25
BACK_S = 2.0
SLACK_BYTES = 64 << 20
STANDBY_BYTES = 2 << 30
CPU_RATIO = 0.15
"""From standby, call to first all_reduce, of upstream's at most: on CPU ranks ..."""
CUDA_S = 0.025
"""... and on GPUs in seconds."""

Figures = dict[str, list[float]]


class Parent:
    """A process that launches for one side."""

    def __init__(self, standby: str, folder: str) -> None:
        variables = {**os.environ, "ACCEL_NB_STANDBY": standby, "ACCEL_NB_LOG_DIR": folder}
        self._log = (Path(folder) / f"{standby}_{time.monotonic_ns()}.txt").open("w")
        self._process = subprocess.Popen(
            [sys.executable, HERE / "relaunch_parent.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, bufsize=1, env=variables,
        )  # fmt: skip

    def ask(self, do: str, **given: object) -> Any:  # noqa: ANN401  the command's answer
        """Raises RuntimeError with the problem that it reports."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"problem": f"it died; see {self._log.name}"}
        if "problem" in answer:
            raise RuntimeError(answer["problem"])
        return answer["answer"]

    def close(self) -> None:
        self._process.communicate(timeout=DEADLINE_S)
        self._log.close()


def launches(num_rounds: int, num_ranks: int, backend: str, folder: str) -> dict[str, Figures]:
    """Seconds by side and figure."""
    parents = {side: Parent(standby, folder) for side, (_, standby) in SIDES.items()}
    found: dict[str, Figures] = {side: {"all_reduce_s": [], "return_s": [], "ready_s": []} for side in SIDES}
    orders = itertools.cycle(list(itertools.permutations(SIDES)))
    for number in range(num_rounds + 1):
        for side in next(orders):
            started = time.monotonic()
            if side == "standby" and number and not parents[side].ask("ready"):
                raise RuntimeError("the ranks did not get ready")
            ready_s = time.monotonic() - started
            figures = parents[side].ask("launch", side=SIDES[side][0], num_ranks=num_ranks, backend=backend)
            if number:
                for name, value in {**figures, "ready_s": ready_s}.items():
                    found[side][name].append(value)
    for parent in parents.values():
        parent.close()
    return found


def used_bytes() -> list[int]:
    """By GPU, whoever uses it."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]
    finally:
        pynvml.nvmlShutdown()


def back_after_s(before: list[int], allowed_bytes: int) -> float | None:
    """Seconds until no GPU uses more than `allowed_bytes` above `before`; None when that takes over twice too long."""
    started = time.monotonic()
    while time.monotonic() - started < 2 * BACK_S:
        if all(now - then <= allowed_bytes for now, then in zip(used_bytes(), before, strict=True)):
            return time.monotonic() - started
        time.sleep(0.02)
    return None


def outcomes(standby: str, num_ranks: int, backend: str, folder: str, seed: int) -> bool:
    """Launch in all ways, in random order; print what was wrong, and whether nothing was."""
    parent = Parent(standby, folder)
    on_gpus = backend == "nccl"
    before = used_bytes() if on_gpus else []
    allowed_bytes = SLACK_BYTES if standby == "off" else STANDBY_BYTES
    order = [way for _ in range(NUM_OUTCOMES // len(WAYS)) for way in WAYS]
    random.Random(seed).shuffle(order)
    wrong, slowest_s = [], 0.0
    for number, way in enumerate(order):
        ended = parent.ask("outcome", way=way, num_ranks=num_ranks, backend=backend)
        if ended["status"] != WAYS[way]:
            wrong.append(f"launch {number}, {way}: {ended}")
        if on_gpus:
            back_s = back_after_s(before, allowed_bytes)
            slowest_s = max(slowest_s, back_s or float("inf"))
    let_go = parent.ask("let go")
    end_s = back_after_s(before, SLACK_BYTES) if on_gpus else 0.0
    parent.close()
    print(f"standby {standby}: {len(order)} launches, {len(wrong)} ended otherwise than wanted", flush=True)
    if on_gpus:
        allowed = f"at most {allowed_bytes / 2**30:.2f} GiB above the start"
        met = slowest_s <= BACK_S and end_s is not None and end_s <= BACK_S
        print(
            f"  {allowed} after {slowest_s:.2f} s; let go ({let_go or 'nothing'}): back after {end_s} s: {verdict(met)}"
        )
        wrong += [] if met else ["memory"]
    print(*wrong, sep="\n  ")
    return not wrong


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def shown(values: list[float]) -> str:
    return f"{statistics.median(values) * 1e3:.1f} ({min(values) * 1e3:.1f})"


def print_table(found: Mapping[str, Figures], device: str) -> bool:
    """Whether the aims are met."""
    theirs = {name: statistics.median(values) for name, values in found["upstream"].items()}
    print(f"{'call to, in ms: median (min)':<30}" + "".join(f"{side:>20}" for side in found) + "   ratios to upstream")
    for name, label in (("all_reduce_s", "first all_reduce done"), ("return_s", "return")):
        ratios = [statistics.median(found[side][name]) / theirs[name] for side in ("standby", "fresh")]
        row = "".join(f"{shown(found[side][name]):>20}" for side in found)
        print(f"{label:<30}{row}   {ratios[0]:.3f}, {ratios[1]:.3f}")
    print(f"{'standby ranks were ready after':<30}{shown(found['standby']['ready_s']):>20}")
    standby_s = statistics.median(found["standby"]["all_reduce_s"])
    fresh = statistics.median(found["fresh"]["all_reduce_s"]) <= theirs["all_reduce_s"]
    if device == "cuda":
        met, aim = standby_s <= CUDA_S, f"at most {CUDA_S * 1e3:g} ms"
    else:
        met, aim = standby_s <= CPU_RATIO * theirs["all_reduce_s"], f"at most {CPU_RATIO:g} of upstream's"
    print(f"standby, first all_reduce, {aim}: {verdict(met)}; fresh, at most 1.0 of upstream's: {verdict(fresh)}")
    return met and fresh


def main() -> int:
    parser = argparse.ArgumentParser(description="Time launches from standby, fresh ones, and Accelerate's.")
    parser.add_argument("--short", action="store_true", help="few rounds: does it run, and roughly how fast")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--outcomes", action="store_true", help="also launch in all ways to end, in random order")
    parser.add_argument("--seed", type=int, default=0, help="of that order")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single figure to FILE")
    options = parser.parse_args()

    versions = {name: metadata.version(name) for name in ("torch", "accelerate")}
    print(f"cores {os.cpu_count()}, load {os.getloadavg()[0]:.1f},", *(f"{k} {v}," for k, v in versions.items()))
    backend = "nccl" if options.device == "cuda" else "gloo"
    with tempfile.TemporaryDirectory() as folder:
        found = launches(5 if options.short else 25, options.ranks, backend, folder)
        good = print_table(found, options.device)
        if options.outcomes:
            for standby in ("off", "on"):
                good &= outcomes(standby, options.ranks, backend, folder, options.seed)
    if options.json:
        options.json.write_text(json.dumps({"versions": versions, "figures": found}, indent=1))
    return 0 if good or options.short else 1


if __name__ == "__main__":
    sys.exit(main())
