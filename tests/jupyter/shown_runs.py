"""Runs in a kernel under test: shows made-up events in the view that the kernel's cell gets."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from accel_nb.jupyter.display import choose_view
from accel_nb.launch.output.event_ring import EventRing
from accel_nb.protocol.events import LogLines, ProgressRow, RunEnded, RunEvent, RunStarted
from accel_nb.protocol.plan import LaunchPlan, RankPlan
from accel_nb.protocol.run_state import RunState, advance_all


class ShownRun:
    """A run whose events the test makes. Its view belongs to the cell that makes it."""

    def __init__(self, num_ranks: int = 2) -> None:
        self.view = choose_view()
        self.ring = EventRing()
        self.state = RunState()
        plan = LaunchPlan(
            run_id="run",
            function_name="train",
            engine="local",
            device_kind="cpu",
            process_group="gloo",
            ranks=tuple(RankPlan(rank=rank, local_rank=rank) for rank in range(num_ranks)),
        )
        self.show(RunStarted(plan=plan, log_dir="/logs"))

    def show(self, *events: RunEvent) -> None:
        for event in events:
            self.ring.add(event)
        taken = self.ring.take(64 << 10)
        self.state = advance_all(self.state, taken)
        self.view.update(taken, self.state)

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.1)
            self.show()

    def close(self) -> None:
        while len(self.ring):
            self.show()
        self.show(RunEnded(duration_s=1.0))
        self.view.close(self.state)


def lines(rank: int, *text: str) -> LogLines:
    return LogLines(rank=rank, text="\n".join(text))


def bar(rank: int, n: int, total: int, *, number: int = 0, text: str = "") -> ProgressRow:
    drawn = text or f"{100 * n // total:3}%|{'#' * (10 * n // total):<10}| {n}/{total} [00:01<00:01, 50.0it/s]"
    return ProgressRow(rank=rank, bar=number, n=n, total=total, text=drawn, done=n == total)


def print_for(run: ShownRun, num_lines: int, interval_s: float) -> threading.Thread:
    """`num_lines` lines and a bar from a thread, as `block=False` shows a run."""

    def show() -> None:
        for i in range(num_lines):
            run.show(lines(1, f"line {i}"), bar(0, i + 1, num_lines))
            run.wait(interval_s)
        run.close()

    thread = threading.Thread(target=show)
    thread.start()
    return thread


def flood(run: ShownRun, ranks: Sequence[int], seconds: float, lines_per_s: int) -> None:
    """As `seconds` of ranks that write `lines_per_s` each and move a bar all the time; the kernel looks 20 times a
    second."""
    begun_s = time.monotonic()
    written = 0
    while (elapsed_s := time.monotonic() - begun_s) < seconds:
        num_new = int(elapsed_s * lines_per_s) - written
        for rank in ranks:
            run.ring.add(lines(rank, *(f"rank {rank} line {written + i}" for i in range(num_new))))
            run.ring.add(bar(rank, written % 999, 1000))
        written += num_new
        run.show()
        time.sleep(0.05)
    run.close()
