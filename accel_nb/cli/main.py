"""The command ``accel-nb``: reads its line, calls what does the work, turns the outcome into an exit status.

Each command is one module with ``add_arguments(parser)`` and ``run(options) -> int``.
"""

from __future__ import annotations

import argparse
import copy
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from ..errors import AccelNbError
from ..launch.settings.cluster_config import nearest
from ..protocol.version import __version__
from . import completion, config, doctor, env, launch, replay, self_test, to_fsdp2

COMMANDS: dict[str, ModuleType] = {
    "launch": launch,
    "config": config,
    "env": env,
    "test": self_test,
    "doctor": doctor,
    "replay": replay,
    "to-fsdp2": to_fsdp2,
    "completion": completion,
}
"""Name -> module."""
WRONG_USE = 2
"""As argparse has it."""


class CommandParser(argparse.ArgumentParser):
    """argparse that says in one line what is wrong, and shows of each option one spelling."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**{"formatter_class": OneSpelling, "allow_abbrev": False, **settings})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USE, f"{self.prog}: {message}. {self.prog} --help tells all options.\n")

    def refuse_unknown(self, words: Sequence[str]) -> None:
        """End with the nearest option when `words`, which nothing has taken, begin with an option of none."""
        if not words:
            return
        known = [spelling for action in self._actions for spelling in action.option_strings]
        near = nearest(words[0].partition("=")[0], [spelling for spelling in known if "_" not in spelling])
        self.error(f"{words[0]!r} is no option{f'; nearest: {near}' if near else ''}")


class OneSpelling(argparse.HelpFormatter):
    """Of ``--num-processes`` and ``--num_processes`` the one that was added first."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        seen = dict[str, str]()
        for spelling in action.option_strings:
            seen.setdefault(spelling.replace("_", "-"), spelling)
        shown.option_strings = list(seen.values())
        return super()._format_action_invocation(shown)


def parsers() -> tuple[CommandParser, dict[str, CommandParser]]:
    """That of the command, and those of its commands by name."""
    parser = CommandParser(prog="accel-nb", description="Train on every device you have, from a notebook or a shell.")
    parser.add_argument("--version", action="version", version=f"accel_nb {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    found = {}
    for name, module in COMMANDS.items():
        help_line = (module.__doc__ or "").splitlines()[0].partition(": ")[2]
        found[name] = commands.add_parser(name, help=help_line, description=help_line)
        module.add_arguments(found[name])
    return parser, found


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 all is well, 1 something is wrong, 2 the command line is; that of ``launch`` is the script's.

    `arguments` None: this process's own.
    """
    parser, commands = parsers()
    options, unknown = parser.parse_known_args(arguments)
    commands[options.command].refuse_unknown(unknown)
    try:
        status: int = COMMANDS[options.command].run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Who read our output has stopped, as head does. The interpreter flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except AccelNbError as error:
        sys.stdout.flush()
        sys.stderr.write(f"accel-nb {options.command}: {error}\n")
        return WRONG_USE
    except KeyboardInterrupt:
        return 130  # as shells have it for SIGINT
    return status
