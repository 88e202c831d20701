"""Where settings are kept between launches, and what they say.

Our own file, in the format of Accelerate, is ``accel_nb/config.yaml`` in the user's configuration folder
(``XDG_CONFIG_HOME`` of the XDG base directory specification, by default ``~/.config``), or the one that
``ACCEL_NB_CONFIG`` names. Without it, the file that ``accelerate config`` has written counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..launch.planning.hardware import saved_config
from ..protocol import environment
from .cluster_config import load_config_from_file
from .launch_settings import Settings, settings_of


def add_file_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--config-file", "--config_file", metavar="FILE", help="settings; the command line overrules them"
    )
    group.add_argument("--no-config", "--no_config", action="store_true", help="read no settings")


def read_settings(options: argparse.Namespace) -> tuple[Settings, Path | None]:
    """What the file says that the options choose, and its path; None when there is none, or none is wanted.

    Raises ConfigError.
    """
    path = chosen_file(options)
    if path is None:
        return Settings({}, {}), None
    return settings_of(load_config_from_file(path), path), path


def chosen_file(options: argparse.Namespace) -> Path | None:
    """The one that `add_file_options`' options choose; None when there is none, or none is wanted."""
    if options.no_config:
        return None
    return Path(options.config_file) if options.config_file else existing_file()


def own_file() -> Path:
    """Where ``accel-nb config`` writes."""
    return environment.config_file()


def existing_file() -> Path | None:
    """The file that counts when none is named: ours, else Accelerate's, else none. The one that ``ACCEL_NB_CONFIG``
    names counts also when it is missing, which is then told.
    """
    if own_file().is_file() or environment.current().get(environment.CONFIG):
        return own_file()
    saved = saved_config(environment.current())
    return None if saved is None else Path(saved.path)
