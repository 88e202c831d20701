"""The launch that a call, a magic's options or the panel asks for, beside the settings that a file keeps.

The file is that of ``accel-nb launch``. It is looked for at each launch: what has been written into it counts at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from ..cli.file_options import chosen_file
from ..cli.options import launch_arguments
from ..errors import ConfigError
from ..launch.settings.settings import Found, request_from
from ..launch.settings.settings import naming_the_file as naming_the_file  # noqa: PLC0414  explicitly exported
from ..launch.settings.settings_file import existing_file, read_settings
from ..protocol.plan import LaunchRequest

_WITHOUT = (
    "To launch without that file: --no-config on the line of the magic, or os.environ['ACCEL_NB_CONFIG'] = '/dev/null' "
    "before a call."
)


class LeftOut:
    """The default of a parameter, told apart from the same value that was given: that one overrules the file."""


class LeftOutText(LeftOut, str):
    __slots__ = ()


class LeftOutNumber(LeftOut, int):
    __slots__ = ()


def asked_by_call(given: Mapping[str, object]) -> LaunchRequest:
    """`given`: fields of `LaunchRequest` that a file may say, too; None and `LeftOut` say nothing.

    Raises ConfigError.
    """
    said = {name: value for name, value in given.items() if value is not None and not isinstance(value, LeftOut)}
    return request_from(said, kept(existing_file()))


def asked_by_options(options: argparse.Namespace) -> LaunchRequest:
    """By those of `add_launch_options` and `add_file_options`. Raises ConfigError."""
    return request_from(launch_arguments(options), kept(chosen_file(options)))


def kept(path: Path | None) -> Found:
    """What the file at `path` says. Raises ConfigError, with the way to launch without it."""
    try:
        return read_settings(path)
    except ConfigError as error:
        error.args = (f"{error} {_WITHOUT}",)
        raise
