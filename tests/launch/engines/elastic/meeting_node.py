"""One node of a meeting, as a program: ``python meeting_node.py <JSON of its point>``; prints what it hears."""

from __future__ import annotations

import json
import os
import socket
import sys

from accel_nb.errors import PlanError
from accel_nb.launch.channel import Channel
from accel_nb.launch.engines.nodes.way import find_way, listen
from accel_nb.launch.interpreter import start_interpreter
from accel_nb.launch.planning.nodes import MeetingPoint
from accel_nb.launch.processes import is_readable
from accel_nb.protocol.nodes import Introduce, Leave, MeetAgain, MeetingNews, MeetingOrder, Met, NotMet, Placed


def main(given: dict[str, object]) -> None:
    rounds = given.pop("rounds", 1)
    deadline_s = given.pop("deadline_s", 60)
    leaves = given.pop("leaves", "")
    assert isinstance(deadline_s, int | float)
    point = MeetingPoint(**given)  # type: ignore[arg-type]  # as the test wrote them
    try:
        way = find_way(point)
        hosts = point.node_rank == 0 if point.backend == "static" else way.is_here
        listener = listen(way.address, point.port, f"use_port={point.port}") if hosts else None
    except PlanError as error:
        print(f"refused: {error}", flush=True)
        return
    print(f"way: {way.own} {way.interface}", flush=True)
    ours, theirs = socket.socketpair()
    process = start_interpreter(
        "accel_nb.launch.engines.nodes.meeting", "meet_in_interpreter",
        [theirs.fileno(), os.getpid()], variables=dict(os.environ), pass_fds=[theirs.fileno()], output=2,
    )  # fmt: skip
    theirs.close()
    print(f"pid: {process.pid}", flush=True)
    channel = Channel[MeetingNews](ours, MeetingNews)
    order = MeetingOrder(
        backend=point.backend, host=way.address, port=point.port, num_nodes=point.num_nodes, own=way.own,
        node_rank=point.node_rank, run_id=point.id, hosts=hosts, settings={}, name=socket.gethostname(),
        deadline_s=deadline_s,
    )  # fmt: skip
    channel.send(order, [] if listener is None else [listener.fileno()])
    met = 0
    while met != rounds:
        if leaves and is_readable(0):
            channel.send(Leave(reason=str(leaves)))
        is_readable(channel.fileno(), 0.2)
        messages, closed = channel.receive()
        for message in messages:
            match message:
                case Placed():
                    channel.send(Introduce(note=f"node {message.node} is {socket.gethostname()}"))
                case Met():
                    met += 1
                    print(f"met: {list(message.notes)}", flush=True)
                    if met != rounds:
                        channel.send(MeetAgain(attempt=met))
                case NotMet():
                    print(f"not met: {message.reason}", flush=True)
                    met = rounds  # type: ignore[assignment]  # JSON
        assert not closed
    if hosts:
        # Whoever has met hears of it before the store goes.
        sys.stdin.read()
    channel.close()
    print(f"ended: {process.wait()}", flush=True)


main(json.loads(sys.argv[1]))
