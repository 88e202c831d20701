"""The magics: ``%%accelerate`` runs a cell on every rank; ``%accel_plan``, ``%accel_stop``, ``%accel_attach`` and
``%accel_doctor`` plan, end, show again and examine.

    %%accelerate --num-processes 2 ──> options ──> LaunchRequest ─┐
    text of the cell ──> cell_code ──> function ──────────────────┴─> launch, as notebook_launcher's
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, cast

from ..cli.options import OptionParser, suggestions
from ..errors import AccelNbError, InvalidArgument
from . import run_magics
from .accelerate_magic import ACCELERATE, accelerate
from .cell_code import Shell


class _Hooked(Shell, Protocol):
    """What we need of IPython's InteractiveShell to register magics, alike in 8.x and 9.x."""

    magics_manager: _MagicsManager

    def register_magic_function(self, func: Callable[..., object], magic_kind: str, magic_name: str) -> None: ...

    def set_hook(self, name: str, hook: Callable[..., object], str_key: str) -> None: ...


class _MagicsManager(Protocol):
    magics: Mapping[str, dict[str, object]]


class _Event(Protocol):
    """What IPython gives a completer."""

    line: str
    symbol: str


class _Magic(NamedTuple):
    kind: str
    parser: OptionParser
    run: Callable[..., object]
    """(shell, options, line[, cell]) -> what the cell is worth."""

    @property
    def escape(self) -> str:
        return "%%" if self.kind == "cell" else "%"


MAGICS = {
    "accelerate": _Magic("cell", ACCELERATE, accelerate),
    "accel_plan": _Magic("line", run_magics.PLAN, run_magics.plan),
    "accel_stop": _Magic("line", run_magics.STOP, run_magics.stop),
    "accel_attach": _Magic("line", run_magics.ATTACH, run_magics.attach_magic),
    "accel_doctor": _Magic("line", run_magics.DOCTOR, run_magics.examine),
}


def register(shell: object) -> None:
    """Make the magics known to IPython's `shell`, with completion of their options. Again: the same."""
    hooked = cast("_Hooked", shell)
    for name, magic in MAGICS.items():
        hooked.register_magic_function(_as_ipython_calls_it(hooked, name, magic), magic.kind, name)
        hooked.set_hook("complete_command", functools.partial(_complete, magic.parser), str_key=magic.escape + name)


def unregister(shell: object) -> None:
    magics = cast("_Hooked", shell).magics_manager.magics
    for name, magic in MAGICS.items():
        magics[magic.kind].pop(name, None)


def _as_ipython_calls_it(shell: Shell, name: str, magic: _Magic) -> Callable[..., object]:
    def call(line: str, cell: str | None = None) -> object:
        return run_magic(shell, magic, line, cell)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{magic.parser.description}\n\n::\n\n{_indented(magic.parser.format_help())}"
    return call


def run_magic(shell: Shell, magic: _Magic, line: str, cell: str | None = None) -> object:
    """What the magic gives. Raises what it raises, our own errors shown without the frames of the magic."""
    shown: AccelNbError | None = None
    try:
        options = magic.parser.parse_args(_words(magic, line))
        if options.help:
            print(magic.parser.format_help())  # noqa: T201  the cell's output
            return None
        return magic.run(shell, options, line) if cell is None else magic.run(shell, options, line, cell)
    except AccelNbError as error:
        shown = error.with_traceback(None)
    if not hasattr(shown, "_render_traceback_"):
        lines = f"{type(shown).__name__}: {shown}".splitlines()
        shown._render_traceback_ = lambda: lines  # type: ignore[attr-defined]  # a protocol of IPython's
    raise shown


def _words(magic: _Magic, line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise InvalidArgument(f"{magic.parser.prog}: {line!r} cannot be taken apart: {error}.") from None


def _complete(parser: OptionParser, _shell: object, event: _Event) -> list[str]:
    return suggestions(parser, event.line.removesuffix(event.symbol), event.symbol)


def _indented(text: str) -> str:
    return "".join(f"  {line}" for line in text.splitlines(keepends=True))
