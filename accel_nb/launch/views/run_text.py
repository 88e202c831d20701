"""What a run looks like as lines of text: banner, the ranks' lines with their prefixes, our own sentences.

Both the terminal's and the notebook's view are made of this. `events -> LineGroups -> FlowLimit -> text`.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence

from ...protocol import environment
from ...protocol.events import (
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
    RankFailed,
    Restarting,
    RunEnded,
    RunEvent,
    RunHeader,
    RunStarted,
    SettingsLogged,
    Stalled,
    StallEnded,
    StopRequested,
    Straggler,
)
from ...protocol.failure import RankFailure
from ...protocol.plan import LaunchPlan, RankPlan
from ...protocol.run_state import RunState
from ..dry_run.verdict import step_sentence
from ..failures import headline, rank_ranges
from ..planning.planner import plan_line
from .flow_limit import BACKLOG_BYTES, BURST_BYTES, LINE_CHARS, FlowLimit
from .line_groups import LineGroup, LineGroups
from .log_level import is_routine
from .metric_lines import MetricLines, settings_line

ROLE_NAME = "default"
"""The role of all ranks (``LaunchConfig.role``, torch.distributed.elastic)."""
BY_USER = {
    "interrupt": "interrupt",
    "handle": "stop() was called",
    "magic": "%accel_stop",
    "view": "Stop was pressed",
    "panel": "Stop was pressed in the panel",
}


class RunText:
    """Turns the events of one run into text that is due. One thread; `now` is in monotonic seconds."""

    def __init__(self) -> None:
        self._plan: LaunchPlan | None = None
        self._log_dir = ""
        self._groups = LineGroups(1)
        self._metrics = MetricLines()
        self._flow = FlowLimit()
        self._muted = False
        """The user stopped the run: what the ranks write from then on is in their files."""
        self._failure_told = False
        self._all_lines = environment.all_lines_wanted()
        self._left_out_told = False

    def add(self, events: Sequence[RunEvent], state: RunState, now: float) -> None:
        """Take in `events`, `state` being the state after them. Progress bars are the view's own business."""
        if self._plan is None and state.plan is not None:
            self._plan, self._log_dir = state.plan, state.log_dir
            self._groups = LineGroups(state.plan.num_ranks)
        too_much = sum(len(event.text) for event in events if isinstance(event, LogLines)) - BURST_BYTES - BACKLOG_BYTES
        for event in events:
            if isinstance(event, LogLines) and too_much > 0:
                # More than can ever be shown: not worth taking apart.
                too_much -= len(event.text)
                self._flow.add_missing(event.rank or 0, event.text.count("\n") + 1)
            else:
                self._add(event, now)

    def add_line(self, rank: int, text: str, now: float) -> None:
        """A line of `rank` that is not in its output as such, like the last state of a bar. Shown also after a stop."""
        self._groups.add(rank, text, now)

    def due(self, now: float) -> str:
        """Text to write now; empty when there is none or when it is too early."""
        for rank, line in self._metrics.due(now):
            self._groups.add(rank, line, now)
        for group in self._groups.ready(now):
            self._queue(group)
        if not self._flow.may_write(now):
            return ""
        lines = self._flow.take(now)
        if lines := [*self._gap_lines(now), *lines]:
            self._flow.written(now)
        return _joined(lines)

    def rest(self, now: float) -> str:
        """What still waits, at once: the run is over, or something is to be shown below it."""
        for rank, line in self._metrics.rest(now):
            self._groups.add(rank, line, now)
        for group in self._groups.rest():
            self._queue(group)
        lines = self._flow.rest()
        return _joined([*self._gap_lines(now, last=True), *lines])

    def prefix(self, ranks: Sequence[int]) -> str:
        """What stands before a line of `ranks`: the user's template filled for one rank, else ``[r0-r3] ``."""
        if self._plan is None:
            return ""
        if self._plan.log_line_prefix_template is not None:
            return _from_template(self._plan.log_line_prefix_template, self._plan.ranks[ranks[0]])
        if self._plan.num_ranks == 1:
            return ""
        return f"[{_rank_names(tuple(ranks))}] "

    def _add(self, event: RunEvent, now: float) -> None:
        match event:
            case LogLines() | Display() | EventsDropped() | BatchSizeTried() | DryRunReport() | MetricsLogged():
                if not self._muted:
                    self._add_of_rank(event, now)
            case _:
                told = self._told(event)
                if told:
                    for group in self._groups.rest():
                        self._queue(group)
                for line in told:
                    self._flow.add(f"accel_nb: {line}")

    def _add_of_rank(
        self, event: LogLines | Display | EventsDropped | BatchSizeTried | DryRunReport | MetricsLogged, now: float
    ) -> None:
        rank = event.rank or 0
        match event:
            case LogLines():
                for line in event.text.split("\n"):
                    self._groups.add(rank, line, now)
            case Display():
                # As text; a notebook's view shows rank 0's richly. Of other ranks it is in the log.
                if not event.update and (rank == 0 or self._all_lines):
                    for line in event.data.get("text/plain", "").split("\n"):
                        self._groups.add(rank, line, now)
            case EventsDropped():
                self._flow.add_missing(rank, event.lines)
            case BatchSizeTried():
                self._groups.add(rank, event.sentence, now)
            case DryRunReport():
                self._groups.add(rank, f"dry run: {step_sentence(event)}", now)
            case MetricsLogged():
                self._metrics.add(event)

    def _told(self, event: RunEvent) -> list[str]:
        """Our own sentences on `event`."""
        told: list[str] = []
        match event:
            case RunStarted():
                told = [f"{event.plan.function_name}: {plan_line(event.plan)}", *event.plan.notable]
            case Notice() | Stalled() | StallEnded() | Straggler() | HostMemoryLow():
                told = [event.text]
            case CollectiveMismatch() | RunHeader():
                told = [event.sentence]
            case SettingsLogged():
                told = [settings_line(event)]
            case RunEnded(leftovers=leftovers) if leftovers and not self._muted:
                told = [f"{leftovers} processes that the ranks had left behind were ended"]
            case StopRequested(by=by):
                told = self._stopping(by)
            case RankFailed():
                told = self._failing(event.failure)
            case CellEnded() if event.failure is not None and event.failure.kind != "stopped":
                told = self._failing(event.failure)
            case Restarting():
                self._muted = self._failure_told = False
                told = [self._restarting(event)]
            case _:
                pass  # shown as lines, or only in the live views
        return told

    def _restarting(self, event: Restarting) -> str:
        if event.reason:
            return f"{event.reason}. Starting all ranks again, without this size"
        of_all = f" of {self._plan.max_restarts + 1}" if self._plan is not None else ""
        return f"starting all ranks again, attempt {event.attempt + 1 - event.searches.restarts}{of_all}"

    def _stopping(self, by: str) -> list[str]:
        if by not in BY_USER or self._muted:
            return []
        self._muted = True
        return [f"stopping the ranks ({BY_USER[by]})"]

    def _failing(self, failure: RankFailure) -> list[str]:
        """The first failure of an attempt; all of them are in what the launch raises."""
        if failure.consequence or self._muted or self._failure_told:
            return []
        self._failure_told = True
        failed = "" if failure.kind == "dead_end" else "failed: "
        told = [f"rank {failure.rank} {failed}{headline(failure)}"]
        known = failure.explanation
        return told if known is None else [*told, f"{known.meaning} {known.remedy}"]

    def _queue(self, group: LineGroup) -> None:
        if 0 not in group.ranks and not self._all_lines and is_routine(group.text):
            self._tell_left_out()
        elif self._plan is not None and self._plan.log_line_prefix_template is not None:
            for rank in group.ranks:
                self._flow.add(self.prefix([rank]) + self._shortened(group.text, rank), [rank])
        else:
            ranks = sorted(group.ranks)
            self._flow.add(self.prefix(ranks) + self._shortened(group.text, ranks[0]), ranks)

    def _tell_left_out(self) -> None:
        """Once: what loggers of other ranks than 0 say below WARNING is most often what rank 0 says, too."""
        if not self._left_out_told:
            self._left_out_told = True
            self._flow.add(
                "accel_nb: log lines below WARNING are shown of rank 0 only; those of the others are in "
                f"{self._log_dir}/rank_*.log. os.environ['{environment.ALL_LINES}'] = '1' shows them from the next "
                "launch on."
            )

    def _shortened(self, line: str, rank: int) -> str:
        more = len(line) - LINE_CHARS
        return f"{line[:LINE_CHARS]}… {more:,} more characters: {self._log(rank)}" if more > 0 else line

    def _gap_lines(self, now: float, *, last: bool = False) -> list[str]:
        gaps = self._flow.gaps(now, last=last)
        return [
            f"{self.prefix([rank])}… {num_lines:,} lines not shown: {self._log(rank)}"
            for rank, num_lines in gaps.items()
        ]

    def _log(self, rank: int) -> str:
        return f"{self._log_dir}/rank_{rank}.log" if self._log_dir else f"rank_{rank}.log"


@functools.lru_cache(maxsize=1024)
def _rank_names(ranks: tuple[int, ...]) -> str:
    """``r0``, ``r0-r3``, ``r0,r2-r4``."""
    return ",".join("-".join(f"r{end}" for end in part.split("-")) for part in rank_ranges(ranks).split(", "))


def _from_template(template: str, rank: RankPlan) -> str:
    """As torch.distributed.elastic fills it (``TailLog``'s log_line_prefixes): unknown names stay as they are."""
    return string.Template(template).safe_substitute(role_name=ROLE_NAME, rank=rank.rank, local_rank=rank.local_rank)


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
