"""Which drawing belongs to which progress bar of a rank.

tqdm moves bars between rows (a nested bar that is left on the screen is drawn once more in the row of the outermost
one, ``tqdm.std.tqdm.close``) and changes their descriptions, so neither the row nor the text alone names a bar.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from .meter import Meter, columns

UPDATE_INTERVAL_S = 0.1
"""One bar is reported at most this often, its end excepted."""
ERASED_S = 0.3
"""A bar whose row was cleared and that is not drawn again for this long is gone. (tqdm clears and redraws its bars
around ``tqdm.write``.)"""


@dataclass(slots=True, eq=False)
class Bar:
    """A bar that is on the screen, or was until just now."""

    number: int
    """Stable as long as the bar lives; that of an erased bar (``leave=False``) is given to the next new one."""
    text: str = ""
    description: str = ""
    n: int | None = None
    total: int | None = None
    elapsed_s: int = 0
    done: bool = False
    erased_s: float | None = None
    """When its row was cleared; None while it can be seen."""
    changed: bool = False
    """Since it was last reported."""
    reported_s: float | None = None
    """None: never."""

    @property
    def width(self) -> int:
        return columns(self.text)

    def continues_as(self, meter: Meter) -> bool:
        """Whether `meter` can be a later drawing of this bar, descriptions apart."""
        return self.total == meter.total and (self.n or 0) <= meter.n and self.elapsed_s <= meter.elapsed_s


class Bars:
    """The bars of one rank that are not done."""

    def __init__(self) -> None:
        self._alive: list[Bar] = []
        self._num_started = 0
        self._free: list[int] = []

    @property
    def alive(self) -> tuple[Bar, ...]:
        return tuple(self._alive)

    def draw(self, meter: Meter, here: Bar | None, near: Sequence[Bar], above: Sequence[Bar]) -> Bar:
        """The bar that `meter` shows, now up to date.

        `here` was in the row so far (None: no bar was), `near` below it or in no row, `above` in rows above it.
        """
        bar = _owner(meter, here, near, above) or self.start()
        bar.text, bar.description, bar.elapsed_s = meter.text, meter.description, meter.elapsed_s
        bar.n, bar.total = meter.n, meter.total
        bar.changed, bar.erased_s = True, None
        return bar

    def start(self) -> Bar:
        number = heapq.heappop(self._free) if self._free else self._num_started
        self._num_started = max(self._num_started, number + 1)
        bar = Bar(number)
        self._alive.append(bar)
        return bar

    def show(self, bar: Bar, text: str) -> None:
        """`bar` is a row that changes in place but was not drawn by tqdm; it reads `text` now."""
        if text != bar.text:
            bar.text, bar.changed = text, True

    def erase(self, bar: Bar, now: float) -> None:
        if bar.erased_s is None:
            bar.erased_s = now

    def finish(self, bar: Bar) -> None:
        """It will not be drawn again. A bar that was erased reads nothing in the end."""
        self._alive.remove(bar)
        bar.done = bar.changed = True
        if bar.erased_s is not None:
            bar.text = ""
            heapq.heappush(self._free, bar.number)

    def gone(self, now: float) -> list[Bar]:
        """Bars erased for longer than `ERASED_S`."""
        return [bar for bar in self._alive if bar.erased_s is not None and now - bar.erased_s >= ERASED_S]

    def due(self, now: float) -> list[Bar]:
        """Bars to report now; they count as reported."""
        due = [
            bar
            for bar in self._alive
            if bar.changed
            and bar.erased_s is None
            and (bar.reported_s is None or now - bar.reported_s >= UPDATE_INTERVAL_S)
        ]
        for bar in due:
            bar.reported_s, bar.changed = now, False
        return due


def _owner(meter: Meter, here: Bar | None, near: Sequence[Bar], above: Sequence[Bar]) -> Bar | None:
    """The likeliest bar; None when it is a new one."""
    own = [] if here is None else [here]
    for bar in (*own, *near, *above):
        if bar.description == meter.description and bar.continues_as(meter):
            return bar
    if here is None:
        return None
    if here.continues_as(meter):
        return here  # its description was changed
    if here.erased_s is None and meter.total is not None:
        for bar in near:
            if bar.continues_as(meter):
                return bar  # described anew, and drawn for the last time in the row of an outer bar
    if here.erased_s is not None or here.description == meter.description:
        return here  # the next bar took over the row, or this one was reset or got another total
    return None
