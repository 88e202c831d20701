"""What grows with the number of ranks: the launch, what holds the run, and what is known of it.

    python benchmarks/scale.py [--short] [--json FILE]

    launch      from the call to the values, of a function that does nothing, on 2 to 64 CPU ranks; the second of a size
    supervisor  CPU time of the kernel and of the run's keeper while 64 ranks sleep, as a part of one CPU
    fold        seconds per event to fold the events of simulated runs of up to 1,024 ranks
    view state  seconds to write such a run as HTML, and the size of what is known of it, per rank

"No worse than linear": from one size to the next, the cost per rank grows by less than a half (the launch's fixed part
makes it shrink, the noise of a busy machine makes it grow). Exits with 1 when something wanted is missed.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import psutil

from accel_nb.jupyter.static_form import Written, static_html
from accel_nb.launch.run import Run, start_run
from accel_nb.launch.views.view import TextView
from accel_nb.protocol.events import LogLines, MetricsLogged, RankStarted, RankUsage, RunEvent, RunStarted
from accel_nb.protocol.plan import LaunchPlan, LaunchRequest, RankPlan
from accel_nb.protocol.run_state import RunState, advance_all

SIZES, SHORT_SIZES = (2, 4, 8, 16, 32, 64), (2, 8, 32)
SIMULATED = (16, 64, 256, 1024)
EVENTS_PER_RANK = 8
REPEATS = 7
"""Of which the cheapest counts, in CPU time: others use the machine, too."""
MAX_LAUNCH_S = 10.0
"""Of the largest, on two CPUs."""
MAX_SUPERVISOR = 0.05
MAX_GROWTH = 1.5
IDLE_S, SHORT_IDLE_S = 10.0, 4.0
DEADLINE_S = 300.0


def returns_at_once() -> None:
    """Does nothing."""


def sleeps(seconds: float) -> None:
    time.sleep(seconds)


def started(function: Callable[..., None], num_ranks: int, *args: object) -> Run:
    request = LaunchRequest(num_processes=num_ranks, device="cpu", function_name=function.__name__)
    return start_run(request, function, args, {}, TextView(lambda _: None))


def launch_s(num_ranks: int, repeats: int) -> float:
    """Median, after one launch by which the server gets ready for so many."""
    seconds = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        started(returns_at_once, num_ranks).result(DEADLINE_S)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])


def supervising(num_ranks: int, seconds: float) -> dict[str, float]:
    """Process -> part of one CPU that it took while `num_ranks` slept."""
    run = started(sleeps, num_ranks, seconds + 30)
    deadline = time.monotonic() + DEADLINE_S
    while sum(bool(rank.pid) for rank in run.state.ranks.values()) < num_ranks and time.monotonic() < deadline:
        run.wait(0.1)
    keeper = psutil.Process(run.state.ranks[0].pid).parent()
    assert keeper is not None
    watched = {"kernel": psutil.Process(), "keeper": keeper}
    run.wait(2.0)
    before = {name: _cpu_s(process) for name, process in watched.items()}
    begun = time.monotonic()
    run.wait(seconds)
    passed = time.monotonic() - begun
    used = {name: (_cpu_s(process) - before[name]) / passed for name, process in watched.items()}
    run.stop(0.0)
    run.wait(DEADLINE_S)
    return used


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def simulated(num_ranks: int) -> Iterator[RunEvent]:
    """What the ranks of a run say that starts, writes and logs."""
    ranks = tuple(RankPlan(rank=rank, local_rank=rank) for rank in range(num_ranks))
    plan = LaunchPlan(
        run_id="simulated", function_name="train", engine="local", device_kind="cpu", process_group="gloo", ranks=ranks
    )
    yield RunStarted(plan=plan, log_dir="/tmp", sequence=1)
    for rank in range(num_ranks):
        yield RankStarted(rank=rank, pid=rank + 1, device="cpu")
    for step in range((EVENTS_PER_RANK - 1) // 2):
        for rank in range(num_ranks):
            yield LogLines(rank=rank, text=f"step {step}\n")
            yield RankUsage(rank=rank, memory_bytes=step << 20, cpus=1.0)
    yield MetricsLogged(rank=0, values={"loss": 1.0}, step=0)


def _folded(events: list[RunEvent]) -> RunState:
    """As the kernel gets them: what has come since it looked last, ten times a second."""
    state = RunState()
    batch = len(events) // EVENTS_PER_RANK
    for begin in range(0, len(events), batch):
        state = advance_all(state, events[begin : begin + batch])
    return state


def _cpu_seconds_of(act: Callable[[], object]) -> float:
    begun = time.process_time()
    act()
    return time.process_time() - begun


def known_of(num_ranks: int) -> dict[str, float]:
    """Seconds per event, seconds per rank of the written form, bytes per rank."""
    events = list(simulated(num_ranks))
    gc.collect()
    gc.disable()  # as timeit does: its cost depends on all that the process holds
    folded = min(_cpu_seconds_of(lambda: _folded(events)) for _ in range(REPEATS))
    state = _folded(events)
    html = static_html(state, Written([], 0, []), raises=False)
    written = min(_cpu_seconds_of(lambda: static_html(state, Written([], 0, []), raises=False)) for _ in range(REPEATS))
    gc.enable()
    return {
        "fold_s_per_event": folded / len(events),
        "html_s_per_rank": written / num_ranks,
        "html_bytes_per_rank": len(html) / num_ranks,
        "state_bytes_per_rank": len(msgspec.msgpack.encode(state)) / num_ranks,
    }


def growth(costs: Sequence[float]) -> float:
    """Of a cost per unit, from one size to the next, at worst."""
    return max(later / earlier for earlier, later in itertools.pairwise(costs))


def verdicts(
    launches: dict[int, float], used: dict[str, float], known: dict[int, dict[str, float]]
) -> Iterator[tuple[str, str, bool]]:
    """What, figure, whether it is as wanted."""
    sizes = sorted(launches)
    per_rank = growth([launches[size] / size for size in sizes])
    yield "launch, growth per rank from size to size", f"{per_rank:.2f}x", per_rank < MAX_GROWTH
    yield f"launch of {sizes[-1]} ranks", f"{launches[sizes[-1]]:.2f} s", launches[sizes[-1]] < MAX_LAUNCH_S
    for name, part in used.items():
        yield f"{name} while the ranks sleep", f"{part:.1%} of a CPU", part < MAX_SUPERVISOR
    for figure in next(iter(known.values())):
        one = growth([known[size][figure] for size in sorted(known)])
        yield f"{figure}, growth from size to size", f"{one:.2f}x", one < MAX_GROWTH


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="fewer sizes, shorter")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go")
    options = parser.parse_args()
    sizes = SHORT_SIZES if options.short else SIZES

    known = {size: known_of(size) for size in SIMULATED}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ACCEL_NB_LOG_DIR"] = folder
        launches = {size: launch_s(size, 1 if options.short else 3) for size in sizes}
        used = supervising(sizes[-1], SHORT_IDLE_S if options.short else IDLE_S)

    for size, seconds in launches.items():
        print(f"launch of {size:>2} ranks  {seconds:.3f} s  {seconds / size * 1e3:.1f} ms per rank")
    for size, figures in known.items():
        print(f"{size:>4} ranks known  " + "  ".join(f"{name} {value:.3g}" for name, value in figures.items()))
    rows = list(verdicts(launches, used, known))
    width = max(len(what) for what, _, _ in rows)
    for what, figure, good in rows:
        print(f"{what:<{width}}  {figure}  {'as wanted' if good else 'MISSED'}")
    if options.json is not None:
        options.json.write_text(json.dumps({"launch_s": launches, "supervisor": used, "known": known}))
    return int(not all(good for _, _, good in rows))


if __name__ == "__main__":
    sys.exit(main())
