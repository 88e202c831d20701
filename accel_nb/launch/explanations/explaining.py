"""Find what is known of a rank's end: of the exception it raised, or of the last lines of a process that died.

The first entry of `KNOWN` whose pattern is found explains a message, so that special cases come before general ones.
Patterns are those of torch 2.6 to 2.13 and of the libraries that it calls, as their users report them;
``tests/launch/test_explanations.py`` holds a recorded message for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...errors import AccelNbError
from .devices import CUDA
from .known import MORE_SHARED_MEMORY, Known
from .starting import LAUNCHERS, WARNINGS
from .training import DATA, MODELS
from .transports import GLOO_AND_STORE, NCCL

MAX_CHAIN = 10
"""Exceptions looked at, from the one that was raised to what it was raised from."""

MAX_CHARS = 1 << 15
"""So much of a longer message is looked at, at its beginning and end: dozens of patterns take long on megabytes."""

KNOWN: tuple[Known, ...] = (*NCCL, *GLOO_AND_STORE, *MODELS, *DATA, *CUDA, *LAUNCHERS, *WARNINGS)
"""All that are known."""

_A_WARNING = re.compile(r"Warning: |\bwarnings\.warn\(|^\S*\[W\d")
"""Of Python, and of torch's C++: whoever printed it went on."""

BUS_ERROR = Known(
    "bus error",
    "",
    "A bus error means that mapped memory has nothing behind it: most often /dev/shm is full, or a file shrank while "
    "it was read.",
    f"{MORE_SHARED_MEMORY}, use fewer DataLoader workers, and do not overwrite data files while ranks read them.",
)
"""Known by its signal, not by a text."""


def explain_text(text: str, table: Sequence[Known] = KNOWN) -> Known | None:
    """What `table` knows of a message; None when nothing is."""
    if len(text) > 2 * MAX_CHARS:
        text = f"{text[:MAX_CHARS]}\n{text[-MAX_CHARS:]}"
    # Looked for when something failed, not before: the patterns are compiled then.
    for known in table:
        if match := re.search(known.pattern, text, re.IGNORECASE | re.MULTILINE):
            return known.found(match)
    return None


def explain_error(error: BaseException, own_table: Sequence[Known] = ()) -> Known | None:
    """What is known of `error`, or of what it was raised from, which is then said. `own_table` is looked at first, and
    for our own errors, too, which say themselves what to do in all other cases.
    """
    for link in _chain(error):
        text = f"{type(link).__name__}: {_text_of(link)}"
        known = explain_text(text, own_table) or (None if isinstance(link, AccelNbError) else explain_text(text))
        if known is not None:
            return known if link is error else known.of_earlier(type(link).__name__)
        if isinstance(link, AccelNbError):
            return None
    return None


def explain_death(signal_name: str | None, exit_code: int | None, last_lines: Sequence[str]) -> Known | None:
    """What is known of the end of a process that reported nothing: by its signal, or by its own last lines."""
    if signal_name == "SIGBUS":
        return BUS_ERROR
    # Native code that gives up says why before it aborts. A signal from outside has nothing to do with earlier lines.
    speaks = signal_name == "SIGABRT" or (signal_name is None and exit_code not in (None, 0))
    if not speaks:
        return None
    table = [known for known in KNOWN if known not in WARNINGS]
    return explain_text("\n".join(line for line in last_lines if not _A_WARNING.search(line)), table)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and what Python would show above it."""
    link: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  a user's __str__ may raise anything, and then says nothing to explain
        return ""
