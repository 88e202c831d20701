"""Chooses how a run is shown, and shows it in a notebook's cell."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Protocol

from ..errors import InvalidArgument
from ..launch.run import Run
from ..launch.views.flow_limit import BARS_INTERVAL_S
from ..launch.views.run_text import RunText
from ..launch.views.view import RunView, TextView
from ..protocol import environment
from ..protocol.events import Display, ProgressRow, RunEvent
from ..protocol.run_state import RunState
from . import cell_widget
from .bar_lines import bar_lines
from .cell_output import CellOutput, current_cell
from .live_view import LiveView

_VIEWS = ("auto", "widget", "text")


class CellView(RunView, Protocol):
    """A view that may have buttons."""

    def serve(self, run: Run, *, raises: bool) -> None:
        """`run` is the one that is shown. `raises`: its failure will be the cell's exception, below the view."""


class NotebookView:
    """Lines as the cell's stdout, all progress bars as one display that is replaced in place; what rank 0 displays, in
    order with the lines.

    The last state of the display is what a saved notebook holds: one line per bar.
    """

    def __init__(self, cell: CellOutput, clock: Callable[[], float] = time.monotonic) -> None:
        self._cell = cell
        self._clock = clock
        self._text = RunText()
        self._display_id = uuid.uuid4().hex
        self._drawn: str | None = None
        """What the display shows; None while there is none."""
        self._drawn_s = float("-inf")
        self._bars_changed = False
        self._closed = False

    def serve(self, run: Run, *, raises: bool) -> None:
        """It has no buttons."""

    def update(self, events: Sequence[RunEvent], state: RunState) -> None:
        now = self._clock()
        lines: list[RunEvent] = []
        for event in events:
            if isinstance(event, Display) and not event.rank:
                self._text.add(lines, state, now)
                lines = []
                self._show(event, now)
            else:
                lines.append(event)
        self._text.add(lines, state, now)
        self._bars_changed = self._bars_changed or any(isinstance(event, ProgressRow) for event in events)
        if self._bars_changed and now - self._drawn_s >= BARS_INTERVAL_S:
            self._draw_bars(state, now)
        if text := self._text.due(now):
            self._cell.write(text)

    def close(self, state: RunState) -> None:
        if self._closed:
            return
        self._closed = True
        now = self._clock()
        self._draw_bars(state, now)
        if text := self._text.rest(now):
            self._cell.write(text)

    def _show(self, event: Display, now: float) -> None:
        if event.update:
            self._cell.update(event.display_id, event.data, event.metadata)
            return
        if text := self._text.rest(now):
            self._cell.write(text)
        self._cell.display(event.display_id, event.data, event.metadata)

    def _draw_bars(self, state: RunState, now: float) -> None:
        rows = "\n".join(bar_lines(state, self._text.prefix))
        self._bars_changed = False
        if rows == (self._drawn or ""):
            return
        # As plain text it has the font and the margin of the lines around it, in every front end.
        data = {"text/plain": rows}
        if self._drawn is not None:
            self._cell.update(self._display_id, data)
        else:
            # What was written before the first bar comes before it; what follows is shown below.
            if text := self._text.rest(now):
                self._cell.write(text)
            self._cell.display(self._display_id, data)
        self._drawn, self._drawn_s = rows, now


class StdoutView(TextView):
    """Lines of text, for terminals and batch tools."""

    def serve(self, run: Run, *, raises: bool) -> None:
        """It has no buttons."""


def choose_view() -> CellView:
    """The view for a run that is launched now, in this thread.

    In a notebook it belongs to the cell that runs: a widget where a front end has sent the cell, which can show one;
    lines and bars where a batch tool has (nbclient, papermill), and where the widget is not to be had.
    ``ACCEL_NB_VIEW`` says otherwise: "widget", "text". Elsewhere, and where the user has put something else in the
    place of the cell's stdout, it writes text to `sys.stdout` as it is now.

    Raises InvalidArgument when the widget was asked for by name and is not to be had, or for another name.
    """
    wanted = environment.view_wanted()
    if wanted not in _VIEWS:
        raise InvalidArgument(f"{environment.VIEW}={wanted!r}: give one of {', '.join(map(repr, _VIEWS))}.")
    cell = current_cell()
    if cell is None:
        return StdoutView(_stdout_writer())
    lacks = None if wanted == "text" else cell_widget.unavailable_because()
    if wanted == "widget" and lacks is not None:
        raise InvalidArgument(f"{environment.VIEW}='widget': {lacks}.")
    if wanted == "widget" or (wanted == "auto" and lacks is None and cell.has_front_end):
        return LiveView(cell, cell_widget.CellWidget, lambda: NotebookView(cell))
    return NotebookView(cell)


def _stdout_writer() -> Callable[[str], None]:
    stream = sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(text: str) -> None:
        # Bars are drawn with characters that the C locale's encoding does not have.
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()

    return write
