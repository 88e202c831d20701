"""Where settings are kept between launches, and what they say.

Our own file, in the format of Accelerate, is ``accel_nb/config.yaml`` in the user's configuration folder
(``XDG_CONFIG_HOME`` of the XDG base directory specification, by default ``~/.config``), or the one that
``ACCEL_NB_CONFIG`` names. Without it, the file that ``accelerate config`` has written counts. ``ACCEL_NB_CONFIG`` of
``/dev/null`` means that none is to be read.
"""

from __future__ import annotations

import os
from pathlib import Path

from ...protocol import environment
from ..planning.hardware import saved_config
from .settings import Found


def read_settings(path: Path | None) -> Found:
    """What the file at `path` says of a launch. Raises ConfigError for what is no such file, and for what cannot be
    carried out.
    """
    if path is None:
        return Found()
    # PyYAML takes a while to import, and most launches have no such file.
    from .cluster_config import load_config_from_file
    from .launch_settings import settings_of

    return Found(settings_of(load_config_from_file(path), path), path)


def own_file() -> Path:
    """Where ``accel-nb config`` writes."""
    return environment.config_file()


def existing_file() -> Path | None:
    """The file that counts when none is named: ours, else Accelerate's, else none. The one that ``ACCEL_NB_CONFIG``
    names counts also when it is missing, which is then told.
    """
    own = own_file()
    if own == Path(os.devnull):
        return None
    if own.is_file() or environment.value(environment.CONFIG):
        return own
    saved = saved_config(environment.current())
    return None if saved is None else Path(saved.path)
