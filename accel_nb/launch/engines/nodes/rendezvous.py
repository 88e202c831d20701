"""The kernel's end of a meeting: the process that meets the other nodes, from the first round to the end of the run."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping

from ....errors import PortInUse
from ....protocol.nodes import Introduce, Leave, MeetAgain, MeetingNews, MeetingOrder
from ....protocol.wire import Skipped
from ...channel import Channel
from ...interpreter import start_interpreter
from ...planning.nodes import MeetingPoint
from ...processes import is_readable
from ...run_files import server_log
from .notes import shown_id
from .way import Way, find_way, listen

_ENDS_S = 5.0
"""A meeting whose kernel has left it tells the others, and ends."""


def listen_if_host(point: MeetingPoint, way: Way) -> socket.socket | None:
    """The socket of the meeting point; None where it is another node's. Raises PortInUse, PlanError.

    With c10d it is the node that has the address, and of several on one machine the first.
    """
    if not way.is_here or (point.backend == "static" and point.node_rank > 0):
        return None
    try:
        return listen(way.address, point.port, f"port {point.port}")
    except PortInUse:
        if point.backend == "static":
            raise
        return None


class Rendezvous:
    """Of one run on this node. Used by one thread, the run's supervisor."""

    def __init__(self, point: MeetingPoint, *, deadline_s: float, variables: Mapping[str, str]) -> None:
        """Start the process. Raises PlanError as `find_way` and `listen` do, OSError."""
        self.point = point
        self.way = find_way(point)
        self.name = socket.gethostname()
        listener = listen_if_host(point, self.way)
        ours, theirs = socket.socketpair()
        self.log_file = server_log()
        try:
            with theirs, self.log_file.open("ab") as log:
                self._process = start_interpreter(
                    "accel_nb.launch.engines.nodes.meeting", "meet_in_interpreter",
                    [theirs.fileno(), os.getpid()], variables=variables,
                    pass_fds=[theirs.fileno()], output=log.fileno(),
                )  # fmt: skip
            self._pidfd = os.pidfd_open(self._process.pid)
            self._channel: Channel[MeetingNews] = Channel(ours, MeetingNews)
            order = MeetingOrder(
                backend=point.backend,
                host=self.way.address,
                port=point.port,
                num_nodes=point.num_nodes,
                node_rank=point.node_rank,
                run_id=shown_id(point.id),
                settings=point.settings,
                hosts=listener is not None,
                own=self.way.own,
                name=self.name,
                deadline_s=deadline_s,
            )
            self._channel.send(order, [] if listener is None else [listener.fileno()])
        finally:
            if listener is not None:
                listener.close()

    def fds(self) -> tuple[int, int]:
        """Readable when `receive` or `has_ended` has something new."""
        return self._channel.fileno(), self._pidfd

    def receive(self) -> list[MeetingNews]:
        return [message for message in self._channel.receive()[0] if not isinstance(message, Skipped)]

    def has_ended(self) -> bool:
        return is_readable(self._pidfd)

    def introduce(self, note: str) -> None:
        self._channel.send(Introduce(note=note))

    def again(self, attempt: int) -> None:
        """Begin a new round."""
        self._channel.send(MeetAgain(attempt=attempt))

    def close(self, reason: str = "") -> None:
        """Let the process go; `reason`: why this node does not wait any more, where others may."""
        if reason:
            self._channel.send(Leave(reason=reason))
        self._channel.close()
        if not is_readable(self._pidfd, _ENDS_S):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._process.wait()
        os.close(self._pidfd)
