"""``accelerate launch`` by the names of ``accelerate.commands.launch``."""

from __future__ import annotations

import argparse
import sys

from ..cli import launch
from ..cli.main import CommandParser


def launch_command_parser(subparsers: argparse._SubParsersAction[CommandParser] | None = None) -> CommandParser:
    """The parser of ``accel-nb launch``, which shows its options as Accelerate spells them, with underscores."""
    text = "Run a script, a module or a notebook on every rank."
    if subparsers is None:
        parser = CommandParser(prog="accel-nb launch", description=text)
    else:
        parser = subparsers.add_parser("launch", description=text)
        parser.set_defaults(func=launch_command)
    launch.add_arguments(parser)
    for action in parser._actions:  # noqa: SLF001  argparse has no other way to list them
        action.option_strings = sorted(action.option_strings, key=lambda spelling: "-" in spelling.lstrip("-"))
    return parser


def launch_command(args: argparse.Namespace) -> None:
    """Carry out what `launch_command_parser` has read.

    Raises as ``accel-nb launch``; SystemExit with its status when a rank fails.
    """
    status = launch.run(args)
    if status:
        sys.exit(status)


def main() -> None:
    """Of ``accelerate-launch``: with this process's own arguments."""
    launch_command(launch_command_parser().parse_args())
