"""``%%accelerate``: run a cell on every rank."""

from __future__ import annotations

import argparse
import keyword
import sys

from msgspec.structs import replace

from ..cli.file_options import add_file_options
from ..cli.options import OptionParser, add_launch_options
from ..errors import InvalidArgument, ResultError
from ..launch.run import Run, draw_in_background
from .asked import asked_by_options
from .cell_code import Shell, cell_function
from .cell_output import current_cell
from .cell_watch import watch_cells
from .kept_cells import KEPT, refuse_without_keep
from .launcher import launch, waited_for


def _parser() -> OptionParser:
    parser = OptionParser(
        "%%accelerate",
        "Run this cell on every rank. What it uses of the notebook travels along, by value; what its last line is "
        "worth on rank 0 is shown.",
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this, and run nothing")
    parser.add_argument(
        "--out", type=_names, default=(), metavar="NAMES",
        help="variables of rank 0 to bring back into the notebook: model,losses",
    )  # fmt: skip
    parser.add_argument(
        "--background", action="store_true",
        help="do not wait: the cell gives a Run, and its output goes on in the cell",
    )  # fmt: skip
    parser.add_argument(
        "--keep", action="store_true",
        help="run it on ranks that stay, with their variables, until %%accel_stop; the first such cell starts them",
    )  # fmt: skip
    parser.add_argument(
        "--ranks", type=_ranks, default=(), metavar="LIST",
        help="with --keep: only on these ranks, as in 0,2",
    )  # fmt: skip
    parser.add_argument(
        "--push", type=_names, default=(), metavar="NAMES",
        help="with --keep: variables of the notebook that replace those which cells have set on the ranks",
    )  # fmt: skip
    # The ranks' values are the variables of --out.
    add_launch_options(parser, leave_out=("returns",))
    add_file_options(parser)
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise argparse.ArgumentTypeError(f"{name!r} is no name of a variable")
    return names


def _ranks(text: str) -> tuple[int, ...]:
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entry.isdecimal() for entry in entries):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of ranks; write them as in 0,2")
    return tuple(sorted({int(entry) for entry in entries}))


ACCELERATE = _parser()


def accelerate(shell: Shell, options: argparse.Namespace, line: str, cell: str) -> object:
    """Launch `cell`. Gives a `Run` with ``--background``, a `DryRun` with ``--dry-run``, else nothing.

    Raises as `notebook_launcher`, and `CellRefused` or `CellSyntaxError` for what is no cell for ranks.
    """
    watch_cells()
    if options.keep:
        KEPT.run(shell, options, line, cell)
        return None
    refuse_without_keep(options)
    made = cell_function(shell, line, cell, options.out)
    asked = asked_by_options(options)
    request = replace(asked, function_name=made.label, returns="main", block=not options.background)
    if options.out and request.dry_run:
        raise InvalidArgument("%%accelerate: --out is not possible with --dry-run, whose ranks end after one step.")
    run = launch(request, made.function)
    if options.background:
        _in_background(shell, run, options.out)
        return run
    result = waited_for(run)
    if request.dry_run:
        return result
    _bring_back(shell, run, options.out)
    return result if result.failures else None


def _bring_back(shell: Shell, run: Run, names: tuple[str, ...]) -> None:
    """Nothing of a run that failed (``--on-failure return``)."""
    if names and run.status == "finished":
        values = run.result().main
        assert isinstance(values, dict)
        shell.user_ns.update(values)


def _in_background(shell: Shell, run: Run, names: tuple[str, ...]) -> None:
    cell = current_cell()

    def draw() -> None:
        run.draw()
        try:
            _bring_back(shell, run, names)
        except ResultError as error:
            # The cell is over: nobody else would tell.
            told = f"{', '.join(names)} stayed with the ranks: {error}\n"
            sys.stderr.write(told) if cell is None else cell.write(told)

    draw_in_background(run, draw)
