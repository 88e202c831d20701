"""Do once, while nobody waits, what a launch will do: in keepers and ranks that are forked ahead.

A fork shares its parent's memory page by page, and the first touch of each page costs a fault. On the way from the call
to the function those faults were more than half of the time (measured: 11 of 19 ms).
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Iterator

import msgspec

from ...devices import own_devices
from ...protocol import environment
from ...protocol.commands import RankOrder, RunCommand, RunOrder, Surroundings
from ...protocol.events import LogLines, RunStarted
from ...protocol.plan import LaunchPlan, RankPlan
from ...protocol.wire import FrameReader, event_line, frame
from ..output.event_ring import EventRing
from ..output.rank_output import RankOutput
from ..payload.packing import pack, pack_value, unpack
from ..rank import surroundings
from ..rank.main import text_stream
from .orders import rank_order

_NUM_VARIABLES = 60
"""About what a notebook kernel's environment holds."""


def rehearse_keeper(num_ranks: int) -> None:
    """Read an order, write those of the ranks, pass an event on. Touches no file, no rank and no global state."""
    given = _order(num_ranks)
    (order,) = FrameReader[RunCommand](RunCommand).feed(frame(given))
    assert isinstance(order, RunOrder)
    for rank in range(num_ranks):
        frame(rank_order(order, rank, store_port=0))
    ring = EventRing()
    ring.add(RunStarted(plan=order.plan, log_dir=order.log_dir))
    for event in RankOutput(0).feed(b"a line\n", 0.0):
        ring.add(event)
    for event in ring.take(1 << 10):
        event_line(event)


class Props(msgspec.Struct, frozen=True):
    """What a rank would be sent."""

    order: bytes
    payload: bytes


@functools.cache
def prepare() -> Props:
    """Make what the ranks' rehearsal needs. The server calls this once: its forks share it."""
    surroundings.find_thread_pools()
    own_devices()
    with pack(_typed_in_a_cell(), (1,), {}) as packed:
        payload = os.pread(packed.fd, packed.size_bytes, 0)
    return Props(frame(rank_order(_order(1), 0, store_port=0)), payload)


def rank_rehearsal() -> Iterator[None]:
    """Read an order, load and call a function, pack its value, report, write, form a group: one of these per step.

    Each step leaves the process as it was but for generators, which an order seeds anew: an order that comes may break
    the rehearsal off.
    """
    props = prepare()
    (order,) = FrameReader[RankOrder](RankOrder).feed(props.order)
    assert isinstance(order, RankOrder)
    yield
    fd = os.memfd_create("rehearsal")
    os.write(fd, props.payload)
    function, args, kwargs = unpack(fd)
    os.close(fd)
    yield
    pack_value(function(*args, **kwargs)).close()
    frame(LogLines(rank=0, text=""))
    yield
    surroundings.set_thread_pools(1)
    surroundings.reseed()
    print("a line", file=text_stream(fd := os.open(os.devnull, os.O_WRONLY)))
    os.close(fd)
    if "torch" in sys.modules:
        yield
        _rehearse_group()


def _rehearsed(value: int) -> int:
    return value


def _typed_in_a_cell() -> types.FunctionType:
    """`_rehearsed`, but such that it travels by value."""
    function = types.FunctionType(_rehearsed.__code__, {"__name__": "__main__"})
    function.__module__ = "__main__"
    return function


def _rehearse_group() -> None:
    """A process group of one: opens and closes what the first real one will open."""
    import torch
    import torch.distributed as dist
    from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, not in __all__

    hook, variables = sys.excepthook, environment.current()
    # Left to itself gloo looks up the host's name, which may take long, and complains into the rank's log.
    environment.replace_all(variables | {"GLOO_SOCKET_IFNAME": "lo"})
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    value = torch.zeros(1)
    dist.all_reduce(value)
    dist.destroy_process_group()
    # Not a temporary: gloo's thread could drop the last reference, and wait for the GIL while we wait for the thread
    # (torch 2.6).
    del value
    # torch adds the rank to the hook and never takes it away.
    sys.excepthook = hook
    environment.replace_all(variables)


def _order(num_ranks: int) -> RunOrder:
    plan = LaunchPlan(
        run_id="rehearsal",
        function_name="rehearsal",
        engine="local",
        device_kind="cpu",
        process_group="gloo",
        ranks=tuple(RankPlan(rank=rank, local_rank=rank) for rank in range(num_ranks)),
    )
    variables = {b"VARIABLE_%d" % number: b"value" for number in range(_NUM_VARIABLES)}
    around = Surroundings(variables=variables, cwd=b"/", sys_path=(b"/",), argv=(b"",), umask=0o022, locale="C")
    return RunOrder(plan=plan, surroundings=around, log_dir="/")
