"""The kernel beside an agent, where that is not the one that the agent answers to: each node's notebook has its own.

    hub (node 0's kernel) ══zmq══ agent ──run channel── keeper ──▶ ranks
                                    ╚══ witness channel ══ kernel of this node

It gives its own function and surroundings, sees what its ranks say, hears how the run ends, and may ask for the end.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from ....protocol.commands import DumpStacks, KeeperMessage, RunOrder, Stop
from ....protocol.remote import AgentFailed, OwnPart, RunOver
from ....protocol.wire import Skipped
from ...channel import Channel
from ...processes import is_readable
from .adapting import INTERFACES

WitnessCommand = Stop | DumpStacks
WitnessNews = KeeperMessage | RunOver | AgentFailed


class Witness:
    """The agent's end. One thread."""

    def __init__(self, own: OwnPart, channel_fd: int, payload_fd: int, kernel_pid: int) -> None:
        """Both descriptors are owned from now on."""
        self.own = own
        self.payload_fd = payload_fd
        """What the ranks run."""
        self._channel: Channel[WitnessCommand] = Channel(socket.socket(fileno=channel_fd), WitnessCommand)
        self._kernel_fd = os.pidfd_open(kernel_pid)
        self._closed = False

    def fds(self) -> tuple[int, int]:
        """Readable when `hear` or `is_gone` has something new."""
        return self._channel.fileno(), self._kernel_fd

    @property
    def wants_to_write(self) -> bool:
        return self._channel.wants_to_write

    def flush(self) -> None:
        self._channel.flush()

    def part_of(self, order: RunOrder) -> RunOrder:
        """`order`, which comes from the hub, as this machine's own kernel wants it: no variable comes from elsewhere
        but those that name the network interface.
        """
        own = self.own
        env = {name: value for name, value in order.plan.env.items() if name in INTERFACES} | own.env
        return replace(
            order,
            plan=replace(order.plan, env=env),
            first_sequence=own.first_sequence,
            notices=own.notices,
        )

    def tell(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        self._channel.send(message, fds)

    def hear(self) -> list[WitnessCommand]:
        messages, closed = self._channel.receive()
        self._closed = self._closed or closed
        return [message for message in messages if not isinstance(message, Skipped)]

    @property
    def is_gone(self) -> bool:
        """The kernel has let the run go, or has ended."""
        return self._closed or is_readable(self._kernel_fd)

    def close(self) -> None:
        self._channel.close()
        os.close(self.payload_fd)
        os.close(self._kernel_fd)
