"""How many devices torch can use, asked of a child of the warm server and remembered."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from msgspec.structs import replace

from ...devices import find_devices
from ...protocol import environment
from ...protocol.hardware import NodeHardware
from ...protocol.plan import LaunchRequest
from ..cuda_origin import WATCH
from ..planning.hardware import probe_node, with_counts
from .preload import PRELOAD
from .warm_client import ServerKey

COUNT_TIMEOUT_S = 120.0
"""The server may have to import torch from a cold disk first."""

_counts: dict[tuple[ServerKey, tuple[str | None, ...]], dict[str, int]] = {}
_lock = threading.Lock()


def counted_hardware(request: LaunchRequest, variables: Mapping[str, str]) -> NodeHardware:
    """This machine with torch's own count laid over what its drivers say; a CPU run needs no count.

    Starts the warm server when there is none. Raises ServerFailed when it does not answer.
    """
    origin = WATCH.look()
    hardware = replace(probe_node(), kernel_cuda_origin="" if origin is None else origin.place)
    if request.device == "cpu":
        return hardware
    names = [name for device in find_devices() for name in device.visibility_variables]
    wanted = {**variables, **(request.env or {})}
    clean = {name: value for name, value in wanted.items() if not environment.is_foreign_launcher_variable(name)}
    visibility = {name: wanted.get(name) for name in names}
    key = (ServerKey.for_run(clean), tuple(visibility.values()))
    with _lock:
        if key not in _counts:
            server = PRELOAD.server_for(request.function_name, clean)
            _counts[key] = server.count_devices(visibility, COUNT_TIMEOUT_S)
        return with_counts(hardware, _counts[key])
