"""Get a rank ready for a function that it does not know yet: its device open, its process group hidden."""

from __future__ import annotations

from ...devices.standby import OPENERS
from ...protocol import environment
from ...protocol.commands import GetReady
from . import surroundings
from .group_shim import SHIM, ShimContext


def get_ready(message: GetReady) -> None:
    """Do what `message` asks for. Takes as long as opening a device takes; blocks until all ranks do the same.

    The environment is that of the run that is expected, and is replaced by the run's own when it comes.
    """
    order = message.order
    environment.replace_all(environment.from_bytes(order.surroundings.variables))
    surroundings.set_thread_pools(order.rank_plan.cpu_threads)
    with OPENERS[message.device_kind](order.rank_plan.device_index or 0) as device:
        SHIM.stand_by(ShimContext.of(order), device)
