"""What shows a run: the protocol of all views, and the plain text of terminals and batch tools."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ...protocol.events import LogLines, ProgressRow, Restarting, RunEvent
from ...protocol.run_state import RunState
from .run_text import BY_USER, RunText


class RunView(Protocol):
    """Shows one run. One thread at a time calls it."""

    def update(self, events: Sequence[RunEvent], state: RunState) -> None:
        """`events` are new, `state` is the state after them. Called every 0.1 s at least, also without events."""

    def close(self, state: RunState) -> None:
        """The run is over: show all that was held back. Calling it again does nothing."""


class TextView:
    """Lines with rank prefixes. Of a progress bar only the last state is shown, as one line."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`write` gets whole lines, newline included, at most 20 times and 200 kB per second (`flow_limit`)."""
        self._write = write
        self._clock = clock
        self._text = RunText()
        self._ended_bars: set[tuple[int | None, int]] = set()
        self._closed = False

    def update(self, events: Sequence[RunEvent], state: RunState) -> None:
        now = self._clock()
        self._text.add([self._with_bars_as_lines(event, state) for event in events], state, now)
        if text := self._text.due(now):
            self._write(text)

    def close(self, state: RunState) -> None:
        if self._closed:
            return
        self._closed = True
        now = self._clock()
        if state.stopped_by != "interrupt":  # what is raised then tells the last step of each rank
            for row in (row for rank in state.ranks.values() for row in rank.progress.values()):
                if row.rank is not None and self._ends_now(row):
                    self._text.add_line(row.rank, row.text, now)
        if text := self._text.rest(now):
            self._write(text)

    def _with_bars_as_lines(self, event: RunEvent, state: RunState) -> RunEvent:
        """`event`, or the line that is left of a bar at its end. After a stop by the user bars wait for `close`."""
        if isinstance(event, Restarting):
            self._ended_bars.clear()
        if isinstance(event, ProgressRow) and event.done and state.stopped_by not in BY_USER and self._ends_now(event):
            return LogLines(rank=event.rank, text=event.text)
        return event

    def _ends_now(self, row: ProgressRow) -> bool:
        """Once per bar; a bar that was erased reads nothing and leaves no line."""
        bar = (row.rank, row.bar)
        if not row.text or bar in self._ended_bars:
            return False
        self._ended_bars.add(bar)
        return True
