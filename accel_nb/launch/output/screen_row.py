"""One row of a rank's screen."""

from __future__ import annotations

from dataclasses import dataclass, field

from .bars import Bar
from .meter import is_wide

MAX_COLUMNS = 1 << 14
"""A longer row is cut, so that a rank cannot make us hold more. At most 4 bytes each: within 64 KiB."""


@dataclass(slots=True, eq=False)
class Row:
    touched_s: float
    cells: list[str] = field(default_factory=list)
    """One string per column: colour codes and a character, or nothing right of a wide character."""
    bar: Bar | None = None
    """What tqdm drew here, or what reports a row that somebody else rewrites."""
    draft: str | None = ""
    """What was written since the cursor was last in the first column; None when it was elsewhere in between."""
    drawn: bool = False
    """Holds a whole bar of tqdm, and the cursor is behind it."""
    padding: int = 0
    """Spaces with which tqdm will overwrite the rest of a longer drawing."""
    tail: str = ""
    """Text written behind a whole bar: somebody printed without minding the bar."""
    returned: bool = False
    """The cursor came back, so the row may change in place."""
    live_since_s: float | None = None
    """When it was first written to after the cursor had come back; None: never."""
    given: bool = False
    """Its text was given out before its end."""
    passed_blank: bool = False
    """A newline was written into it while it was blank: an empty line, or tqdm on its way to a row below."""

    @property
    def text(self) -> str:
        text = "".join(self.cells)
        return text.rstrip(" ") if self.returned else text

    @property
    def blank(self) -> bool:
        return self.bar is None and not self.text.strip()

    @property
    def untouched(self) -> bool:
        return not (self.cells or self.bar or self.tail or self.returned or self.given)

    @property
    def meter_bar(self) -> Bar | None:
        """The bar of tqdm that is drawn here."""
        return self.bar if self.bar is not None and self.bar.n is not None else None

    def overwrite(self, x: int, cells: list[str]) -> None:
        if len(self.cells) < x:
            self.cells += " " * (x - len(self.cells))
        self.cells[x : x + len(cells)] = cells

    def put_behind_bar(self, text: str) -> None:
        spaces = min(len(text) - len(text.lstrip(" ")), self.padding)
        self.padding -= spaces
        self.tail += text[spaces:]

    def take_tail(self) -> str:
        tail, self.tail = self.tail, ""
        return tail


def cells_of(text: str) -> list[str]:
    """One string per column that `text` takes."""
    if text.isascii():
        return list(text)
    return [cell for char in text for cell in ((char, "") if is_wide(char) else (char,))]
