"""Python stacks of running ranks and of what they have started: asked for by a signal, written by faulthandler into
the rank's file, read from there.

A worker forked from a rank has inherited its handler and its file. All processes of a rank write into one file, so they
are asked one after another.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...protocol.stack_signal import STACK_SIGNAL
from .. import processes
from ..failures import readable_stack
from .rank_process import RankProcess

_QUIET_S = 0.1
"""A text that has not grown for so long is complete."""
_GIVE_UP_S = 2.0
"""For all of a rank's processes together."""
_CHILD_GIVES_UP_S = 0.5
"""For a child that does not answer, like one that is stopped."""


class RankStacks(NamedTuple):
    """What faulthandler wrote, unchanged."""

    own: str
    """Empty when the rank has not answered."""
    children: dict[int, str]
    """By pid; only of those that have answered."""

    @property
    def readable(self) -> str:
        """For people: the rank's own first."""
        others = [
            f"\n\nProcess {pid}, started by this rank:\n{readable_stack(text)}" for pid, text in self.children.items()
        ]
        return "".join([readable_stack(self.own), *others])


NO_STACKS = RankStacks("", {})
"""Of a rank that has not answered."""

OnStacks = Callable[[dict[int, RankStacks]], None]


class StackDesk:
    """Where the keeper asks for stacks: one dump at a time, which all who ask meanwhile get."""

    def __init__(self) -> None:
        self._dump: StackDump | None = None
        self._waiting: list[OnStacks] = []

    @property
    def busy(self) -> bool:
        """Whether `act` is to be called every few hundredths of a second."""
        return self._dump is not None

    def ask(self, ranks: Sequence[RankProcess], then: OnStacks) -> None:
        """Have `then` called with the stacks of those of `ranks` that have begun and run, within about two seconds."""
        self._waiting.append(then)
        if self._dump is None:
            self._dump = StackDump([rank for rank in ranks if rank.started and not rank.gone])

    def act(self, now: float) -> None:
        if self._dump is None or (stacks := self._dump.ready(now)) is None:
            return
        self._dump, waiting, self._waiting = None, self._waiting, []
        for then in waiting:
            then(stacks)


class StackDump:
    """One request. faulthandler answers from the signal handler, so also for a process blocked in native code."""

    def __init__(self, ranks: Sequence[RankProcess]) -> None:
        now = time.monotonic()
        self._dumps = {rank.rank: _RankDump(rank, now) for rank in ranks}

    def ready(self, now: float) -> dict[int, RankStacks] | None:
        """The stacks by rank once all have come; None before that. After two seconds what there is."""
        done = [dump.step(now) for dump in self._dumps.values()]
        return {rank: dump.stacks for rank, dump in self._dumps.items()} if all(done) else None


class _RankDump:
    """The processes of one rank, one after another."""

    def __init__(self, rank: RankProcess, now: float) -> None:
        self.stacks = RankStacks("", {})
        self._rank = rank
        self._end_s = now + _GIVE_UP_S
        self._children: deque[int] | None = None
        """Those that have not been asked yet; None: they are not looked for yet."""
        self._asked: int | None = None
        """The child that has been asked; None: the rank itself."""
        self._offset = rank.stack_bytes()
        self._seen, self._seen_s = "", now
        self._give_up_s = self._end_s
        # A rank that has become another program would be killed.
        if not self._cannot_answer() and rank.writes_stacks(rank.pid):
            rank.send_signal(STACK_SIGNAL)

    def step(self, now: float) -> bool:
        """Go on; whether all is done."""
        text = self._rank.stack_text(self._offset)
        if text != self._seen:
            self._seen, self._seen_s = text, now
        settled = bool(text) and now - self._seen_s >= _QUIET_S
        if not settled and now < self._give_up_s and not self._cannot_answer():
            return False
        self._keep(text)
        return not self._ask_next(now)

    def _cannot_answer(self) -> bool:
        asked = self._rank.pid if self._asked is None else self._asked
        return not processes.handles_signal(asked, STACK_SIGNAL)

    def _keep(self, text: str) -> None:
        if self._asked is None:
            self.stacks = self.stacks._replace(own=text)
        elif text:
            self.stacks.children[self._asked] = text

    def _ask_next(self, now: float) -> bool:
        """Ask the next child that can answer; False when there is none, or no time left."""
        if self._children is None:
            self._children = deque(processes.descendants(self._rank.pid) if not self._rank.gone else ())
        while self._children and now < self._end_s:
            self._asked = self._children.popleft()
            self._offset = self._rank.stack_bytes()
            self._seen, self._seen_s = "", now
            self._give_up_s = min(self._end_s, now + _CHILD_GIVES_UP_S)
            if self._signal(self._asked):
                return True
        return False

    def _signal(self, pid: int) -> bool:
        """Ask a child, but only one that has the rank's file open and handles the signal: it would kill any other.

        One that is about to become another program blocks the signal until it has lost its handler; looked at in that
        order, since it goes on meanwhile.
        """
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                # After the pidfd is there: what is found is then true of the process that it names, or of none.
                blocked = processes.blocks_signal(pid, STACK_SIGNAL)
                handled = processes.handles_signal(pid, STACK_SIGNAL)
                if handled and not blocked and self._rank.writes_stacks(pid):
                    signal.pidfd_send_signal(pidfd, STACK_SIGNAL)
                    return True
            finally:
                os.close(pidfd)
        return False
