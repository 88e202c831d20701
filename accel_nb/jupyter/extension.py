"""``%load_ext accel_nb``: the magics, and a warm server that starts while the user still writes the first cell."""

from __future__ import annotations

from ..launch.servers.warmup import warm_up
from . import magics
from .cell_watch import unwatch_cells, watch_cells


def load_ipython_extension(shell: object) -> None:
    """Called by IPython. Starts a process in the background and returns; imports no torch. From now on it is noted
    which cell initialises CUDA.
    """
    watch_cells(shell)
    magics.register(shell)
    warm_up()


def unload_ipython_extension(shell: object) -> None:
    """Called by IPython's ``%unload_ext``. Ends the warm servers; runs under way go on."""
    from ..launch.servers.warm_client import POOL

    magics.unregister(shell)
    unwatch_cells()
    POOL.stop_all()
