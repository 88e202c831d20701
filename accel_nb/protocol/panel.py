"""What a kernel and the panel beside its notebook say to each other.

    panel --PanelRequest--> kernel    (control channel, type `REQUEST`: arrives while a cell runs, on every ipykernel)
    panel <--PanelReply---- kernel    (its reply, type `REPLY`, at once)
    panel <--PanelNews----- kernel    (comm of the target `TARGET`, at most 10 per second; same for all pages)

The kernel opens one comm when the extension is loaded, and closes it when that is unloaded. A page that comes later
learns its id from `KernelFacts` and listens to it without asking the shell, which may be busy; one that closes its end
does so for itself alone. Requests are few: each makes the front end show the kernel as busy for a moment.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .front_end import NewEvents, StackTexts, WholeRun
from .hardware import NodeHardware

TARGET = "accel_nb.panel"
REQUEST = "accel_nb_request"
REPLY = "accel_nb_reply"
LISTENS_S = 600.0
"""News are sent for this long after the last request of any page; `Hello` again is enough to go on. That a run
has begun or ended is told at any time."""


class PanelMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all of these share."""


# ---- panel to kernel


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What the person has chosen in the panel: arguments of a launch. None: not chosen; the settings file says it, else
    the planner.
    """

    num_processes: int | None = None
    device: str | None = None
    devices: tuple[int | str, ...] | None = None
    """Positions among the visible devices, which are what the panel offers; ids too in a settings file."""
    mixed_precision: str | None = None
    debug: bool | None = None
    """Collective checks: None as by default, True also where they cost, False never."""
    backend: str | None = None


class SettingsFile(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings file says, which ``accel-nb launch`` reads, too."""

    path: str
    choice: Choice = Choice()
    """As far as the panel has fields for it."""
    problem: str = ""
    """Why no launch is possible with it, in a sentence; empty when one is."""


class Hello(PanelMessage, frozen=True, kw_only=True, tag="hello"):
    """A page is there: answer with `KernelFacts`, and send it news. The page compares the versions, and tells it."""


class FollowRun(PanelMessage, frozen=True, kw_only=True, tag="follow_run"):
    """The page shows this run: answer with `RunNews` that holds the `WholeRun`, then send what happens."""

    run_id: str


class AskPlan(PanelMessage, frozen=True, kw_only=True, tag="ask_plan"):
    """Tell by `PlanAnswer` what would start."""

    number: int
    """Repeated in the answer: only that to the newest question counts."""
    choice: Choice


class StopNamedRun(PanelMessage, frozen=True, kw_only=True, tag="stop_named_run"):
    run_id: str
    now: bool = False
    """Kill, do not ask the ranks."""


class AskStacksOf(PanelMessage, frozen=True, kw_only=True, tag="ask_stacks_of"):
    """Answered by a `RunNews` that holds `StackTexts`."""

    run_id: str


PanelRequest = Hello | FollowRun | AskPlan | StopNamedRun | AskStacksOf


# ---- kernel to panel


class DeviceUser(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds memory of a device."""

    pid: int
    name: str
    """For people: "this kernel", "another kernel", "rank 1 of train (run 9f3a71c2)", or the program's name."""
    memory_bytes: int
    is_kernel: bool = False


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator at one moment."""

    kind: str
    """As `Device.kind`, "cuda"."""
    index: int
    """In the machine's own numbering, as `DeviceInfo.index`."""
    memory_used_bytes: int
    utilization: float | None
    """Between 0 and 1; None: not told by the driver."""
    users: tuple[DeviceUser, ...] = ()


class HardwareNow(PanelMessage, frozen=True, kw_only=True, tag="hardware_now"):
    """The machine at one moment; every two seconds while a page listens."""

    time_s: float
    cpu_utilization: float
    """Of the CPUs this kernel may use, between 0 and 1."""
    memory_used_bytes: int
    """Of the machine, or of the control group when that has a limit."""
    devices: tuple[DeviceUse, ...] = ()


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run of this kernel, as a list shows it."""

    run_id: str
    function_name: str
    status: Literal["starting", "running", "stopping", "finished", "failed", "stopped", "unknown"]
    num_ranks: int
    device_kind: str
    started_s: float
    """Seconds since the epoch."""
    duration_s: float | None = None
    """None: it goes on."""
    headline: str = ""
    """Of its failure, one line; empty when it has none."""
    cell: str = ""
    """The cell that started it, ``In[3]``; empty when not known."""
    cell_id: str = ""
    """The notebook's own id of that cell, when the front end tells it; empty otherwise."""
    log_dir: str = ""


class RunsNow(PanelMessage, frozen=True, kw_only=True, tag="runs_now"):
    """All runs the kernel knows, the newest last; sent when one begins or ends."""

    runs: tuple[RunSummary, ...]


class RunNews(PanelMessage, frozen=True, kw_only=True, tag="run_news"):
    """Of a run that some page follows."""

    run_id: str
    message: WholeRun | NewEvents | StackTexts


class PlanAnswer(PanelMessage, frozen=True, kw_only=True, tag="plan_answer"):
    """What a launch would do, in words."""

    number: int
    line: str = ""
    reasons: tuple[str, ...] = ()
    problem: str = ""
    """Why it would be refused; empty when it would not."""


class KernelFacts(PanelMessage, frozen=True, kw_only=True, tag="kernel_facts"):
    """Who answers."""

    version: str
    """Of accel_nb in the kernel."""
    comm_id: str
    """Where news come."""
    pid: int
    hardware: NodeHardware
    now: HardwareNow | None
    runs: tuple[RunSummary, ...]
    settings: SettingsFile | None = None
    """None: there is no such file, or none is wanted."""


class Accepted(PanelMessage, frozen=True, kw_only=True, tag="accepted"):
    """The request is being carried out; what comes of it arrives as news."""


class Refused(PanelMessage, frozen=True, kw_only=True, tag="refused"):
    problem: str
    """A sentence: no such run, a request of a newer page."""


PanelNews = HardwareNow | RunsNow | RunNews | PlanAnswer
PanelReply = KernelFacts | RunNews | Accepted | Refused
