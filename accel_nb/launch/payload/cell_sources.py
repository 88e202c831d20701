"""Readable names for code typed into cells, and its lines wherever a traceback may need them.

kernel: file name of a code object ──> NamedSources.name ──> ``<Cell In[7]>`` and, once per file, its text
rank:   texts ──> register(...) ──> linecache, which tracebacks and `inspect.getsource` read
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping
from pathlib import Path


class NamedSources:
    """Names the files of code objects, and collects the text of those that are not files on disk."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        """Readable name -> source text, of every cell named so far."""
        self._names: dict[str, str] = {}

    def name(self, filename: str) -> str:
        """The name a rank should show for `filename`: itself, unless a notebook knows it as a cell."""
        known = self._names.get(filename)
        if known is None:
            known = self._names[filename] = _cell_name(filename) or filename
            self._collect(filename, known)
        return known

    def _collect(self, filename: str, name: str) -> None:
        if name == filename and Path(filename).is_file():
            return  # the rank, on the same machine, reads it itself
        lines = linecache.getlines(filename)
        if lines:
            self.texts[name] = "".join(lines)


def register(texts: Mapping[str, str]) -> None:
    """Let this process's tracebacks and `inspect.getsource` show `texts`. For a rank, before the function runs.

    The entries have no modification time, so that `linecache.checkcache` keeps them.
    """
    for name, text in texts.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _cell_name(filename: str) -> str | None:
    """``<Cell In[7]>`` when a running IPython shell knows `filename` as one of its cells.

    The one place outside `accel_nb.jupyter` that looks at IPython: it is asked only when the process has imported it.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return None
    label = shell.compile.format_code_name(filename)
    return None if label is None else f"<{label[0]} {label[1]}>"
