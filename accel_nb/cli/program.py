"""What ``accel-nb launch`` is asked to run: a script, a module or a notebook, as a function for the ranks."""

from __future__ import annotations

import io
import json
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ..errors import InvalidArgument
from ..launch.rank.script import CellText, run_cells, run_file, run_module

_LEFT_OUT = ("load_ext", "reload_ext", "autoreload", "matplotlib", "config", "precision", "pylab")
"""Line magics that concern the notebook's own display and reloading: nothing is lost without them."""
_HELP_WANTED = re.compile(r"[\w.*\[\]]+\?{1,2}")
"""``name?`` (``IPython.core.inputtransformer2``)."""


class Program(NamedTuple):
    """What runs on every rank."""

    name: str
    """For the banner, and for the run's list."""
    function: Callable[[], None]


def program(target: str, arguments: Sequence[str], *, is_module: bool) -> Program:
    """What `target` names, with its own `arguments`. Raises InvalidArgument for what is not there or cannot run."""
    if is_module:
        if not _exists(target):
            raise InvalidArgument(f"-m {target}: no module of this name is installed here, nor in {Path.cwd()}.")
        return Program(target, partial(run_module, target, list(arguments)))
    path = Path(target)
    if not path.exists():
        hint = " For a module write -m before it." if _looks_like_a_module(target) else ""
        raise InvalidArgument(f"{target}: there is no such script in {Path.cwd()}.{hint}")
    if path.is_dir():
        raise InvalidArgument(f"{target} is a folder; give a script, a notebook, or -m and a module.")
    if path.suffix == ".ipynb":
        return Program(path.name, partial(run_cells, target, notebook_cells(path), list(arguments)))
    return Program(path.name, partial(run_file, target, list(arguments)))


def notebook_cells(path: Path) -> list[CellText]:
    """The notebook's code cells, as plain Python.

    ``%load_ext`` and its like are left out, and so is the line ``%%accelerate``, whose cell runs on every rank anyway.
    Raises InvalidArgument, with cell and line, for other magics, shell lines and what is no Python.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in document["cells"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(
            f"{path} cannot be read as a notebook of format 4 ({type(error).__name__}: {error})."
        ) from error
    found = []
    for number, (kind, source) in enumerate(cells, 1):
        if kind == "code" and source.strip():
            name = f"{path.name} cell {number}"
            text = "\n".join(_python_lines(source, name))
            _check_python(text, name)
            found.append(CellText(name, text + "\n"))
    if not found:
        raise InvalidArgument(f"{path} has no code cell; there is nothing to run.")
    return found


def _python_lines(source: str, name: str) -> Iterator[str]:
    """The lines of a cell, with blank ones in the place of those left out."""
    before: list[str] = []
    for number, line in enumerate(source.split("\n"), 1):
        kept = line
        if _is_magic(line) and not _is_open("\n".join(before)):
            word = line.strip().lstrip("%").split(" ")[0]
            if not line.strip().startswith("%%accelerate") and not (line.strip()[0] == "%" and word in _LEFT_OUT):
                raise InvalidArgument(
                    f"{name}, line {number}: {line.strip()!r} is for IPython; ranks are plain Python. Take the line "
                    "out, or run the notebook in Jupyter."
                )
            kept = ""
        before.append(kept)
        yield kept


def _is_magic(line: str) -> bool:
    """If a statement begins there."""
    text = line.strip()
    return text.startswith(("%", "!", "?")) or _HELP_WANTED.fullmatch(text) is not None


def _is_open(source: str) -> bool:
    """Whether the line after `source` goes on with a statement or a string that begins in it."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO(source + "\n").readline):
            pass
    except (tokenize.TokenError, SyntaxError):
        return True
    return source.endswith("\\")


def _check_python(source: str, name: str) -> None:
    try:
        compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise InvalidArgument(f"{name}, line {error.lineno}: {error.msg}. Nothing was started.") from error


def _exists(module: str) -> bool:
    """Whether Python would find it. Its parents are not imported here: that is for the ranks."""
    added = str(Path.cwd())
    sys.path.insert(0, added)
    try:
        return all(part.isidentifier() for part in module.split(".")) and _is_found(module)
    finally:
        sys.path.remove(added)


def _is_found(module: str) -> bool:
    name, _, rest = module.partition(".")
    spec = find_spec(name)
    while spec is not None and rest:
        path = spec.submodule_search_locations
        if path is None:
            return False
        name, _, rest = rest.partition(".")
        # Its last name alone: with the whole one a namespace package asks for its parent, which is not imported.
        spec = PathFinder.find_spec(name, list(path))
    return spec is not None


def _looks_like_a_module(target: str) -> bool:
    return all(part.isidentifier() for part in target.split("."))
