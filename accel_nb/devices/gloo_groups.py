"""Close gloo's process groups, those of CPU ranks, and fork beside them, without a deadlock.

The end of a group waits for its threads. One of them may be about to drop the last reference to a tensor, for which it
needs the GIL. Python's own handle on a group lets go of the GIL before it waits; the reducer of a
DistributedDataParallel module does not (torch 2.6 to 2.13). So a group that such a module uses must not end with it:
the handle is held here until the module is gone.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
import weakref
from typing import TYPE_CHECKING, NoReturn

from ..errors import TrainingError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.nn.parallel import DistributedDataParallel

_GIL_FREE_S = 0.001
"""Long enough for a thread that waits for the GIL to get it."""

_held: list[tuple[ProcessGroup, weakref.ref[DistributedDataParallel]]] = []


def before_closing() -> None:
    """Call this before process groups are destroyed, in any thread: what modules in use still need is held."""
    # What is let go of here may end: its module is gone.
    _held[:] = [(group, module) for group, module in _held if module() is not None]
    known = [module() for _, module in _held]
    _held.extend(
        (module.process_group, weakref.ref(module)) for module in _modules() if not any(module is one for one in known)
    )
    time.sleep(_GIL_FREE_S)


@functools.cache
def guard_forks() -> None:
    """Call this once a group is open: from then on, this process forks only when the group's threads have come to rest.

    One of them drops the tensor of an operation that has just ended, for which it takes CPython's lock of thread states
    before it has the GIL. Whoever forks at that moment, as a DataLoader does at the beginning of a pass, gets a child
    that waits for this lock for ever (CPython 3.11: ``_PyThreadState_DeleteExcept``; measured: one of 3,000 workers).
    """
    os.register_at_fork(before=_let_threads_rest)


def _let_threads_rest() -> None:
    from torch import distributed

    if distributed.is_initialized():
        time.sleep(_GIL_FREE_S)


def close() -> None:
    """Destroy all groups although modules still use them, so that ranks which wait for this one see their connections
    end. Those modules cannot compute any more, and say so.

    Waits until what this rank has begun with the others has come to an end, which is when they close theirs at the
    latest. Only in the thread that computes.
    """
    from torch import distributed

    before_closing()
    for module in _modules():
        _part(module)
    handles = [group for group, _ in _held]
    _held.clear()
    distributed.destroy_process_group()
    # The last ones, and Python's: see above.
    handles.clear()


def _part(module: DistributedDataParallel) -> None:
    """Take from `module` all that keeps its group alive (torch 2.6 to 2.13)."""
    for name in ("reducer", "logger", "process_group"):
        delattr(module, name)
    module.forward = _refuse  # type: ignore[method-assign]


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TrainingError(
        "this model was prepared before the process group was closed and opened again, which happens when memory runs "
        "out in find_executable_batch_size, and when ranks that are kept from cell to cell get out of step. Prepare it "
        "again: in a search, inside the function that takes the batch size."
    )


def _modules() -> list[DistributedDataParallel]:
    """All that are alive. There is no list of them, and other libraries make them, too."""
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is None:
        return []
    kind: type[DistributedDataParallel] = parallel.DistributedDataParallel
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kind) and hasattr(thing, "process_group")]
