"""A script, a module or a notebook in a rank: it runs as ``python`` would run it, in ``__main__``.

shell: a path or a name -> `run_file`, `run_module` or `run_cells` with its arguments -> payload
rank:  the call -> the program's own exit status
"""

from __future__ import annotations

import builtins
import linecache
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NamedTuple


class CellText(NamedTuple):
    """A code cell of a notebook."""

    name: str
    """For tracebacks: ``train.ipynb cell 3``."""
    source: str


def run_file(path: str, arguments: Sequence[str]) -> None:
    """The script `path`, as ``python path arguments...``. Raises what it raises, SystemExit included.

    Its module stays ``__main__`` after the last line: threads, pickles and handlers at the exit still find it.
    """
    sys.argv[:] = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    namespace = _main_namespace()
    file = str(Path(path).absolute())
    namespace.update(__file__=file, __cached__=None, __loader__=SourceFileLoader("__main__", file))
    code = compile(Path(path).read_bytes(), file, "exec", dont_inherit=True)
    exec(code, namespace)  # noqa: S102  this is the user's script


def run_module(name: str, arguments: Sequence[str]) -> None:
    """The module `name`, as ``python -m name arguments...``."""
    sys.path.insert(0, str(Path.cwd()))
    sys.argv[:] = [name, *arguments]  # runpy puts the module's file there
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_cells(path: str, cells: Sequence[CellText], arguments: Sequence[str]) -> None:
    """The code cells of the notebook `path` from top to bottom, in one namespace."""
    sys.argv[:] = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    namespace = _main_namespace()
    for cell in cells:
        # Without a modification time linecache keeps what it was given.
        linecache.cache[cell.name] = (len(cell.source), None, cell.source.splitlines(keepends=True), cell.name)
        exec(compile(cell.source, cell.name, "exec", dont_inherit=True), namespace)  # noqa: S102


def _main_namespace() -> dict[str, object]:
    namespace = vars(sys.modules["__main__"])
    namespace.update(__builtins__=builtins, __spec__=None, __package__=None, __doc__=None)
    return namespace
