"""``%%accelerate --keep``: cells on ranks that stay, with their variables, until ``%accel_stop``."""

from __future__ import annotations

import argparse

from msgspec.structs import replace

from ..cli.options import launch_arguments
from ..errors import InvalidArgument
from ..launch.kept_run import KeptCell, KeptRun, start_kept
from .asked import asked_by_options, naming_the_file
from .cell_code import Shell, cell_function
from .display import choose_view
from .known_runs import KNOWN

NOT_WITH_KEEP = ("background", "dry_run", "max_restarts", "on_failure")
"""Options of the magic that mean something for one launch only."""


class KeptRanks:
    """The ranks that this kernel keeps: none, or one set. The cells' own thread."""

    def __init__(self) -> None:
        self._run: KeptRun | None = None
        self._given: dict[str, object] = {}
        """The options that the ranks were started with."""

    def run(self, shell: Shell, options: argparse.Namespace, line: str, text: str) -> None:
        """Run a cell on the kept ranks, which are started for the first one.

        Raises as `accelerate`, and InvalidArgument for options that kept ranks cannot obey. An error of the cell leaves
        the ranks and their variables as they are.
        """
        _refuse(options)
        run = self._going_on()
        self._check_given(run, options)
        owned = frozenset[str]() if run is None else run.owned
        cell = cell_function(shell, line, text, options.out, on_ranks=owned, push=options.push)
        if run is None:
            run = self._started(options)
        num_ranks = run.plan.num_ranks
        missing = [rank for rank in options.ranks or () if rank >= num_ranks]
        if missing:
            raise InvalidArgument(f"--ranks: there is no rank {missing[0]}; the kept ranks are 0 to {num_ranks - 1}.")
        view = choose_view()
        view.serve(run, raises=True)
        kept = KeptCell(
            label=cell.label,
            function=cell.function,
            ranks=options.ranks or tuple(range(num_ranks)),
            sends_value=bool(options.out),
            pushed=options.push,
        )
        values = run.run_cell(kept, view)
        if isinstance(values, dict):
            shell.user_ns.update(values)

    def _going_on(self) -> KeptRun | None:
        """The ranks, unless they have ended."""
        if self._run is not None and self._run.wait(0):
            if self._run.status != "finished":
                print("accel_nb: the kept ranks had ended, and with them their variables; these are new ones")  # noqa: T201  the cell's output
            self._run = None
        return self._run

    def _started(self, options: argparse.Namespace) -> KeptRun:
        request = replace(asked_by_options(options), block=False)
        with naming_the_file(request):
            self._run = start_kept(request)
        self._given = _given(options)
        KNOWN.add(self._run)
        return self._run

    def _check_given(self, run: KeptRun | None, options: argparse.Namespace) -> None:
        """Ranks that are there obey no other options."""
        given = _given(options)
        other = [name for name, value in given.items() if self._given.get(name) != value]
        if run is not None and other:
            option = f"--{other[0].replace('_', '-')}"
            started = self._given.get(other[0])
            with_ = f"with {started!r}" if started is not None else "without that option"
            raise InvalidArgument(
                f"{option} {given[other[0]]!r}: the kept ranks were started {with_}. Leave it out, or end them with "
                "%accel_stop; the next cell then starts new ones, without the variables of these."
            )


def _given(options: argparse.Namespace) -> dict[str, object]:
    """What decides how ranks are started."""
    files = {name: value for name in ("config_file", "no_config") if (value := getattr(options, name))}
    return {**launch_arguments(options), **files}


def refuse_without_keep(options: argparse.Namespace) -> None:
    """Raises InvalidArgument for what only kept ranks can do."""
    for name in ("ranks", "push"):
        if getattr(options, name):
            raise InvalidArgument(f"%%accelerate: --{name} is for ranks that are kept: give --keep, too.")


def _refuse(options: argparse.Namespace) -> None:
    for name in NOT_WITH_KEEP:
        if getattr(options, name, False):
            raise InvalidArgument(f"%%accelerate: --{name.replace('_', '-')} is not possible with --keep.")


KEPT = KeptRanks()
"""One set per kernel."""
