"""Turns the bytes that a rank and its children write into events: lines in order, and one row per progress bar.

Plain text is split at newlines and nothing else. A line with a carriage return, a backspace or a cursor movement, and
what follows it until everything is at rest, goes through a `screen.Screen`.
"""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Callable

from ...protocol.events import LogLines, ProgressRow, RunEvent
from .bars import Bar
from .screen import Screen
from .screen_input import draw

PARTIAL_S = 0.2
"""A line without its end is given out when it is this old, so that ``print("x", end="")`` shows."""
MAX_LINES_BYTES = 64 << 10
"""Of the text of one `LogLines`."""
MAX_UTF8_BYTES = 4
"""Of one character."""

MAX_POSITION = 20
"""Rows that tqdm draws into (its default for an unknown height of the terminal)."""

_MOVING = re.compile(r"[\r\b]|\x1b(?!\[[0-9;:]*m)")
"""What needs a screen. Colours do not."""
_INCOMPLETE = re.compile(r"(?:\r+|\x1b(?:\[?[0-?]*[ -/]*|\][^\x07\x1b]*\x1b?)?)\Z")
"""What means something else once more has been read."""
_LOOK_BACK = 256
"""Longest such ending that is waited for, in characters."""


class RankOutput:
    """Reads the output of one rank in one attempt. One thread, that of the keeper; `now` is in monotonic seconds.

    A bar is reported at most every `bars.UPDATE_INTERVAL_S`, its end always. What is held back is bounded: one line of
    64 KiB and the rows of a screen.
    """

    def __init__(self, rank: int, wall_clock: Callable[[], float] = time.time) -> None:
        self._rank = rank
        self._wall_clock = wall_clock
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._incomplete = ""
        self._partial = ""
        self._partial_since_s = 0.0
        self._partial_given = False
        """The beginning of the current line was given out: its newline ends no line of its own."""
        self._screen = Screen(self)
        self._lines: list[str] = []
        self._events: list[RunEvent] = []

    @property
    def pending(self) -> bool:
        """Whether `flush_partial` may give something although nothing more is written."""
        return bool(self._partial or self._incomplete) or self._screen.pending

    def feed(self, data: bytes, now: float) -> list[RunEvent]:
        """What `data`, the next bytes of the rank, completes."""
        self._read(self._incomplete + self._decode(data), now)
        self._report_bars(now)
        return self._taken()

    def flush_partial(self, now: float) -> list[RunEvent]:
        """What has become due since: a line without its end, rows at rest, bars. To be called every 0.25 s."""
        if self._incomplete.startswith("\r"):
            ending, self._incomplete = self._incomplete, ""
            self._draw(ending, now)
        if self._partial and now - self._partial_since_s >= PARTIAL_S:
            self._give_partial()
        self._screen.settle(now, PARTIAL_S)
        self._report_bars(now)
        return self._taken()

    def finish(self, now: float) -> list[RunEvent]:
        """The rest. Nothing may be fed afterwards."""
        self._draw_or_split(self._incomplete.lstrip("\r") + self._decode(b"", final=True), now)
        self._incomplete = ""
        if self._partial:
            self._give_partial()
        self._screen.finish()
        return self._taken()

    # ---- the screen's reader

    def line(self, text: str) -> None:
        self._lines.append(text)

    def bar_done(self, bar: Bar) -> None:
        self._flush_lines()
        self._events.append(self._row(bar))

    # ---- from text to lines

    def _read(self, text: str, now: float) -> None:
        ending = _INCOMPLETE.search(text, max(0, len(text) - _LOOK_BACK))
        end = ending.start() if ending is not None else len(text)
        self._incomplete = text[end:]
        self._draw_or_split(text[:end], now)

    def _draw_or_split(self, text: str, now: float) -> None:
        while text:
            if not self._screen.idle:
                text = text[draw(text, self._screen, now) :]
                continue
            if "\r\n" in text:
                text = re.sub("\r+\n", "\n", text)
            moving = _MOVING.search(text) if "\r" in text or "\x1b" in text or "\b" in text else None
            end = len(text) if moving is None else text.rfind("\n", 0, moving.start()) + 1
            end -= self._num_blank_lines(text[:end])
            self._split(text[:end], now)
            text = text[end:]
            if text:
                text = text[self._draw(text, now) :]

    def _num_blank_lines(self, text: str) -> int:
        """Newlines at the end of `text` that are empty lines, or the way to a bar with ``position=1`` or more."""
        rest = text.rstrip("\n")
        newlines = len(text) - len(rest)
        line_ends_here = bool(rest or self._partial or self._partial_given)
        return min(max(newlines - line_ends_here, 0), MAX_POSITION)

    def _draw(self, text: str, now: float) -> int:
        """Put the line that has begun, if any, and `text` on the screen; returns how far it got."""
        if self._screen.idle:
            self._screen.set_time(now)
            self._screen.start_line(self._partial, given=self._partial_given)
            self._partial, self._partial_given = "", False
        return draw(text, self._screen, now)

    def _split(self, text: str, now: float) -> None:
        """Lines of plain `text`; the end of it that is no whole line waits."""
        end = text.rfind("\n")
        if end >= 0:
            lines = self._partial + text[:end]
            if lines or not self._partial_given:
                self._lines.append(lines.removeprefix("\n") if self._partial_given else lines)
            self._partial, self._partial_given = "", False
            text = text[end + 1 :]
        if text:
            if not self._partial:
                self._partial_since_s = now
            self._partial += text
            while len(self._partial) > MAX_LINES_BYTES // MAX_UTF8_BYTES:
                self._lines.append(self._partial[: MAX_LINES_BYTES // MAX_UTF8_BYTES])
                self._partial = self._partial[MAX_LINES_BYTES // MAX_UTF8_BYTES :]
                self._partial_given = True

    def _give_partial(self) -> None:
        self._lines.append(self._partial)
        self._partial, self._partial_given = "", True

    # ---- from lines to events

    def _flush_lines(self) -> None:
        if not self._lines:
            return
        text, self._lines = "\n".join(self._lines), []
        time_s = self._wall_clock()
        for start, end in _pieces(text):
            self._events.append(LogLines(rank=self._rank, text=text[start:end], time_s=time_s))

    def _report_bars(self, now: float) -> None:
        due = self._screen.due(now)
        if due:
            self._flush_lines()
            self._events += [self._row(bar) for bar in due]

    def _row(self, bar: Bar) -> ProgressRow:
        return ProgressRow(
            rank=self._rank,
            bar=bar.number,
            text=bar.text,
            n=bar.n,
            total=bar.total,
            done=bar.done,
            time_s=self._wall_clock(),
        )

    def _taken(self) -> list[RunEvent]:
        self._flush_lines()
        events, self._events = self._events, []
        return events


def _pieces(text: str) -> list[tuple[int, int]]:
    """Where to cut `text` so that each piece is at most `MAX_LINES_BYTES`, at newlines where there are any."""
    limit = MAX_LINES_BYTES if text.isascii() else MAX_LINES_BYTES // MAX_UTF8_BYTES
    pieces = []
    start = 0
    while len(text) - start > limit:
        newline = text.rfind("\n", start, start + limit + 1)
        end = newline if newline >= 0 else start + limit
        pieces.append((start, end))
        start = end + 1 if newline >= 0 else end
    return [*pieces, (start, len(text))]
