"""The command ``accel-nb``: reads its line, calls what does the work, turns the outcome into an exit status.

Each command is one module with ``add_arguments(parser)`` and ``run(options) -> int``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType

from ..errors import AccelNbError
from ..protocol.version import __version__
from . import doctor

COMMANDS: dict[str, ModuleType] = {"doctor": doctor}
"""Name -> module."""
WRONG_USE = 2
"""As argparse has it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 all is well, 1 something is wrong, 2 the command line is. None: this process's own arguments."""
    parser = argparse.ArgumentParser(prog="accel-nb", description="Train on every device you have, from a notebook.")
    parser.add_argument("--version", action="version", version=f"accel_nb {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        help_line = (module.__doc__ or "").splitlines()[0].partition(": ")[2]
        module.add_arguments(commands.add_parser(name, help=help_line, description=help_line))
    options = parser.parse_args(arguments)
    try:
        status: int = COMMANDS[options.command].run(options)
    except AccelNbError as error:
        print(f"accel-nb {options.command}: {error}", file=sys.stderr)  # noqa: T201  the command's output
        return WRONG_USE
    except KeyboardInterrupt:
        return 130  # as shells have it for SIGINT
    return status
