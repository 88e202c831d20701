"""The options that choose the file with the settings between launches: those of the shell, and of the magics."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..launch.settings.settings_file import existing_file


def add_file_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--config-file", "--config_file", metavar="FILE", help="settings; what is said here overrules them"
    )
    group.add_argument("--no-config", "--no_config", action="store_true", help="read no settings")


def chosen_file(options: argparse.Namespace) -> Path | None:
    """The one that `add_file_options`' options choose; None when there is none, or none is wanted."""
    if options.no_config:
        return None
    # A notebook has no shell that knows what ~ is.
    return Path(options.config_file).expanduser() if options.config_file else existing_file()
