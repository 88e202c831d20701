"""How long a launch takes, side by side with Hugging Face Accelerate's notebook_launcher in one run.

    python benchmarks/launch_latency.py [--short] [--only CASE ...] [--json FILE]

For each case each side has a notebook kernel of its own (`latency_parent.py`). The sides launch in turns, so that
whatever else the machine does meets both. Printed are medians, their ratio, and the ratio that is wanted. Ranks are CPU
ranks with gloo. A side that does not return before its deadline is reported as hanging and ended.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
from jupyter_client.manager import KernelManager

HERE = Path(__file__).parent
DEADLINE_S = 120.0
"""For one launch. A hang is told from slowness by this alone, so it is generous."""
THIRD = 3
"""The launch by which the launcher should have learned what the function imports."""
HANG_DEADLINE_S = 20.0
"""Where a hang is expected: a quiet launch takes well under a second."""
PAUSE_S = 0.5
"""Before a next launch: who reads the output of one starts the next no sooner."""
MAX_HANGS = 3
"""A side that hangs gets a fresh kernel; one that hangs this often gets none any more."""


@dataclass(frozen=True)
class Outcome:
    """One launch: seconds, or what went wrong."""

    figures: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = None


@dataclass
class Row:
    """One line of the table."""

    case: str
    figure: str
    ours_s: list[float]
    other_s: list[float]
    other: str = "upstream"
    wanted_ratio: float | None = None
    remark: str = ""

    @property
    def ratio(self) -> float | None:
        """Median by median; None when a side has no figures."""
        if not (self.ours_s and self.other_s):
            return None
        return statistics.median(self.ours_s) / statistics.median(self.other_s)


class Parent:
    """A notebook kernel that launches for one side, and the next one after a hang. Use from one thread; `close` it."""

    def __init__(
        self,
        side: str,
        function: str,
        preparation: str = "import_as_quickstart",
        num_processes: int = 2,
        *,
        max_hangs: int = MAX_HANGS,
    ) -> None:
        self._call = f"latency_parent.launched({side!r}, {function!r}, {preparation!r}, {num_processes})"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._max_hangs = max_hangs
        self._hangs = 0
        self._start()

    def _start(self) -> None:
        self._manager = KernelManager()
        self._manager.start_kernel(stdout=self._log, stderr=self._log)
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=DEADLINE_S)
        self._run(f"import sys; sys.path.insert(0, {str(HERE)!r}); import latency_parent", DEADLINE_S)
        self._is_up = True

    def launch(self, deadline_s: float = DEADLINE_S) -> Outcome:
        """Prepare and launch once. A hang ends the kernel; the next launch has a fresh one that has launched before."""
        if not self._is_up:
            if self._hangs == self._max_hangs:
                return Outcome(problem="hangs")
            self._start()
            first = self._launch(deadline_s)
            if first.problem:
                return first
        return self._launch(deadline_s)

    def _launch(self, deadline_s: float) -> Outcome:
        try:
            content = self._run(f"reply = {self._call}", deadline_s, reply="reply")
        except Empty:
            if not self._manager.is_alive():
                return Outcome(problem=f"the kernel died: {self._last_words()}")
            self._hangs += 1
            self._end()
            return Outcome(problem=f"hangs (ended after {deadline_s:.0f} s)")
        if content["status"] != "ok":
            return Outcome(problem=f"{content['ename']}: {content['evalue']}")
        reply = json.loads(ast.literal_eval(content["user_expressions"]["reply"]["data"]["text/plain"]))
        return Outcome(figures=reply.get("figures", {}), problem=reply.get("error"))

    def _run(self, cell: str, deadline_s: float, **wanted: str) -> dict[str, Any]:
        """The kernel's answer to `cell`, with the values of the expressions `wanted`. Raises Empty without one."""
        message_id = self._client.execute(cell, user_expressions=wanted)
        end = time.monotonic() + deadline_s
        while True:
            message = self._client.get_shell_msg(timeout=max(0.0, end - time.monotonic()))
            if message["parent_header"].get("msg_id") == message_id:
                content: dict[str, Any] = message["content"]
                return content

    def close(self) -> None:
        if self._is_up:
            self._client.stop_channels()
            self._manager.shutdown_kernel()
        self._log.close()

    def _end(self) -> None:
        """End the kernel and what it started, by id."""
        self._is_up = False
        self._client.stop_channels()
        kernel = next(p for p in psutil.Process().children() if self._manager.connection_file in p.cmdline())
        started = kernel.children(recursive=True)
        self._manager.shutdown_kernel(now=True)
        for process in started:
            if process.is_running():
                process.kill()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it left no word"


def in_turns(
    parents: Mapping[str, Parent],
    num_rounds: int,
    *,
    num_warm_ups: int = 1,
    deadline_s: float = DEADLINE_S,
    pause_s: float = 0.0,
) -> dict[str, list[Outcome]]:
    """Let each parent launch once per round, the order reversed every other round. Warm-ups are not kept.

    Without a pause, every other launch of a parent comes at once after its own last one.
    """
    outcomes: dict[str, list[Outcome]] = {name: [] for name in parents}
    for number in range(num_warm_ups + num_rounds):
        for name in list(parents) if number % 2 else reversed(list(parents)):
            time.sleep(pause_s)
            outcome = parents[name].launch(deadline_s)
            if number >= num_warm_ups or outcome.problem:
                outcomes[name].append(outcome)
    for parent in parents.values():
        parent.close()
    return outcomes


def seconds(outcomes: list[Outcome], figure: str) -> list[float]:
    return [outcome.figures[figure] for outcome in outcomes if figure in outcome.figures]


def problems(outcomes: Mapping[str, list[Outcome]]) -> str:
    """How often each side had a problem, and its first, for the table."""
    texts = []
    for name, of_side in outcomes.items():
        found = [outcome.problem for outcome in of_side if outcome.problem]
        if found:
            texts.append(f"{name}: {len(found)} of {len(of_side)} launches: {found[0].splitlines()[0]}")
    return "; ".join(texts)


def next_launches(num_processes: int, num_rounds: int) -> list[Row]:
    """Launches after the first, the kernel having imported what the quickstart imports: by a person, and in a loop that
    does nothing between.
    """
    return [
        *_next_launches(f"{num_processes} ranks, next launch", num_processes, num_rounds, PAUSE_S),
        *_next_launches(f"{num_processes} ranks, without a pause", num_processes, num_rounds, 0.0),
    ]


def _next_launches(case: str, num_processes: int, num_rounds: int, pause_s: float) -> list[Row]:
    parents = {
        side: Parent(side, "first_all_reduce", num_processes=num_processes) for side in ("upstream", "ours")
    }  # fmt: skip
    outcomes = in_turns(parents, num_rounds, deadline_s=HANG_DEADLINE_S, pause_s=pause_s)
    return [
        Row(case, label, seconds(outcomes["ours"], figure), seconds(outcomes["upstream"], figure),
            wanted_ratio=wanted, remark=problems(outcomes))
        for label, figure, wanted in (
            ("call to first all_reduce", "all_reduce_s", 0.6), ("call to return", "return_s", 0.4),
        )
    ]  # fmt: skip


def two_ranks(*, short: bool) -> list[Row]:
    return next_launches(2, 5 if short else 25)


def eight_ranks(*, short: bool) -> list[Row]:
    return next_launches(8, 3 if short else 15)


def after_threads(*, short: bool) -> list[Row]:
    """The parent has used torch's threads before each launch; the ranks use them too."""
    function = "all_reduce_and_maths"
    parents = {
        "upstream": Parent("upstream", function, "use_torch_threads", max_hangs=1 if short else MAX_HANGS),
        "ours quiet": Parent("ours", function),
        "ours": Parent("ours", function, "use_torch_threads"),
    }
    outcomes = in_turns(parents, 3 if short else 15, deadline_s=HANG_DEADLINE_S)
    ours, quiet, theirs = (seconds(outcomes[name], "return_s") for name in ("ours", "ours quiet", "upstream"))
    case = "parent used torch threads"
    return [
        Row(case, "call to return", ours, quiet, other="ours quiet", wanted_ratio=1.2),
        Row(case, "call to return", ours, theirs, remark=problems(outcomes)),
    ]


def heavy_import(*, short: bool) -> list[Row]:
    """The function imports transformers.Trainer, which the parent has imported. Launches 1 to 4, one after another."""
    launches: list[dict[str, list[Outcome]]] = [{"upstream": [], "ours": []} for _ in range(4)]
    for _ in range(1 if short else 3):
        parents = {side: Parent(side, "all_reduce_with_trainer", "import_trainer") for side in launches[0]}
        for side, outcomes in in_turns(parents, len(launches), num_warm_ups=0).items():
            for launch, outcome in zip(launches, outcomes, strict=True):
                launch[side].append(outcome)
    rows = []
    for number, launch in enumerate(launches, start=1):
        ours, theirs = seconds(launch["ours"], "return_s"), seconds(launch["upstream"], "return_s")
        row = Row("imports transformers.Trainer", f"launch {number}, to return", ours, theirs, remark=problems(launch))
        row.wanted_ratio = 1.0 if number == THIRD else None
        rows.append(row)
    return rows


def first_launch(*, short: bool) -> list[Row]:
    """The first launch of a fresh process, the launcher's import included, beside a bare import of torch."""
    bare: list[float] = []
    outcomes: dict[str, list[Outcome]] = {"ours": [], "upstream": []}
    for number in range(3 if short else 8):
        started = time.monotonic()
        subprocess.run([sys.executable, "-c", "import torch, torch._dynamo"], check=True)
        bare.append(time.monotonic() - started)
        for side in sorted(outcomes, reverse=bool(number % 2)):
            outcomes[side] += in_turns({side: Parent(side, "first_all_reduce", "nothing")}, 1, num_warm_ups=0)[side]
    ours, theirs = (seconds(outcomes[side], "return_s") for side in ("ours", "upstream"))
    case = "first launch of a process"
    return [
        Row(case, "import to return", ours, bare, other="import torch, torch._dynamo", wanted_ratio=1.3),
        Row(case, "import to return", ours, theirs, remark=problems(outcomes)),
    ]


def reinitialise(*, short: bool) -> list[Row]:
    """init_process_group, new_group, all_reduce, destroy_process_group: 20 times in one launch."""
    parents = {side: Parent(side, "initialise_again_and_again") for side in ("upstream", "ours")}
    outcomes = in_turns(parents, 1 if short else 5, num_warm_ups=0, deadline_s=HANG_DEADLINE_S)
    ours, theirs = (seconds(outcomes[side], "all_reduce_s") for side in ("ours", "upstream"))
    return [Row("20 x init, all_reduce, destroy", "call to the last one", ours, theirs, remark=problems(outcomes))]


CASES: dict[str, Callable[..., list[Row]]] = {
    "two-ranks": two_ranks,
    "eight-ranks": eight_ranks,
    "after-threads": after_threads,
    "heavy-import": heavy_import,
    "first-launch": first_launch,
    "reinitialise": reinitialise,
}


def shown(values: list[float]) -> str:
    """Median and minimum in milliseconds."""
    return f"{statistics.median(values) * 1e3:.0f} ({min(values) * 1e3:.0f})" if values else "-"


def print_row(row: Row) -> None:
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    verdict = ""
    if row.wanted_ratio is not None:
        met = row.ratio is not None and row.ratio <= row.wanted_ratio
        verdict = f"at most {row.wanted_ratio:g}: {'met' if met else 'MISSED'}"
    print(
        f"{row.case:<30} {row.figure:<24} {shown(row.ours_s):>14} {shown(row.other_s):>14}  {row.other:<28} "
        f"{ratio:>6}  {verdict}",
        flush=True,
    )
    if row.remark:
        print(f"{'':<30} {row.remark}", flush=True)


def machine() -> dict[str, object]:
    versions = {name: metadata.version(name) for name in ("torch", "accelerate", "transformers")}
    return {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": sys.version.split()[0], **versions}


def main() -> int:
    parser = argparse.ArgumentParser(description="Time launches beside Hugging Face Accelerate's notebook_launcher.")
    parser.add_argument("--short", action="store_true", help="few rounds: does it run, and roughly how fast")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single figure to FILE")
    options = parser.parse_args()

    print(*(f"{name} {value}" for name, value in machine().items()), sep=", ")
    print(f"{'case':<30} {'figure':<24} {'ours, ms':>14} {'other, ms':>14}  {'other':<28} {'ratio':>6}  median (min)")
    rows: list[Row] = []
    for name in options.only:
        for row in CASES[name](short=options.short):
            print_row(row)
            rows.append(row)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": [asdict(row) for row in rows]}, indent=1))
    return int(any(not row.ours_s for row in rows))


if __name__ == "__main__":
    sys.exit(main())
