from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.census import wait_until
from tests.launch.engines.elastic.nodes import Nodes, two_nodes
from tests.launch.engines.hosts import reason_against
from tests.notebook_kernel import KernelDied

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(reason_against()), reason=reason_against()),
]
LEFT_S = 30.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with two_nodes(tmp_path) as made:
        yield made


def started(nodes: Nodes, **arguments: object) -> list[str]:
    """Cells of a run whose ranks have met."""
    cells = nodes.launch("wait", **arguments)
    for node, cell in zip(nodes.all, cells, strict=True):
        node.until_up(cell)
    return cells


@pytest.fixture
def cells(nodes: Nodes) -> list[str]:
    return started(nodes)


def test_the_death_of_a_kernel_is_named_on_node_0_and_leaves_nothing(nodes: Nodes, cells: list[str]) -> None:
    first, second = nodes.all

    second.kernel.kill()

    executed = first.collect(cells[0])
    assert executed.ename == "RunFailed"
    assert "the kernel on host-1 that takes part with the agent of ranks 2 to 3 has ended" in executed.evalue
    wait_until(lambda: not second.host.processes(), LEFT_S, lambda: str(second.host.processes()))
    wait_until(lambda: not first.runs(), LEFT_S, lambda: str(first.runs()))


def test_a_node_that_is_gone_is_not_waited_for_again_where_restarts_are_allowed(nodes: Nodes) -> None:
    cells = started(nodes, max_restarts=2)
    first, second = nodes.all

    second.host.kill_all()

    executed = first.collect(cells[0])
    assert executed.ename == "RunFailed"
    assert (
        "rank 2 of 4 (cpu, node 1) died: what held node 1 (host-1) is gone. The kernel or the machine"
        in executed.evalue
    )
    assert "Nobody takes its place in a run that has begun, so the ranks do not start again." in executed.evalue
    assert "starting all ranks again" not in executed.stdout
    wait_until(lambda: not first.runs(), LEFT_S, lambda: str(first.runs()))
    with pytest.raises(KernelDied):
        second.collect(cells[1])


def test_the_death_of_node_0_is_named_on_the_others_and_leaves_nothing(nodes: Nodes, cells: list[str]) -> None:
    first, second = nodes.all

    first.host.kill_all()

    executed = second.collect(cells[1])
    assert executed.ename == "RunFailed"
    assert "the connection to the kernel of node 0, which leads the run, is gone" in executed.evalue
    wait_until(lambda: not second.runs(), LEFT_S, lambda: str(second.runs()))
    with pytest.raises(KernelDied):
        first.collect(cells[0])


def test_a_node_whose_network_is_cut_is_named(nodes: Nodes, cells: list[str]) -> None:
    first, second = nodes.all
    second.host.cut()

    executed = nodes.collect(cells)
    assert [one.ename for one in executed] == ["RunFailed", "RunFailed"]
    assert "node 1 (host-1)" in executed[0].evalue
    assert "the connection to the kernel of node 0, which leads the run, is gone" in executed[1].evalue
    for node in (first, second):
        wait_until(lambda node=node: not node.runs(), LEFT_S, lambda node=node: str(node.runs()))  # type: ignore[misc]
