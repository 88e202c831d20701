"""What can happen in a run: one class per kind, a tagged union on ``type``.

Events are recorded to ``run.jsonl``, folded by `accel_nb.protocol.run_state.advance` and sent to front ends. None of
them ever holds a pickle.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .batch_sizes import SearchHistory
from .failure import RankFailure
from .plan import LaunchPlan


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """What all events share. `rank` is None for the run itself."""

    rank: int | None = None
    sequence: int = 0
    """Counts up by one within a run, from 1; given by the keeper. A gap means that events were dropped."""
    time_s: float = 0.0
    """Seconds since the epoch, on the host where it happened."""


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    plan: LaunchPlan
    """`LaunchPlan.without_values`."""
    log_dir: str = ""
    attempt: int = 0


class RankStarted(Event, frozen=True, kw_only=True, tag="rank_started"):
    """The rank's surroundings are set up; it is about to call the function."""

    pid: int = 0
    device: str = ""


class LogLines(Event, frozen=True, kw_only=True, tag="log_lines"):
    """Whole lines that a rank or its children wrote to stdout or stderr, in order, at most 64 KiB."""

    text: str
    """Lines joined by newlines, without the last one. Undecodable bytes are replaced."""


class ProgressRow(Event, frozen=True, kw_only=True, tag="progress_row"):
    """The newest state of one progress bar of one rank."""

    bar: int
    """Number of the bar within the rank, in order of appearance, from 0. That of an erased bar is used again."""
    text: str
    """As tqdm drew it; empty, with `done`, when it erased the bar at its end."""
    n: int | None = None
    total: int | None = None
    """None: tqdm does not know it."""
    done: bool = False


class Display(Event, frozen=True, kw_only=True, tag="display"):
    """What a rank wants shown richly: the value of a cell's last line, ``display(...)``, a figure."""

    data: dict[str, str]
    """MIME type -> content: text, base64 for images, JSON text for kinds of JSON. Of other ranks than 0 plain text."""
    metadata: str = ""
    """JSON text, by MIME type; empty: there is none."""
    display_id: str = ""
    """By which an update finds it."""
    update: bool = False
    """Replaces what has its `display_id`."""


class MetricsLogged(Event, frozen=True, kw_only=True, tag="metrics_logged"):
    """Numbers that the training code logged for the run's plot, all at the same step."""

    values: dict[str, float | None]
    """Name -> value; None: not a finite number, which JSON cannot hold. Nested names are joined by slashes."""
    step: int | None = None
    """None: the code did not say; each name then counts its own values."""
    texts: dict[str, str] = {}
    """What is no number."""


class SettingsLogged(Event, frozen=True, kw_only=True, tag="settings_logged"):
    """What the training code says that it runs with."""

    project: str
    settings: dict[str, str]


class RunHeader(Event, frozen=True, kw_only=True, tag="run_header"):
    """What one optimizer step is made of, as the first ones were. Reported once by the first rank, and again when a
    later optimizer steps otherwise. None: not known.
    """

    num_ranks: int
    batch_size: int | None = None
    """Samples of a full batch of one rank."""
    batches_per_update: int | None = None
    """Of each rank."""
    updates_per_epoch: int | None = None
    precision: str = "no"
    learning_rates: tuple[float, ...] = ()
    """Those of all parameter groups, each once."""
    seed: int | None = None
    """What ``set_seed`` was given."""

    @property
    def effective_batch_size(self) -> int | None:
        """Samples of all ranks in one update."""
        if self.batch_size is None or self.batches_per_update is None:
            return None
        return self.num_ranks * self.batch_size * self.batches_per_update

    @property
    def sentence(self) -> str:
        """``2 ranks x batch size 16 x 4 batches = 128 samples per update, 20 updates per epoch, learning rate 0.1``."""
        factors = [f"{self.num_ranks} rank{'s' * (self.num_ranks > 1)}"]
        if self.batch_size is not None:
            factors.append(f"batch size {self.batch_size:,}")
        if self.batches_per_update is not None and self.batches_per_update > 1:
            factors.append(f"{self.batches_per_update} batches")
        effective = self.effective_batch_size
        parts = [" x ".join(factors) + ("" if effective is None else f" = {effective:,} samples per update")]
        if self.updates_per_epoch is not None:
            parts.append(f"{self.updates_per_epoch:,} updates per epoch")
        if self.learning_rates:
            parts.append(f"learning rate {' and '.join(f'{rate:.4g}' for rate in self.learning_rates)}")
        if self.precision != "no":
            parts.append(self.precision)
        if self.seed is not None:
            parts.append(f"seed {self.seed}")
        return ", ".join(parts)


class BatchSizeBegun(Event, frozen=True, kw_only=True, tag="batch_size_begun"):
    """A rank calls a function with one batch size of a search for the largest that fits into memory."""

    function: str
    batch_size: int


class RanOutOfMemory(Event, frozen=True, kw_only=True, tag="ran_out_of_memory"):
    """Memory ran out in the try that the rank has begun together with others. All leave it, which their
    `BatchSizeTried` say.
    """

    function: str
    batch_size: int


class BatchSizeTried(Event, frozen=True, kw_only=True, tag="batch_size_tried"):
    """The ranks have agreed what has become of a try, and this rank has left it."""

    function: str
    batch_size: int
    fits: bool
    """On every rank."""
    duration_s: float
    reason: str = ""
    """First line of the error that said that memory ran out; empty when it fits."""
    next_batch_size: int | None = None
    """What is tried next; None: the search is over."""
    on_ranks: tuple[int, ...] = ()
    """Where memory ran out; empty: everywhere."""
    num_updates: int = 0
    """Optimizer steps that a try had made which does not fit: they are lost."""
    accumulation: int = 1
    """How many times the micro-batches per step that were asked for, so that the effective batch stays."""
    next_accumulation: int = 1

    @property
    def sentence(self) -> str:
        """What to tell the user; alike on ranks that did the same."""
        if self.fits:
            what = f"{self.function}: batch size {self.batch_size} fits{_more_steps('with', self.accumulation)}"
            return what if self.next_batch_size is None else f"{what}, trying {self.next_batch_size}"
        where = f" on rank {', '.join(map(str, self.on_ranks))}" if self.on_ranks else ""
        what = f"{self.function}: batch size {self.batch_size} does not fit{where}"
        if self.num_updates:
            after = f"after {self.num_updates} steps"
            what = f"{self.function}: batch size {self.batch_size} ran out of memory{where} {after}"
        then = "giving up"
        if self.next_batch_size is not None:
            again = "starting it from its beginning" if self.num_updates else "trying again"
            then = f"{again} with {self.next_batch_size}{_more_steps('and', self.next_accumulation)}"
        return f"{what}, {then} ({self.reason})"


def _more_steps(word: str, accumulation: int) -> str:
    return f" {word} {accumulation} times the accumulation steps" if accumulation > 1 else ""


class CollectiveMismatch(Event, frozen=True, kw_only=True, tag="collective_mismatch"):
    """Ranks called an operation of all ranks with data that cannot be combined. Each of them raises; nothing was sent.

    Reported once, by the first rank.
    """

    operations: tuple[str, ...]
    """Dotted name of what each rank called, by rank."""
    given: tuple[str, ...]
    """Structure, shapes and dtypes of what each rank gave, by rank, as in ``{'x': [4, 2] float32}``."""
    places: tuple[str, ...] = ()
    """The user's lines, by rank, as in ``Cell In[3], line 7``; empty: none is known."""

    @property
    def sentence(self) -> str:
        """What to tell the user."""
        places = self.places or ("",) * len(self.operations)
        calls = zip(self.operations, self.given, places, strict=True)
        shown = "; ".join(
            f"rank {rank} {f'{operation}({given})' if operation else 'none yet'}{f' ({place})' if place else ''}"
            for rank, (operation, given, place) in enumerate(calls)
        )
        return f"the ranks called operations that do not fit together: {shown}"


class UnusedParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one model that are trained, but to which the step's backward gave no gradient."""

    model: str
    """Its class."""
    names: tuple[str, ...]
    """As in ``named_parameters``."""
    awaited: bool
    """Whether a DistributedDataParallel waits for their gradients on every rank: the second step fails."""


class DryRunReport(Event, frozen=True, kw_only=True, tag="dry_run_report"):
    """What one step of a rank took, in bytes of tensors; the report of a dry run, once per rank."""

    stepped: bool
    """False: the function returned without an optimizer step. What follows is then what was seen until then."""
    batch_size: int | None = None
    """First dimension of what the model was called with; None: it was called with no tensor."""
    batch_bytes: int = 0
    """The tensors that the model was called with."""
    parameter_bytes: int = 0
    """Parameters and buffers of all models that took part."""
    gradient_bytes: int = 0
    bucket_bytes: int = 0
    """The second copy of gradients that a DistributedDataParallel sends."""
    optimizer_bytes: int = 0
    """State of the optimizers after the step."""
    activation_bytes: int = 0
    """Saved between forward and backward, at its peak."""
    fixed_activation_bytes: int = 0
    """Of those, what does not grow with the batch: weights in another dtype."""
    unused: tuple[UnusedParameters, ...] = ()
    notes: tuple[str, ...] = ()
    """What the figures leave out, as sentences."""

    @property
    def fixed_bytes(self) -> int:
        """What the step takes whatever the batch size is."""
        tensors = self.parameter_bytes + self.gradient_bytes + self.bucket_bytes + self.optimizer_bytes
        return tensors + self.fixed_activation_bytes

    @property
    def growing_bytes(self) -> int:
        """What grows with the batch."""
        return self.batch_bytes + self.activation_bytes - self.fixed_activation_bytes


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank is while ranks wait."""

    rank: int
    state: Literal["waits", "runs", "returned", "failed", "gone"]
    """waits: in an operation of all ranks, or for what others or its workers have to give. runs: in code of its own."""
    operation: str = ""
    """Dotted name of the operation that it waits in, or what else it does: ``backward``, ``next batch``."""
    number: int = 0
    """Of its newest operation within its process group, from 1; 0: there was none."""
    waits_s: float = 0.0
    place: str = ""
    """``Cell In[3], line 7``; empty when it is not known."""
    source: str = ""
    """The text of that line."""
    num_steps: int = 0
    """Optimizer steps so far."""
    details: tuple[str, ...] = ()
    """What keeps it there, as far as it is known: ``its worker 1234 is at Cell In[2], line 4``."""
    stack: str = ""
    """Of its process, at most 4,000 characters."""


class Stalled(Event, frozen=True, kw_only=True, tag="stalled"):
    """A rank has waited for so long without any rank coming further that somebody should look."""

    text: str
    """What to tell the user: who waits where, and where the others are."""
    waits_s: float
    """The longest wait."""
    ranks: tuple[Whereabouts, ...]


class StallEnded(Event, frozen=True, kw_only=True, tag="stall_ended"):
    """The wait that was told is over."""

    text: str
    waited_s: float


class StepTimes(Event, frozen=True, kw_only=True, tag="step_times"):
    """How long the rank's newest optimizer steps took, on average."""

    num_steps: int
    """Since the function began."""
    step_s: float
    own_s: float
    """The part in which it neither waited in an operation of all ranks nor was in its backward pass."""
    input_s: float
    """The part of `own_s` in which it waited for batches."""


class Straggler(Event, frozen=True, kw_only=True, tag="straggler"):
    """The rank takes longer for its own part of a step than the others, who wait for it."""

    text: str
    factor: float
    """Its own time over the median of the others'."""
    by: Literal["computation", "input"]
    own_s: float
    """Per step, of this rank."""
    others_s: float
    """Per step, the median of the other ranks."""


class HostMemoryLow(Event, frozen=True, kw_only=True, tag="host_memory_low"):
    """The memory of the machine, or of the container, is nearly used up: soon the system kills a process."""

    text: str
    used_bytes: int
    limit_bytes: int
    largest_rank: int
    rank_bytes: int
    """Resident set of that rank and its children."""


class RankUsage(Event, frozen=True, kw_only=True, tag="rank_usage"):
    """What a rank and the processes that it has started take of the machine, every two seconds while it runs."""

    memory_bytes: int
    """Resident or swapped out. Pages that processes share count for each of them."""
    cpus: float
    """CPUs kept busy since the sample before, 1.5 being one and a half."""
    device_memory_bytes: int = 0
    """Of the rank's device, all there is; 0: it has none of its own, or the driver does not tell."""
    device_used_bytes: int = 0
    """Of that, in use by anybody."""
    device_own_bytes: int | None = None
    """Of that, by this rank and what it has started; None: the driver does not tell, as in most containers."""
    device_utilization: float | None = None
    """Part of the time in which it computed for anybody, between 0 and 1; None: not told."""


class Notice(Event, frozen=True, kw_only=True, tag="notice"):
    """One sentence of ours for the user."""

    text: str


class EventsDropped(Event, frozen=True, kw_only=True, tag="events_dropped"):
    """Lines of a rank that are in its log file but are not in the event stream: it wrote faster than the limit."""

    lines: int


class CellEnded(Event, frozen=True, kw_only=True, tag="cell_ended"):
    """A rank that is kept from cell to cell has run one, or failed in it, and waits for the next."""

    cell: int
    failure: RankFailure | None = None
    """None: it ran to its end."""
    value_bytes: int = 0
    """Of what it gives back, which is on its way to the kernel; 0: nothing."""
    owned: tuple[str, ...] = ()
    """Variables that cells have set on this rank."""
    num_calls: int = 0
    """Operations of all ranks that it has called so far: ranks that differ are out of step."""
    lockstep: str = ""
    """`accel_nb.protocol.lockstep.standing`: likewise."""


class RankFinished(Event, frozen=True, kw_only=True, tag="rank_finished"):
    """The function returned. Its value is on its way to the kernel."""

    value_bytes: int = 0
    modules: tuple[str, ...] = ()
    """Third-party modules the rank imported beyond those of its server: what a template should hold."""


class RankFailed(Event, frozen=True, kw_only=True, tag="rank_failed"):
    failure: RankFailure


class RankExited(Event, frozen=True, kw_only=True, tag="rank_exited"):
    """The rank's process has ended. What it has left behind is ended with the run."""

    exit_code: int | None = None
    signal: str | None = None


class Restarting(Event, frozen=True, kw_only=True, tag="restarting"):
    attempt: int
    """Number of the attempt that begins, the first run being 0."""
    reason: str = ""
    """Why the ranks cannot go on in a search for a batch size; empty: a rank has failed, and the user asked for it."""
    searches: SearchHistory = SearchHistory()
    """What is known of batch sizes by now."""


class StopRequested(Event, frozen=True, kw_only=True, tag="stop_requested"):
    by: str
    """Who asked: ``interrupt``, the waiting cell's; ``handle``, somebody who called ``Run.stop``; ``magic``, who
    used ``%accel_stop``; ``view``, who pressed Stop in the cell; ``panel``, who did so beside the notebook;
    ``failure``, the keeper, since another rank has failed or ranks were not ready in time.
    """


class RunEnded(Event, frozen=True, kw_only=True, tag="run_ended"):
    """Every rank and everything the ranks started is gone."""

    duration_s: float = 0.0
    leftovers: int = 0
    """Processes the ranks had left behind and that were ended by us."""


RunEvent = (
    RunStarted
    | RankStarted
    | LogLines
    | ProgressRow
    | Display
    | MetricsLogged
    | SettingsLogged
    | RunHeader
    | BatchSizeBegun
    | RanOutOfMemory
    | BatchSizeTried
    | CollectiveMismatch
    | DryRunReport
    | Stalled
    | StallEnded
    | StepTimes
    | Straggler
    | HostMemoryLow
    | RankUsage
    | Notice
    | EventsDropped
    | CellEnded
    | RankFinished
    | RankFailed
    | RankExited
    | Restarting
    | StopRequested
    | RunEnded
)
