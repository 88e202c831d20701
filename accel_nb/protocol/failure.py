"""How one rank ended badly, as data: text only, nothing that must be unpickled."""

from __future__ import annotations

from typing import Literal

import msgspec


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What a known low-level message means."""

    meaning: str
    """One sentence: what has happened."""
    remedy: str
    """One sentence: what to do."""


class LineAllocations(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory that tensors hold which one line of code allocated."""

    location: str
    """``Cell In[7], line 12`` or ``train.py, line 12``; empty when no line of the user's did, as in backward."""
    num_bytes: int
    count: int
    """Of allocations."""


class MemorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Who held the memory of a rank's device when it failed."""

    file: str = ""
    """The whole snapshot, as torch's viewer reads it; empty when it could not be written."""
    problem: str = ""
    """Why it could not; empty when it was."""
    total_bytes: int
    """In use by tensors."""
    largest: tuple[LineAllocations, ...]
    """The lines that hold most of it, the largest first."""


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's end that was not a return."""

    rank: int
    kind: Literal["raised", "died", "stopped", "dead_end"]
    """raised: the function raised. died: the process ended without reporting. stopped: we ended it. dead_end: it waited
    for ever; `message` says for whom, and what it raised, if it did, is in `type_name` and `traceback`.
    """
    type_name: str = ""
    """Qualified name of the exception's class, without ``builtins.``; empty when the process died."""
    message: str = ""
    """``str(exception)``, or the sentence that explains the death."""
    traceback: str = ""
    """From the user's function on, source lines included; empty when the process died without one."""
    location: str = ""
    """``Cell In[7], line 12`` or ``train.py, line 12``: the innermost frame that is the user's own."""
    exit_code: int | None = None
    """The process's exit status; None while unknown or when a signal ended it."""
    signal: str | None = None
    """``SIGKILL``, ...: the signal that ended the process; None when none did."""
    peak_memory_bytes: int = 0
    """Largest resident set of the rank's process; 0 when unknown."""
    last_lines: tuple[str, ...] = ()
    """The end of the rank's output, at most 30 lines."""
    stack: str = ""
    """faulthandler's Python stack at a fatal signal, or in a dead end."""
    time_s: float = 0.0
    """CLOCK_MONOTONIC of the machine the rank ran on: orders failures of one host."""
    consequence: bool = False
    """True when this follows from another rank's end (connection closed by peer, our own stop)."""
    differing: tuple[int, ...] | None = None
    """Of calls that do not fit together: the ranks whose calls were not those of most; empty: there were no such. None:
    the failure is another.
    """
    memory: MemorySnapshot | None = None
    """None: nobody asked, or the rank has not used its device."""
    explanation: Explanation | None = None
    """Of a message that is known to say little to people; None of one that speaks for itself or is not known."""
