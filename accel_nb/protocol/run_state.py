"""What is known of a run so far, and the pure fold that learns from one more event."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, assert_never

import msgspec
from msgspec.structs import replace

from .events import (
    BatchSizeBegun,
    BatchSizeTried,
    CellEnded,
    CollectiveMismatch,
    Display,
    DryRunReport,
    EventsDropped,
    HostMemoryLow,
    LogLines,
    MetricsLogged,
    Notice,
    ProgressRow,
    RankExited,
    RankFailed,
    RankFinished,
    RankStarted,
    RankUsage,
    RanOutOfMemory,
    Restarting,
    RunEnded,
    RunEvent,
    RunHeader,
    RunStarted,
    SettingsLogged,
    Stalled,
    StallEnded,
    StepTimes,
    StopRequested,
    Straggler,
)
from .failure import RankFailure
from .plan import LaunchPlan

ENDED_BARS = 100
"""Ended progress bars kept per rank: a bar per epoch must not grow the state for ever."""

MAX_CURVES = 100
"""Metrics whose curves are kept; further names are in ``run.jsonl`` only."""
MAX_POINTS = 1000
"""Points kept per curve, as many as a plot has pixels; at that number every second one goes."""
BATCH_SIZES_TRIED = 100
"""Tries kept per rank, the newest."""
USAGES_KEPT = 60
"""Samples of how busy a rank was, the newest: two minutes."""

RunStatus = Literal["starting", "running", "stopping", "finished", "failed", "stopped"]
RankStatus = Literal["starting", "running", "finished", "failed", "exited"]

LOG_TAIL_LINES = 2000
"""Scroll-back kept per rank; the log file has everything."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one metric, thinned so that it never grows beyond `MAX_POINTS`."""

    points: tuple[tuple[int, float | None], ...] = ()
    """(step, value) of every `stride`-th value, from the first; None: not a finite number."""
    stride: int = 1
    num_values: int = 0
    last: tuple[int, float | None] | None = None
    """The newest value, also when it is not among `points`; None: there is none yet."""


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    status: RankStatus = "starting"
    pid: int = 0
    device: str = ""
    log_tail: tuple[str, ...] = ()
    dropped_lines: int = 0
    progress: dict[int, ProgressRow] = {}
    batch_sizes: tuple[BatchSizeTried, ...] = ()
    batch_size: BatchSizeBegun | None = None
    """The try that is under way; None: there is none."""
    dry_run: DryRunReport | None = None
    """None: this is no dry run, or the rank has not come that far."""
    step_times: StepTimes | None = None
    """The newest; None: there were no steps yet, or it is not known."""
    straggler: Straggler | None = None
    """None: it was not found to be slower than the others."""
    usage: RankUsage | None = None
    """The newest; None: not told yet."""
    busy: tuple[float, ...] = ()
    """How busy it was, the newest last: its device where that tells, between 0 and 1, else in CPUs."""
    peak_memory_bytes: int = 0
    """The largest `RankUsage.memory_bytes`."""
    peak_device_bytes: int = 0
    """The most that it held of its device, or that anybody did where the driver does not tell whose it is."""
    failure: RankFailure | None = None
    value_bytes: int = 0
    modules: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: str | None = None
    gone: bool = False
    """True once the rank's process has ended."""


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    status: RunStatus = "starting"
    plan: LaunchPlan | None = None
    """None until the first event."""
    log_dir: str = ""
    attempt: int = 0
    ranks: dict[int, RankState] = {}
    notices: tuple[str, ...] = ()
    curves: dict[str, Curve] = {}
    """By the metric's name."""
    texts: dict[str, str] = {}
    """The newest of each name that was logged and is no number."""
    settings: dict[str, str] = {}
    header: RunHeader | None = None
    """What an optimizer step is made of; None: there were no such steps yet."""
    mismatch: CollectiveMismatch | None = None
    """The newest; None: ranks have called all operations alike."""
    stalled: Stalled | None = None
    """None: nobody is known to wait in vain."""
    host_memory: HostMemoryLow | None = None
    """The newest warning; None: there was none."""
    stopped_by: str = ""
    """Who asked for the stop; empty when nobody did."""
    duration_s: float = 0.0
    leftovers: int = 0
    sequence: int = 0
    """Of the newest event seen; an event that is not newer changes nothing."""

    @property
    def ended(self) -> bool:
        return self.status in ("finished", "failed", "stopped")

    @property
    def failures(self) -> tuple[RankFailure, ...]:
        return tuple(state.failure for _, state in sorted(self.ranks.items()) if state.failure is not None)


def advance(state: RunState, event: RunEvent) -> RunState:
    """The state after `event`. Pure; an event seen before (by `sequence`) is ignored."""
    if event.sequence and event.sequence <= state.sequence:
        return state
    return replace(_folded(state, event), sequence=event.sequence or state.sequence)


def advance_all(state: RunState, events: Iterable[RunEvent]) -> RunState:
    """The state after all of `events`, as `advance` gives it. With many ranks it is worth handing over many events at
    once: the ranks' dictionary is copied for each stretch of events about single ranks, not for each event.
    """
    ranks: dict[int, RankState] | None = None  # state.ranks, where that is a copy nobody else has seen
    for event in events:
        if event.sequence and event.sequence <= state.sequence:
            continue
        if isinstance(event, _RankEvent):
            ranks = dict(state.ranks) if ranks is None else ranks
            folded = _rank_folded(state, event, ranks)
        else:
            ranks = None
            folded = _folded(state, event)
        state = replace(folded, sequence=event.sequence or state.sequence)
    return state


def _folded(state: RunState, event: RunEvent) -> RunState:
    match event:
        case RunStarted() | Restarting():
            return _begun(state, event)
        case MetricsLogged() | SettingsLogged() | RunHeader() | CollectiveMismatch():
            return _reported(state, event)
        case Notice() | Stalled() | StallEnded() | HostMemoryLow():
            return _told(state, event)
        case StopRequested():
            return replace(state, status="stopping", stopped_by=state.stopped_by or event.by)
        case RunEnded():
            return _ended(state, event)
        case _:
            return _rank_folded(state, event, dict(state.ranks))


def _begun(state: RunState, event: RunStarted | Restarting) -> RunState:
    if isinstance(event, RunStarted):
        ranks = {rank.rank: RankState(device=rank.device_label) for rank in event.plan.ranks}
        return replace(state, plan=event.plan, log_dir=event.log_dir, attempt=event.attempt, ranks=ranks)
    ranks = {
        rank: RankState(device=old.device, log_tail=old.log_tail, batch_sizes=old.batch_sizes if event.reason else ())
        for rank, old in state.ranks.items()
    }
    without_logged = replace(state, curves={}, texts={}, settings={}, header=None, mismatch=None, stalled=None)
    return replace(without_logged, status="starting", attempt=event.attempt, ranks=ranks, stopped_by="")


def _ended(state: RunState, event: RunEnded) -> RunState:
    status = _final_status(state)
    ended = replace(state, status=status, duration_s=event.duration_s, leftovers=event.leftovers)
    return replace(ended, stalled=None) if status == "finished" else ended


def _reported(state: RunState, event: MetricsLogged | SettingsLogged | RunHeader | CollectiveMismatch) -> RunState:
    if isinstance(event, RunHeader):
        return replace(state, header=event)
    if isinstance(event, CollectiveMismatch):
        return replace(state, mismatch=event)
    if isinstance(event, SettingsLogged):
        return replace(state, settings=_first_names({**state.settings, **event.settings}))
    texts = _first_names({**state.texts, **event.texts})
    return replace(state, curves=_with_values(state.curves, event), texts=texts)


def _told(state: RunState, event: Notice | Stalled | StallEnded | HostMemoryLow) -> RunState:
    match event:
        case Notice():
            return replace(state, notices=(*state.notices, event.text))
        case HostMemoryLow():
            return replace(state, host_memory=event)
        case Stalled():
            return replace(state, stalled=event)
        case StallEnded():
            return replace(state, stalled=None)


_MeasuredEvent = BatchSizeBegun | RanOutOfMemory | BatchSizeTried | DryRunReport | StepTimes | Straggler | RankUsage
_RankEvent = (
    RankStarted
    | LogLines
    | ProgressRow
    | Display
    | BatchSizeBegun
    | RanOutOfMemory
    | BatchSizeTried
    | DryRunReport
    | StepTimes
    | Straggler
    | RankUsage
    | EventsDropped
    | CellEnded
    | RankFinished
    | RankFailed
    | RankExited
)


def _rank_folded(state: RunState, event: _RankEvent, ranks: dict[int, RankState]) -> RunState:
    """`ranks`: equal to ``state.ranks``, to be changed."""
    if event.rank is None or isinstance(event, Display | CellEnded):  # they concern the output of one cell
        return state
    rank = state.ranks.get(event.rank, RankState())
    match event:
        case RankStarted():
            rank = replace(rank, status="running", pid=event.pid, device=event.device or rank.device)
        case LogLines():
            rank = replace(rank, log_tail=(rank.log_tail + tuple(event.text.split("\n")))[-LOG_TAIL_LINES:])
        case ProgressRow():
            rank = replace(rank, progress=_with_row(rank.progress, event))
        case EventsDropped():
            rank = replace(rank, dropped_lines=rank.dropped_lines + event.lines)
        case RankFinished():
            rank = replace(rank, status="finished", value_bytes=event.value_bytes, modules=event.modules)
        case RankFailed():
            rank = replace(rank, status="failed", failure=event.failure)
        case RankExited():
            rank = replace(rank, gone=True, exit_code=event.exit_code, signal=event.signal)
        case _:
            rank = _with_measured(rank, event)
    status = "running" if state.status == "starting" and isinstance(event, RankStarted) else state.status
    ranks[event.rank] = rank
    return replace(state, status=status, ranks=ranks)


def _with_measured(rank: RankState, event: _MeasuredEvent) -> RankState:
    match event:
        case DryRunReport():
            rank = replace(rank, dry_run=event)
        case StepTimes():
            rank = replace(rank, step_times=event)
        case Straggler():
            rank = replace(rank, straggler=event)
        case RankUsage():
            rank = _with_usage(rank, event)
        case BatchSizeBegun():
            rank = replace(rank, batch_size=event)
        case BatchSizeTried():
            rank = replace(rank, batch_sizes=(*rank.batch_sizes, event)[-BATCH_SIZES_TRIED:], batch_size=None)
        case RanOutOfMemory():
            pass  # what becomes of the try follows
        case _:
            assert_never(event)
    return rank


def _with_usage(rank: RankState, usage: RankUsage) -> RankState:
    busy = usage.cpus if usage.device_utilization is None else usage.device_utilization
    held_bytes = usage.device_used_bytes if usage.device_own_bytes is None else usage.device_own_bytes
    return replace(
        rank,
        usage=usage,
        busy=(*rank.busy, busy)[-USAGES_KEPT:],
        peak_memory_bytes=max(rank.peak_memory_bytes, usage.memory_bytes),
        peak_device_bytes=max(rank.peak_device_bytes, held_bytes),
    )


def _with_row(rows: dict[int, ProgressRow], row: ProgressRow) -> dict[int, ProgressRow]:
    """`rows` with the newest state of one bar; of the bars that are done only the newest `ENDED_BARS` stay."""
    rows = {**rows, row.bar: row}
    ended = [bar for bar, known in rows.items() if known.done]
    for bar in ended[: max(0, len(ended) - ENDED_BARS)]:
        del rows[bar]
    return rows


def _with_values(curves: dict[str, Curve], event: MetricsLogged) -> dict[str, Curve]:
    """`curves` and one more value for each name of `event`."""
    known = dict(curves)
    for name, value in event.values.items():
        if name in known or len(known) < MAX_CURVES:
            curve = known.get(name, Curve())
            known[name] = _with_point(curve, (curve.num_values if event.step is None else event.step, value))
    return known


def _with_point(curve: Curve, point: tuple[int, float | None]) -> Curve:
    points, stride = curve.points, curve.stride
    if curve.num_values % stride == 0:
        points = (*points, point)
    if len(points) > MAX_POINTS:
        points, stride = points[::2], stride * 2
    return Curve(points=points, stride=stride, num_values=curve.num_values + 1, last=point)


def _first_names(texts: dict[str, str]) -> dict[str, str]:
    return dict(list(texts.items())[:MAX_CURVES])


def _final_status(state: RunState) -> RunStatus:
    if state.ranks and all(rank.status == "finished" for rank in state.ranks.values()):
        return "finished"
    if state.stopped_by and state.stopped_by != "failure":
        return "stopped"
    return "failed"
