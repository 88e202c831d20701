"""Start a fresh interpreter that runs one function of ours.

It has the kernel's packages but not its working directory: a `random.py` beside the notebook must not become the
server's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

_BOOT = (
    "import sys, json; path, module, function, arguments = json.loads(sys.argv[1]); sys.argv[1:] = [];"
    "sys.path += [entry for entry in path if entry not in sys.path];"
    "import importlib; getattr(importlib.import_module(module), function)(*arguments)"
)


def start_interpreter(
    module: str,
    function: str,
    arguments: Sequence[object],
    *,
    variables: Mapping[str, str],
    pass_fds: Sequence[int],
    output: int,
) -> subprocess.Popen[bytes]:
    """``module.function(*arguments)`` in a new interpreter of this Python, in its own session; `output` becomes its
    stdout and stderr. The caller owns the process. Raises OSError when it cannot be started.
    """
    return subprocess.Popen(
        interpreter_command(module, function, arguments),
        env=dict(variables),
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def interpreter_command(module: str, function: str, arguments: Sequence[object]) -> list[str]:
    """The command of an interpreter like this one that calls ``module.function(*arguments)``."""
    # Not msgspec's JSON: a folder's name need not be UTF-8, and the standard library's escapes what is not.
    spec = json.dumps([_package_path(), module, function, arguments])
    return [sys.executable, "-P", "-c", _BOOT, spec]


def _package_path() -> list[str]:
    """Where this package lives, and the site directories that the kernel has beyond the interpreter's own."""
    sites = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    entries: list[object] = [*sys.path]  # a notebook may have added what the import system ignores
    names = [entry for entry in entries if isinstance(entry, str)]
    more = [entry for entry in names if Path(entry).name in ("site-packages", "dist-packages")]
    return [str(Path(__file__).parents[2]), *sorted(sites), *more]
