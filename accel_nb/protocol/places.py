"""Which line of the user's a rank is at: looked up on the calling thread's own stack, in well under a microsecond."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import FrameType

Place = tuple[str, int]
"""A file as its code objects name it, and a line; ``("", 0)``: not known."""

_OWN_DIR = str(Path(__file__).parents[1])
_SITES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
_LIBRARIES = (*_SITES, *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_MACHINERY = (_OWN_DIR, *(f"{site}/torch/" for site in _SITES), "<frozen ", "<string>")
"""Never anybody's line: ours, torch's, and what starts programs."""

_USERS, _LIBRARYS, _NOBODYS = 2, 1, 0
_kinds: dict[str, int] = {}
"""By the file of a code object. (Code objects themselves are equal to others of the same text in other files.)"""
_MOST_KINDS = 10_000
"""Names of files that do not exist, one per piece of generated code, must not pile up."""


def users_place() -> Place:
    """The innermost line of code that belongs to no library; where there is none, of a library other than torch."""
    kinds = _kinds
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  inspect.currentframe is this
    fallback: Place = ("", 0)
    while frame is not None:
        file = frame.f_code.co_filename
        kind = kinds.get(file)
        if kind is None:
            kind = _kind(file)
        if kind == _USERS:
            return file, frame.f_lineno
        if kind == _LIBRARYS and not fallback[1]:
            fallback = file, frame.f_lineno
        frame = frame.f_back
    return fallback


def is_users(file: str) -> bool:
    """Whether code of `file`, as a code object names it, belongs to no library, nor to Python or us."""
    return not file.startswith((*_MACHINERY, *_LIBRARIES))


def place_text(file: str, line: int) -> str:
    """``Cell In[3], line 7`` or ``train.py, line 7``; empty when it is not known."""
    if not file:
        return ""
    name = file.strip("<>") if file.startswith("<") else Path(file).name
    return f"{name}, line {line}"


def _kind(file: str) -> int:
    kind = _NOBODYS if file.startswith(_MACHINERY) else _LIBRARYS if file.startswith(_LIBRARIES) else _USERS
    if len(_kinds) >= _MOST_KINDS:
        _kinds.clear()
    _kinds[file] = kind
    return kind
