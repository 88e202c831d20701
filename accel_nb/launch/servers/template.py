"""Which modules a server imports before it forks: learned from earlier runs, checked one by one.

A rank forked from a server that already holds `transformers` starts as fast as one forked from the kernel that imported
it. But a module that starts a thread, a child or a device on import would poison every fork: such a module is struck.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from ...devices import own_devices
from .. import processes

BASE_MODULES = ("torch", "torch._dynamo", "torch.distributed", "torch.optim", "accel_nb.training.accelerator")
"""What every server holds. `torch._dynamo` costs 70 MB and takes the first optimizer step of a rank from seconds to
30 ms (measured with torch 2.13). The training layer is named, not imported: the launcher works without it."""

FORK_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})
"""Threads that a server may have: pyarrow's allocator restarts its own after a fork (jemalloc's prefork hooks)."""


def import_checked(names: Sequence[str]) -> dict[str, str]:
    """Import each of `names` in this process; gives the first that must not be held by a server, and why.

    A module that cannot be imported is left to the rank, which will say so itself. One that leaves a thread, a child or
    a live device behind cannot be undone: the caller must give up this process.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001  import code may raise anything, SystemExit included
            print(f"{name} left out: {type(error).__name__}: {error}", flush=True)  # noqa: T201  the server's log
            continue
        reason = _poison()
        if reason:
            return {name: reason}
    return {}


def _poison() -> str:
    """Why this process must not be forked any more; empty when it may."""
    threads = processes.thread_names()
    strange = [thread for thread in threads if thread not in FORK_SAFE_THREADS]
    if len(strange) > 1:
        return f"importing it starts threads ({', '.join(strange)})"
    if processes.children():
        return "importing it starts a process"
    opened = next((device.kind for device in own_devices().values() if device.is_open()), "")
    return f"importing it opens {opened.upper()}" if opened else ""
