"""What a kernel and the page that shows one run say to each other.

    kernel --ToFrontEnd--> page      (custom messages of the widget's comm, at most 10 per second)
    kernel <--FromFrontEnd-- page    (any thread of the kernel may receive them)

A page may come late, be reloaded or be there twice: it connects, is sent the `WholeRun`, then `NewEvents`. What it has
seen before it knows by `sequence`.
"""

from __future__ import annotations

import msgspec

from .events import RunEvent
from .run_state import RunState


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What all of these share."""


# ---- kernel to page


class LoggedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log of all ranks, in the order of arrival."""

    rank: int | None
    """None: a sentence of ours."""
    text: str
    time_s: float
    """Seconds since the epoch."""


class WholeRun(Message, frozen=True, kw_only=True, tag="whole_run"):
    """All that is known now. Sent when a page connects, and at the end."""

    state: RunState
    """With empty `log_tail`s: `lines` has the ranks' output, in order."""
    lines: tuple[LoggedLine, ...] = ()
    started_s: float = 0.0
    """Seconds since the epoch; 0: it has not begun."""
    now_s: float = 0.0
    """The kernel's clock, which need not be the page's."""
    can_hear: bool = True
    """Whether a button reaches the kernel as long as the cell of this view runs."""


class NewEvents(Message, frozen=True, kw_only=True, tag="new_events"):
    """What has happened since the last of these."""

    events: tuple[RunEvent, ...]
    now_s: float = 0.0


class StackTexts(Message, frozen=True, kw_only=True, tag="stack_texts"):
    """The answer to `AskStacks`."""

    text_by_rank: dict[int, str] = {}
    problem: str = ""
    """Why there are none; empty when there are."""


ToFrontEnd = WholeRun | NewEvents | StackTexts


# ---- page to kernel


class Loaded(Message, frozen=True, kw_only=True, tag="loaded"):
    """The page can run our module. The view itself may not be there yet, as of a cell out of sight."""


class Connect(Message, frozen=True, kw_only=True, tag="connect"):
    """A view is there: send the `WholeRun`."""


class StopRun(Message, frozen=True, kw_only=True, tag="stop_run"):
    """The user wants the run to end."""

    now: bool = False
    """At once: the page says so on its button when a stop is under way, whoever has asked for that."""


class AskStacks(Message, frozen=True, kw_only=True, tag="ask_stacks"):
    """The user wants to see where the ranks are: answer with `StackTexts`."""


FromFrontEnd = Loaded | Connect | StopRun | AskStacks
