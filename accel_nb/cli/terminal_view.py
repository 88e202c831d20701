"""How a run is shown in a terminal: lines with coloured prefixes, and the ranks' progress bars below them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..jupyter.bar_lines import bar_lines
from ..launch.views.flow_limit import BARS_INTERVAL_S
from ..launch.views.run_text import RunText
from ..launch.views.view import RunView, TextView
from ..protocol.events import ProgressRow, RunEvent
from ..protocol.run_state import RunState

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")
"""Of rank 0, 1, ...; from the ninth on they come again."""
_PREFIX = re.compile(r"\[r(\d+)[^\]]*\] ")
_OURS = "accel_nb: "
_FAILED = re.compile(r"accel_nb: rank \d+ (failed|waits)")


class TerminalView:
    """Lines scroll; the bars stay at the bottom until the run is over, and then remain as they are."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._text = RunText()
        self._live: Live | None = None
        self._drawn_s = float("-inf")
        self._bars_changed = False
        self._closed = False

    def update(self, events: Sequence[RunEvent], state: RunState) -> None:
        now = self._clock()
        self._text.add(events, state, now)
        self._bars_changed = self._bars_changed or any(isinstance(event, ProgressRow) for event in events)
        self._write(self._text.due(now))
        if self._bars_changed and now - self._drawn_s >= BARS_INTERVAL_S:
            self._draw_bars(state, now)

    def close(self, state: RunState) -> None:
        if self._closed:
            return
        self._closed = True
        now = self._clock()
        self._write(self._text.rest(now))
        self._draw_bars(state, now)
        if self._live is not None:
            self._live.stop()

    def _draw_bars(self, state: RunState, now: float) -> None:
        self._bars_changed, self._drawn_s = False, now
        rows = Text("\n").join(_styled(row) for row in bar_lines(state, self._text.prefix))
        if self._live is None:
            if not rows:
                return
            # The ranks' output does not pass through this process's streams: they stay as they are.
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.start()
        self._live.update(rows, refresh=True)

    def _write(self, text: str) -> None:
        for line in text.splitlines():
            self._console.print(_styled(line), soft_wrap=True)


def choose_view(stream: TextIO) -> RunView:
    """Colours and bars on a terminal, plain lines elsewhere (also where ``TERM`` is ``dumb``)."""
    console = Console(file=stream, highlight=False, emoji=False, markup=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return TerminalView(console)
    return plain_view(stream)


def plain_view(stream: TextIO, clock: Callable[[], float] = time.monotonic) -> TextView:
    """Lines, and of each bar its last state."""
    encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(text: str) -> None:
        # Bars are drawn with characters that the C locale's encoding does not have.
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()

    return TextView(write, clock)


def _styled(line: str) -> Text:
    """A line of ours is dim, a failure red; one of a rank keeps its own colours behind a prefix in the rank's."""
    if line.startswith(_OURS):
        return Text(line, "bold red" if _FAILED.match(line) else "dim")
    prefix = _PREFIX.match(line)
    if prefix is None:
        return Text.from_ansi(line)
    rank = int(prefix[1])
    return Text(prefix[0], _COLOURS[rank % len(_COLOURS)]) + Text.from_ansi(line[prefix.end() :])
