"""Which third-party modules a run imported: what the next server may hold beforehand."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from itertools import takewhile

_NOTEBOOK_STACK = frozenset({
    "IPython", "_pydev_bundle", "_pydevd_bundle", "_pydevd_frame_eval", "accel_nb", "anywidget", "asttokens", "bokeh",
    "comm", "debugpy", "decorator", "executing", "ipykernel", "ipykernel_launcher", "ipywidgets", "jedi",
    "jupyter_client", "jupyter_core", "matplotlib_inline", "nest_asyncio", "parso", "pickleshare", "pip",
    "pkg_resources", "prompt_toolkit", "pure_eval", "pydev_ipython", "pydevd", "pydevd_plugins", "pynvml", "pytest",
    "setuptools", "stack_data", "torch_xla", "tornado", "traitlets", "wcwidth", "zmq",
})  # fmt: skip
"""Never imported beforehand: the kernel's own stack, test runners, and torch_xla, whose runtime starts threads."""


def imported_after(module: str) -> list[str]:
    """Names of the modules that were loaded later than `module`, the newest when asked first. Looks at no others: each
    look costs a page of a fork's memory.
    """
    return list(takewhile(lambda name: name != module, reversed(sys.modules)))[::-1]


def third_party(names: Iterable[str]) -> tuple[str, ...]:
    """Of the loaded modules `names`, those that come from site-packages and may be imported beforehand."""
    roots = tuple({sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep})
    found = []
    for name in names:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        origin = getattr(spec, "origin", None)
        named_so = getattr(spec, "name", None) == name
        if named_so and isinstance(origin, str) and origin.startswith(roots) and may_preload(name):
            found.append(name)
    return tuple(found)


def may_preload(name: str) -> bool:
    return name.partition(".")[0] not in _NOTEBOOK_STACK
