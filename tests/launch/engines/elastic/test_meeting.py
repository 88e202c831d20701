from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.launch.engines.hosts import Host, Hosts, reason_against, simulated_hosts

pytestmark = [pytest.mark.engines, pytest.mark.skipif(bool(reason_against()), reason=reason_against())]
# One that says it has come, and never takes part in torch's rendezvous.
GHOST = """
import time
from torch.distributed import TCPStore

store = TCPStore("10.77.0.1", 29500, is_master=False, wait_for_workers=False)
while not store.check(["0/here/0"]):
    time.sleep(0.05)
store.set("0/here/1", "ghost")
known = store.num_keys()
while store.num_keys() == known:
    time.sleep(0.05)
"""
NODE = Path(__file__).with_name("meeting_node.py")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with simulated_hosts(tmp_path_factory.mktemp("hosts"), 3) as made:
        yield made


class Node:
    """`meeting_node.py` on a host."""

    def __init__(self, host: Host, node_rank: int, at: str = "10.77.0.1", **given: object) -> None:
        point = {"num_nodes": 2, "backend": "static", "host": at, "port": 29500, **given}
        self._process = host.start(
            sys.executable, NODE, json.dumps({**point, "node_rank": node_rank}),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[str] = []

    def until(self, beginning: str) -> str:
        """The rest of the first line that begins like that."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(beginning):
                return self.lines[-1].removeprefix(beginning)
        raise AssertionError(f"ended with {self._process.wait()}: {self.lines}")

    def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("leave\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> str:
        """Let it go; what it has not said yet."""
        rest, _ = self._process.communicate(timeout=60)
        return str(rest)


def refused(host: Host, node_rank: int, at: str = "10.77.0.1") -> str:
    """What a node says that is not let begin."""
    node = Node(host, node_rank, at)
    told = node.until("refused: ")
    node.end()
    return told


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_nodes_meet_and_meet_again_by_torchs_rendezvous(hosts: Hosts, backend: str) -> None:
    nodes = [Node(hosts[index], index, backend=backend, rounds=2, num_nodes=3) for index in range(3)]

    told = [[node.until("met: "), node.until("met: ")] for node in nodes]

    for node in reversed(nodes):
        assert "ended: 0" in node.end()
    assert told == [[str([f"node {index} is host-{index}" for index in range(3)])] * 2] * 3


def test_a_node_that_comes_late_is_waited_for(hosts: Hosts) -> None:
    late = Node(hosts[1], 1)
    assert late.until("way: ") == "10.77.0.2 eth0"

    first = Node(hosts[0], 0)

    assert first.until("met: ") == late.until("met: ")
    late.end()
    first.end()


def test_n06_a_node_that_never_comes_is_named_on_those_that_came(hosts: Hosts) -> None:
    nodes = [Node(hosts[index], index, num_nodes=3, deadline_s=4) for index in (0, 1)]

    told = [node.until("not met: ") for node in nodes]

    for node in reversed(nodes):
        node.end()
    first, second = told
    assert first == second
    assert first.startswith(
        "2 of 3 nodes came to 10.77.0.1:29500 within 4 s: node 0 (host-0), node 1 (host-1). Missing: "
    )
    assert first.endswith("Missing: node 2. Run the same call there with node_rank=2.")


def test_n06_a_first_node_that_never_comes_is_named_with_what_was_tried(hosts: Hosts) -> None:
    node = Node(hosts[1], 1, deadline_s=2)

    told = node.until("not met: ")

    node.end()
    assert told.startswith(
        "node 0 never came: nobody let this node in at 10.77.0.1:29500 within 2 s (Connection refused; tried from "
        "host-1). Run the same call there with node_rank=0"
    )


def test_two_nodes_of_one_number_are_told_on_both(hosts: Hosts) -> None:
    first = Node(hosts[0], 0, num_nodes=3)
    twins = [Node(hosts[index], 1, num_nodes=3) for index in (1, 2)]

    told = {node.until("not met: ") for node in (first, *twins)}

    for node in (*twins, first):
        node.end()
    assert len(told) == 1
    assert "both say node_rank=1; number the 3 nodes from 0 on." in told.pop()


def test_a_node_that_leaves_is_told_to_those_that_wait(hosts: Hosts) -> None:
    first = Node(hosts[0], 0, num_nodes=3)
    leaving = Node(hosts[1], 1, num_nodes=3, leaves="node 1 (host-1) was interrupted.")
    leaving.leave()

    told = [first.until("not met: "), leaving.until("not met: ")]

    leaving.end()
    first.end()
    assert told == ["node 1 (host-1) was interrupted."] * 2


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_a_meeting_ends_with_its_kernel_whatever_it_waits_in(hosts: Hosts, backend: str) -> None:
    node = Node(hosts[0], 0, backend=backend, deadline_s=600)
    meeting = psutil.Process(int(node.until("pid: ")))
    assert hosts[1].run(sys.executable, "-c", GHOST).returncode == 0

    node.kill()

    meeting.wait(60)


def test_n05_the_address_is_tried_before_anything_starts(hosts: Hosts) -> None:
    wrong = refused(hosts[1], 0)
    unknown = refused(hosts[1], 1, "host-9")
    unreachable = refused(hosts[1], 1, "192.0.2.1")

    assert wrong.startswith("node_rank=0 is the machine at master_addr='10.77.0.1', and this machine has no such addre")
    assert "host-1 (10.77.0.2 on eth0)" in wrong
    assert unknown.startswith("master_addr='host-9': this machine, host-1 (10.77.0.2 on eth0), does not know that name")
    assert unreachable.startswith("master_addr='192.0.2.1': there is no way from this machine, host-1 (10.77.0.2 on et")


def test_n05_a_name_that_means_each_machine_itself_is_refused(hosts: Hosts) -> None:
    told = refused(hosts[1], 1, "localhost")

    assert told.startswith("master_addr='localhost' is 127.0.0.1 here, this very machine only; give an address of nod")


def test_r03_a_port_that_is_taken_is_told_with_its_owner(hosts: Hosts) -> None:
    taken = hosts[0].start(
        sys.executable, "-c",
        "import socket; s = socket.create_server(('10.77.0.1', 29500)); print('up', flush=True); input()",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert taken.stdout is not None
    taken.stdout.readline()

    told = refused(hosts[0], 0)

    taken.communicate("\n")
    assert told.startswith(f"use_port=29500 cannot be used: 10.77.0.1:29500 is taken by pid {taken.pid} (")
