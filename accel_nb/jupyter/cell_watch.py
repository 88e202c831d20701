"""Tell `accel_nb.launch.cuda_origin` which cell runs, from the first use of accel_nb in a kernel on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol, cast

from ..launch.cuda_origin import WATCH


class _Events(Protocol):
    def register(self, event: str, function: Callable[..., object]) -> None: ...
    def unregister(self, event: str, function: Callable[..., object]) -> None: ...


class _Shell(Protocol):
    """What we need of IPython's InteractiveShell, alike in 8.x and 9.x."""

    events: _Events


_watched: list[_Shell] = []
"""The shell whose events are ours: at most one per process."""


def watch_cells(shell: object = None) -> None:
    """Begin to look at what cells do with CUDA. `shell` is IPython's; None: the one that runs here, if any.

    Calling it again does nothing. Outside IPython only what torch tells by itself is noted.
    """
    found = _running_shell() if shell is None else cast("_Shell", shell)
    if found is None:
        WATCH.start()
        return
    if _watched:
        return
    _watched.append(found)
    found.events.register("pre_run_cell", _began)
    found.events.register("post_run_cell", _ended)
    WATCH.start()
    WATCH.begin()


def unwatch_cells() -> None:
    for shell in _watched:
        shell.events.unregister("pre_run_cell", _began)
        shell.events.unregister("post_run_cell", _ended)
    _watched.clear()
    WATCH.end()


def _began(*_: object) -> None:
    WATCH.begin()


def _ended(result: object = None) -> None:
    number = getattr(result, "execution_count", None)  # None: a cell that is not counted
    WATCH.end("" if number is None else f"In[{number}]")


def _running_shell() -> _Shell | None:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
