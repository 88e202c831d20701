from __future__ import annotations

from typing import Any

import pytest

from accel_nb.errors import InvalidArgument, PlanError
from accel_nb.launch.planning.nodes import MeetingPoint, check_nodes, engine_name, meeting_point
from accel_nb.protocol.plan import LaunchRequest


def asked(**fields: Any) -> LaunchRequest:  # noqa: ANN401  the fields of LaunchRequest
    """Two nodes that meet at an address, unless told otherwise."""
    given = {"num_nodes": 2, "num_processes": 2, "master_addr": "10.0.0.1", "use_port": 29500, **fields}
    return LaunchRequest(**given)


def test_two_nodes_meet_at_the_address_and_port_of_node_0() -> None:
    request = asked(node_rank=1, rdzv_conf={"timeout": "60"}, rdzv_id="apple")

    check_nodes(request)

    assert meeting_point(request) == MeetingPoint(
        num_nodes=2, node_rank=1, backend="static", host="10.0.0.1", port=29500, id="apple", settings={"timeout": 60}
    )


def test_an_endpoint_says_address_and_port_at_once() -> None:
    request = asked(rdzv_backend="c10d", rdzv_endpoint="node-0:4000", master_addr="127.0.0.1", use_port=None)

    assert meeting_point(request).shown == "node-0:4000"


def test_one_node_needs_to_say_nothing() -> None:
    check_nodes(LaunchRequest())


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_one_node_may_name_a_rendezvous_and_waits_for_nobody(backend: str) -> None:
    request = LaunchRequest(num_processes=2, rdzv_backend=backend)

    check_nodes(request)

    assert engine_name(request) == "local"


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "127.1.2.3", "0.0.0.0"])
def test_n05_an_address_that_is_another_machine_for_each_node_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"{address} is this very machine for each of the 2 nodes; give an"):
        check_nodes(asked(master_addr=address))


def test_n05_the_default_address_is_refused_with_several_nodes() -> None:
    with pytest.raises(InvalidArgument, match=r"^master_addr='127.0.0.1' with num_nodes=2: 127.0.0.1 is this very"):
        check_nodes(LaunchRequest(num_nodes=2, num_processes=2, use_port=29500))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_nodes": 0}, r"^num_nodes=0: give a whole number of at least 1\.$"),
        ({"num_nodes": True}, r"^num_nodes=True: give a whole number"),
        ({"node_rank": 2}, r"^node_rank=2: give a whole number from 0 to 1\.$"),
        ({"num_nodes": 1, "node_rank": 1}, r"^node_rank=1: give 0, since num_nodes is 1\.$"),
        ({"use_port": None}, r"^num_nodes=2 needs use_port, a port of node 0 that is free"),
        ({"num_processes": None}, r"^num_nodes=2 needs num_processes, the number of ranks on each machine"),
        ({"rdzv_backend": "etcd"}, r"^rdzv_backend='etcd' is not known; there are 'static' and 'c10d'\.$"),
        ({"rdzv_id": " "}, r"^rdzv_id=' ': give a word, the same on every node"),
        ({"rdzv_endpoint": "node-0"}, r"^rdzv_endpoint='node-0': write address:port"),
        (
            {"rdzv_endpoint": "10.0.0.2:29500"},
            r"^rdzv_endpoint='10.0.0.2:29500' and master_addr='10.0.0.1', .*name diff",
        ),
        ({"rdzv_conf": {"timeuot": 3}}, r"^rdzv_conf: 'timeuot' is not known of .*'static' \(nearest: 'timeout'\)"),
        ({"rdzv_conf": {"timeout": 0}}, r"^rdzv_conf: timeout is 0; give a whole number of at least 1\.$"),
        ({"backend": "local"}, r"^num_nodes=2 and backend='local' contradict each other"),
        ({"backend": "mpi"}, r"^num_nodes=2 is for machines that each make this call, and backend='mpi' starts"),
        ({"num_nodes": 1, "use_port": None}, r"^master_addr='10.0.0.1' is about several machines, and num_nodes is 1"),
        (
            {"num_nodes": 1, "master_addr": "localhost", "rdzv_backend": "etcd"},
            r"^rdzv_backend='etcd' is not known; th",
        ),
        (
            {"num_nodes": 1, "master_addr": "localhost", "rdzv_backend": "c10d", "backend": "mpi"},
            r"^rdzv_backend='c10d' is not possible with backend='mpi', whose ranks meet in a way of their own: leave",
        ),
        (
            {"num_nodes": 1, "master_addr": "localhost", "rdzv_endpoint": "localhost:0"},
            r"^rdzv_endpoint='localhost:0' is about several machines, and num_nodes is 1: leave rdzv_endpoint out",
        ),
        ({"num_nodes": 1, "master_addr": "localhost", "rdzv_id": "x"}, r"^rdzv_id='x' is about several machines"),
        ({"num_nodes": 1, "master_addr": "localhost", "backend": "elastic"}, r"^backend='elastic' is for several"),
    ],
)
def test_what_is_never_right_is_refused_in_one_sentence(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        check_nodes(asked(**fields))


def test_a_dry_run_is_about_one_machine() -> None:
    with pytest.raises(PlanError, match=r"^dry_run=True looks at one machine: leave out num_nodes=2\.$"):
        check_nodes(asked(dry_run=True))
