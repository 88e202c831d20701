"""Reads the text that tqdm draws: description, count, total and elapsed time of one bar.

The form is that of ``tqdm.std.tqdm.format_meter`` in tqdm 4.66 to 4.70, with and without a known total:

    desc:  42%|████▏     | 42/100 [00:01<00:02, 33.1it/s, loss=0.3]
    desc: 42it [00:01, 33.1it/s]
"""

from __future__ import annotations

import re
import unicodedata

import msgspec

MAX_METER_CHARS = 2000
"""Longer texts are not looked at: a bar is one line of a terminal."""

_NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?[kMGTPEZY]?"
_CLOCK = r"\d+:\d\d(?::\d\d)?"
_REST = r"(?:[^\[\]]|\[[^\[\]]*\])*"
_KNOWN_TOTAL = re.compile(
    rf"(?P<description>.*?)\s*\d+%(?:\|[^|]*\|)? "
    rf"(?P<n>{_NUMBER})/(?P<total>{_NUMBER}) \[(?P<elapsed>{_CLOCK})<{_REST}\]"
)
_UNKNOWN_TOTAL = re.compile(rf"(?P<description>.*?)(?P<n>{_NUMBER})[^\d\[\]]*? \[(?P<elapsed>{_CLOCK}), {_REST}\]")
_THOUSANDS = " kMGTPEZY"


class Meter(msgspec.Struct, frozen=True):
    """One drawing of one bar."""

    text: str
    """As drawn, without what follows the closing bracket."""
    description: str
    n: int
    """Rounded to what was drawn when tqdm was told to scale units: ``1.23k`` is 1230."""
    total: int | None
    """None: unknown to tqdm, zero, or already passed."""
    elapsed_s: int


def read_meter(drawn: str) -> tuple[Meter, str] | None:
    """The bar that `drawn` begins with and what follows it; None when there is no whole bar."""
    if "]" not in drawn or ":" not in drawn or len(drawn) > MAX_METER_CHARS:
        return None
    found = _KNOWN_TOTAL.match(drawn) or _UNKNOWN_TOTAL.match(drawn)
    if found is None:
        return None
    part = found.groupdict()
    meter = Meter(
        text=found.group().rstrip(),
        description=part["description"].strip().removesuffix(":"),
        n=_count(part["n"]),
        total=_count(part["total"]) if "total" in part else None,
        elapsed_s=_seconds(part["elapsed"]),
    )
    return meter, drawn[found.end() :]


def columns(text: str) -> int:
    """Columns that `text` takes in a terminal, counted as tqdm does (East Asian width F and W are two)."""
    if text.isascii():
        return len(text)
    return sum(2 if is_wide(char) else 1 for char in text)


def is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in "FW"


def _count(text: str) -> int:
    power = _THOUSANDS.find(text[-1])
    return round(float(text[:-1]) * 1000.0**power) if power > 0 else round(float(text))


def _seconds(clock: str) -> int:
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return seconds
