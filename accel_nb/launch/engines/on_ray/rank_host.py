"""What lives in a Ray actor: it has the agents of one run after the other forked beside it."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ....errors import StartError
from ....protocol import environment
from ....protocol.commands import Surroundings
from ....protocol.remote import Summons
from ...payload.memory_file import new_file
from .nursery import Nursery

_BREAKPOINT, _RAYS = "PYTHONBREAKPOINT", "ray."
"""What Ray sets in its drivers and workers: in a rank ``breakpoint()`` would wait for Ray's debugger."""


_MOST_SAID_BYTES = 4000


class RankHost:
    """The actor's object. Its methods are called by Ray's threads, `hold` beside the others."""

    def __init__(self, idle_s: float, visibility: Sequence[str]) -> None:
        """Without a run for `idle_s` the actor gives its room on the cluster back, with all others of its set.
        `visibility`: variables that say which accelerators Ray has given to the actor.
        """
        self._idle_s = idle_s
        self._visibility = tuple(visibility)
        self._nursery = Nursery()
        self._timer = self._new_timer()

    def where(self) -> tuple[str, int]:
        """Ray's id of the node, and the process id."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def hold(self, encoded: bytes, payload: bytes | memoryview) -> None:
        """Hold the ranks of one seat until nothing of the run is left here. `encoded`: the `Summons`, with the kernel's
        surroundings. Raises StartError with what the agent could not tell the kernel.
        """
        self._timer.cancel()
        summons = msgspec.msgpack.decode(encoded, type=Summons)
        assert summons.surroundings is not None
        around = surroundings_here(summons.surroundings, environment.current(), self._visibility)
        file, said_file = new_file(), new_file()
        try:
            _write(file, payload)
            agent = self._nursery.fork(replace(summons, surroundings=around), said_file, file)
            _wait_for_end(agent)
            os.close(agent)
            said = os.pread(said_file, _MOST_SAID_BYTES, 0).decode(errors="replace").strip()
        finally:
            os.close(file)
            os.close(said_file)
        if said:
            raise StartError(said)
        self._timer = self._new_timer()

    def _new_timer(self) -> threading.Timer:
        timer = threading.Timer(self._idle_s, _give_room_back)
        timer.daemon = True
        timer.start()
        return timer


def surroundings_here(kernels: Surroundings, own: Mapping[str, str], visibility: Sequence[str]) -> Surroundings:
    """The kernel's, but for the accelerators that are visible, which are the actor's; `own`: the actor's variables."""
    theirs = environment.from_bytes(kernels.variables)
    if theirs.get(_BREAKPOINT, "").startswith(_RAYS):
        del theirs[_BREAKPOINT]
    seen = {name: own[name] for name in visibility if name in own}
    return replace(kernels, variables=environment.to_bytes(environment.without(theirs, visibility) | seen))


def _wait_for_end(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll()


def _write(file: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _give_room_back() -> None:
    """Of all actors of the set; it ends this process."""
    from ray.util.placement_group import get_current_placement_group, remove_placement_group

    group = get_current_placement_group()
    if group is not None:
        remove_placement_group(group)
