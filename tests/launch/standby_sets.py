"""Sets of ranks in standby, for tests that play the kernel."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import psutil

from accel_nb.errors import ServerFailed
from accel_nb.launch.servers.standby import STANDBY
from accel_nb.launch.servers.warm_client import POOL
from tests.launch import standby_code as code
from tests.launch.census import ProcessId, children, id_of, until_up
from tests.launch.launching import DEADLINE_S, launch, on_ranks, start

READY_S = 240.0
"""A server may have to import what the function needs first, on a busy machine."""
GONE_S = 40.0
TAKES_S = 60.0
"""So long the tests have a launch wait for a set: what is tested is whether it is taken, not how fast."""
FRESH = [(False, False, False, 3.0)] * 2
"""What `code.opens_group` gives on fresh ranks ..."""
ADOPTED = [(True, False, True, 3.0)] * 2
"""... and on those that have waited."""


def settle_servers() -> None:
    """Until no server imports any more: the next launch would start from one that has come to be ready meanwhile.

    A launch first: each test has variables of its own (pytest's), so that a server is started for them.
    """
    on_ranks(code.opens_none)
    for server in list(POOL._servers.values()):
        with contextlib.suppress(ServerFailed):
            server.poll_ready(READY_S)


def wait_for_set() -> list[ProcessId]:
    """Have one made, as a run with a group does, and give its ranks once they are ready."""
    settle_servers()
    on_ranks(code.opens_group)
    return ready_set()


def ready_set() -> list[ProcessId]:
    """The ranks in standby, once they are ready."""
    keeper = STANDBY.keeper(READY_S)
    assert keeper
    return [id_of(rank.pid) for rank in children(psutil.Process(keeper))]


def from_standby(function: Callable[..., Any], *args: object) -> list[Any]:
    """What `function` returns on ranks that were in standby for it. Earlier launches teach a server what it imports."""
    for _ in range(2):
        settle_servers()
        on_ranks(function, *args)
        assert STANDBY.is_ready(READY_S)
    return on_ranks(function, *args)


ENDINGS = {
    "success": "finished, 3",
    "raise": "failed, ValueError",
    "kill": "failed, SIGKILL",
    "interrupt": "stopped",
    "memory": "failed, RuntimeError",
}
"""How a run ends -> what `ended` says of it."""


def in_random_order(times: int) -> list[str]:
    """Each ending so many times, always in the same order."""
    order = list(ENDINGS) * times
    random.Random(20).shuffle(order)
    return order


def ended(ending: str, backend: str = "gloo", **options: Any) -> str:  # noqa: ANN401  see `start`
    """Launch so that it ends so; its status, and the value or the cause."""
    if ending == "interrupt":
        run = until_up(start(code.waits, backend, **options))
        run.stop(by="interrupt")
        run.draw()
        assert run.wait(DEADLINE_S)
        return run.status
    if ending == "success":
        launched = launch(code.opens_group, backend, **options)
        return f"{launched.run.status}, {launched.values[0][3]:g}"
    launched = launch(code.fails, ending, **options)
    first = launched.failure.failures[0]
    return f"{launched.run.status}, {first.type_name or first.signal or first.kind}"
