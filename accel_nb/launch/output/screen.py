"""As much of a terminal as progress bars need: carriage return, backspace, cursor up and down, erase.

Rows that can still change are kept; the others leave at the top, once and for all. Rows above the cursor are final when
plain text was written below them or when they were left alone for `SETTLE_S`. Colours stay in the text.
"""

from __future__ import annotations

import re
from typing import Protocol

from .bars import Bar, Bars
from .meter import MAX_METER_CHARS, Meter, read_meter
from .screen_row import MAX_COLUMNS, Row, cells_of

SETTLE_S = 0.3
"""A row above the cursor that was not touched for this long is final. tqdm comes back at once."""
SETTLE_OPEN_S = 1.0
"""The same for a bar short of its total, for a rank that had to wait while it drew a bar below; and while a program
redraws several rows (rich does so 4 to 10 times a second)."""
LIVE_AFTER_S = 0.3
"""A row without a bar that is rewritten for this long is shown while it changes, not only in the end."""
MAX_ROWS = 64
"""More rows than that are not kept open: the topmost is final."""

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


class ScreenReader(Protocol):
    """Who is told what is final."""

    def line(self, text: str) -> None:
        """A row that will not change any more."""

    def bar_done(self, bar: Bar) -> None:
        """The last state of a bar."""


class Screen:
    """The rows of one rank that are not final. `now` is in seconds, of any one clock."""

    def __init__(self, reader: ScreenReader) -> None:
        self._reader = reader
        self._bars = Bars()
        self._now = 0.0
        self._colour = ""
        """Colour codes that belong to the next character."""
        self._redrawing = False
        """Several rows are drawn again and again: no row is final just because a newline follows it."""
        self._cursor_shown = True
        self._rows = [Row(0.0)]
        self._y = 0
        self._x = 0

    @property
    def idle(self) -> bool:
        """Nothing on it, so that plain lines may pass by."""
        return len(self._rows) == 1 and self._rows[0].untouched and not (self._redrawing or self._colour)

    @property
    def pending(self) -> bool:
        """Whether `settle` may still have something to do."""
        return not self.idle or bool(self._bars.alive)

    def set_time(self, now: float) -> None:
        """What is written next is written at `now`."""
        self._now = now

    def start_line(self, text: str, *, given: bool) -> None:
        """Take over a line that began before the screen was needed; `given`: part of it was given out."""
        self._row.given = given
        if text:
            self.put(text)

    def settle(self, now: float, partial_s: float) -> None:
        """Give out what has become final by the passing of time, and a line without end of age `partial_s`."""
        self._now = now
        while self._y > 0 and now - self._rows[0].touched_s >= self._patience_s(self._rows[0]):
            self._pop_row()
        if self._redrawing and self._cursor_shown and len(self._rows) == 1 and self._row.blank:
            self._redrawing = False
        for bar in self._bars.gone(now):
            self._drop_bar(bar)
        row = self._row
        if now - row.touched_s < (SETTLE_OPEN_S if self._redrawing else partial_s):
            return
        self._give_tail(row)
        if row.cells and not row.returned:
            self._flush_above()
            self._reader.line(row.text)
            self._rows[0] = Row(now, given=True)
            self._x = 0

    def due(self, now: float) -> list[Bar]:
        """Bars whose changes are to be reported now."""
        for row in self._rows if self._redrawing else self._rows[self._y :]:
            if row.live_since_s is not None and row.meter_bar is None and now - row.live_since_s >= LIVE_AFTER_S:
                self._show_live(row)
        return self._bars.due(now)

    def finish(self) -> None:
        """Nothing more will be written: every row is final, every bar done."""
        self._leave_row()
        for row in self._rows:
            self._finish_row(row)
        for bar in self._bars.alive:
            self._drop_bar(bar)
        self._rows, self._y, self._x = [Row(self._now)], 0, 0

    # ---- writing

    @property
    def _row(self) -> Row:
        return self._rows[self._y]

    def put(self, text: str) -> None:
        row = self._row
        row.touched_s = self._now
        if row.drawn:
            self._put_behind_bar(row, text)
            return
        if row.draft is not None:
            row.draft += text
            if row.returned and (found := read_meter(row.draft)) is not None:
                self._draw_meter(row, *found)
                return
            if len(row.draft) > MAX_METER_CHARS:
                row.draft = None
        self._overwrite(row, text)

    def _draw_meter(self, row: Row, meter: Meter, rest: str) -> None:
        widths = {bar.number: bar.width for bar in self._bars.alive}
        above = [bar for other in self._rows[: self._y] if (bar := other.meter_bar) is not None]
        below = [bar for other in self._rows[self._y + 1 :] if (bar := other.meter_bar) is not None]
        shown = {bar.number for bar in (*above, *below, *([row.meter_bar] if row.meter_bar else []))}
        elsewhere = [bar for bar in self._bars.alive if bar.n is not None and bar.number not in shown]
        bar = self._bars.draw(meter, row.meter_bar, [*below, *elsewhere], above)
        self._forget_live(row)
        for y, other in enumerate(self._rows):
            if other is not row and other.bar is bar:
                self._rows[y] = Row(self._now, returned=True)
        row.bar, row.cells, row.drawn, row.draft = bar, [], True, None
        row.live_since_s, self._colour = None, ""
        row.padding = max(widths.get(bar.number, 0) - bar.width, 0)
        if rest:
            self._put_behind_bar(row, rest)

    def _put_behind_bar(self, row: Row, text: str) -> None:
        row.put_behind_bar(text)
        while len(row.tail) >= MAX_COLUMNS:
            self._reader.line(row.tail[:MAX_COLUMNS])
            row.tail = row.tail[MAX_COLUMNS:]

    def _overwrite(self, row: Row, text: str) -> None:
        if row.returned and row.live_since_s is None and text.strip():
            row.live_since_s = self._now
        cells = cells_of(text)
        for start in range(0, len(cells), MAX_COLUMNS):
            piece = cells[start : start + MAX_COLUMNS]
            if self._x + len(piece) > MAX_COLUMNS:
                self._cut_row(row)
            piece[0], self._colour = self._colour + piece[0], ""
            row.overwrite(self._x, piece)
            self._x += len(piece)

    def _cut_row(self, row: Row) -> None:
        """Too long: what is there becomes a line of its own."""
        if not row.blank:
            self._flush_above()
            self._reader.line(row.text)
        row.cells, row.draft, row.given = [], None, True
        self._x = 0

    def colour(self, sequence: str) -> None:
        """Keep a colour code with the text that follows; bars are shown without."""
        row = self._row
        if not row.drawn:
            self._colour += sequence
        elif row.tail:
            row.tail += sequence

    # ---- moving

    def newline(self) -> None:
        row = self._row
        if row.drawn and row.tail:
            # Printed behind a bar: shown as if it had been printed above it, and the bar stays where it is.
            self._give_tail(row)
            return
        self._leave_row()
        row.touched_s = self._now
        if row.bar is not None or row.returned or self._redrawing:
            self.move_down()
        elif row.blank and not row.given:
            row.passed_blank = True
            self.move_down()
        else:
            self._flush_above()
            if not row.blank:
                self._reader.line(row.text)
            self._rows[:] = self._rows[1:] or [Row(self._now)]
            self._start_row()

    def move_down(self) -> None:
        self._leave_row()
        self._y += 1
        if self._y == len(self._rows):
            self._rows.append(Row(self._now))
        if len(self._rows) > MAX_ROWS:
            self._pop_row()
        self._start_row()

    def move_up(self, count: int) -> None:
        self._leave_row()
        for _ in range(count):
            if self._y > 0:
                self._y -= 1
                self._row.passed_blank = False
            elif len(self._rows) < MAX_ROWS:
                # Above everything that is left: those rows were final too soon, so be patient from now on.
                self._rows.insert(0, Row(self._now, returned=True))
                self._redrawing = True
        row = self._row
        empty = not row.drawn and not row.text.strip()
        row.touched_s, row.draft = self._now, "" if empty else None
        self._x = 0 if empty else min(self._x, len(row.cells))

    def move_by(self, num_columns: int) -> None:
        row = self._row
        if not row.drawn:
            row.returned, row.draft = True, None
            self._x = min(max(self._x + num_columns, 0), MAX_COLUMNS - 1)

    def carriage_return(self) -> None:
        self._leave_row()
        row = self._row
        row.touched_s, row.returned, row.drawn, row.draft = self._now, True, False, ""
        self._x = 0

    def erase_line(self, *, whole: bool) -> None:
        """The row of the cursor, from its start or from the cursor on."""
        self._erase(self._row, 0 if whole else self._x)

    def erase_below(self) -> None:
        for row in self._rows[self._y + 1 :]:
            self._erase(row, 0)

    def show_cursor(self, *, shown: bool) -> None:
        """Programs hide it while they redraw several rows."""
        self._cursor_shown = shown
        self._redrawing = self._redrawing or not shown

    def _start_row(self) -> None:
        self._x = 0
        row = self._row
        row.touched_s = self._now
        if not row.drawn:
            row.draft = ""

    def _leave_row(self) -> None:
        """Decide what was written into the row that the cursor leaves."""
        row = self._row
        self._give_tail(row)
        if self._colour and 0 < self._x <= len(row.cells):
            row.cells[self._x - 1] += self._colour
            self._colour = ""
        if (bar := row.meter_bar) is not None and not row.drawn:
            if row.text.strip():
                row.bar = None  # overwritten by something else; its owner may draw it elsewhere
            elif row.draft:
                self._bars.erase(bar, self._now)
                row.cells = []

    def _erase(self, row: Row, first_column: int) -> None:
        row.touched_s = self._now
        if row.bar is None and len(row.cells) <= first_column:
            return  # nothing there: many programs erase to the end of each line
        row.returned = True
        del row.cells[first_column:]
        if first_column == 0:
            if (bar := row.meter_bar) is not None:
                self._bars.erase(bar, self._now)
            row.drawn = False
            row.draft = "" if row is not self._row or self._x == 0 else None

    # ---- what is final

    def _give_tail(self, row: Row) -> None:
        if row.tail:
            self._reader.line(row.take_tail())

    def _patience_s(self, row: Row) -> float:
        bar = row.meter_bar
        return SETTLE_OPEN_S if self._redrawing or (bar is not None and bar.n != bar.total) else SETTLE_S

    def _flush_above(self) -> None:
        for _ in range(self._y):
            self._pop_row()

    def _pop_row(self) -> None:
        self._finish_row(self._rows.pop(0))
        self._y -= 1

    def _finish_row(self, row: Row) -> None:
        if (bar := row.meter_bar) is not None:
            self._finish_bar(bar)
            return
        if row.text.strip() or row.passed_blank:
            self._reader.line(row.text)
        self._forget_live(row)

    def _show_live(self, row: Row) -> None:
        text = _COLOUR.sub("", row.text)
        if text.strip():
            row.bar = row.bar or self._bars.start()
            self._bars.show(row.bar, text)

    def _forget_live(self, row: Row) -> None:
        """A row that was shown while it changed has become a line or a bar: its own report ends."""
        if row.bar is not None and row.meter_bar is None:
            self._bars.erase(row.bar, self._now)
            self._finish_bar(row.bar)
            row.bar = None

    def _drop_bar(self, bar: Bar) -> None:
        for row in self._rows:
            if row.bar is bar:
                row.bar, row.drawn = None, False
        self._finish_bar(bar)

    def _finish_bar(self, bar: Bar) -> None:
        if not bar.done:
            self._bars.finish(bar)
            if bar.text or bar.reported_s is not None:
                self._reader.bar_done(bar)
