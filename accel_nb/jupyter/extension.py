"""``%load_ext accel_nb``: the magics, a warm server that starts while the user still writes the first cell, and the
kernel's half of the panel.
"""

from __future__ import annotations

from ..launch.servers.warmup import warm_up
from . import magics
from .cell_watch import unwatch_cells, watch_cells
from .panel.panel import Panel

_panel: list[Panel] = []
"""At most one per kernel."""


def load_ipython_extension(shell: object) -> None:
    """Called by IPython. Starts a process in the background and returns; imports no torch. From now on it is noted
    which cell initialises CUDA, and a panel beside the notebook is answered. In a terminal there is none.
    """
    watch_cells(shell)
    magics.register(shell)
    kernel = getattr(shell, "kernel", None)
    # Kernels that are not ipykernel's, as xeus-python's, have no handlers: there the panel finds nobody.
    if kernel is not None and hasattr(kernel, "control_handlers") and not _panel:
        _panel.append(Panel(kernel))
    warm_up()


def unload_ipython_extension(shell: object) -> None:
    """Called by IPython's ``%unload_ext``. Ends the warm servers, ranks in standby, and what else engines keep; runs
    under way go on.
    """
    from ..launch import engines
    from ..launch.servers.standby import STANDBY
    from ..launch.servers.warm_client import POOL

    magics.unregister(shell)
    unwatch_cells()
    while _panel:
        _panel.pop().close()
    STANDBY.let_go()
    engines.let_go()
    POOL.stop_all()
