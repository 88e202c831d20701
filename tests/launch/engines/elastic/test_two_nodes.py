from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_nb.launch.recording import recorded_events
from accel_nb.protocol.events import RankFailed
from tests.launch.census import wait_until
from tests.launch.engines.elastic.nodes import DEADLINE_S, PORT, TRAIN, Nodes, two_nodes
from tests.launch.engines.hosts import reason_against
from tests.notebook_kernel import Executed

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(reason_against()), reason=reason_against()),
]
LEFT_S = 20.0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with two_nodes(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_is_left_on_any_node(nodes: Nodes) -> Iterator[None]:
    yield
    for node in nodes.all:
        wait_until(lambda node=node: not node.runs(), LEFT_S, lambda node=node: str(node.runs()))  # type: ignore[misc]


def results(executed: Executed) -> list[object]:
    assert executed.ename is None, executed.described()
    (line,) = [line for line in executed.stdout.splitlines() if line.startswith("RESULTS ")]
    told: list[object] = ast.literal_eval(line.removeprefix("RESULTS "))
    return told


def shown_ranks(executed: Executed) -> set[str]:
    """Of which ranks lines are shown."""
    return {line[:4] for line in executed.stdout.splitlines() if line.startswith("[r") and "on node" in line}


def test_n07_the_same_cell_on_two_nodes_trains_as_four_ranks_of_one_machine_do(nodes: Nodes) -> None:
    first, second = nodes.all
    late = second.launch("train", rdzv_id="a secret word")
    second.kernel.wait_for(late, "waits for the others of 2 at 10.77.0.1:29500", DEADLINE_S)

    both = [first.collect(first.launch("train", rdzv_id="a secret word")), second.collect(late)]
    alone = first.kernel.ok(
        "print('RESULTS', list(notebook_launcher(train, num_processes=4, device='cpu')))", DEADLINE_S
    )

    losses = results(alone)
    assert results(both[0]) == [pytest.approx(one) for one in losses]
    assert results(both[1]) == [None, None, *(pytest.approx(one) for one in losses[2:])]
    assert "accel_nb: train: 4 ranks on cpu (asked: 2 on each of 2 nodes)" in both[0].stdout
    assert shown_ranks(both[0]) == {"[r0]", "[r1]", "[r2]", "[r3]"}
    assert shown_ranks(both[1]) == {"[r2]", "[r3]"}
    assert "[r3] rank 3 on node 1 eth0" in both[0].stdout
    assert "this is node 1, with the output and the values of ranks 2 to 3; those of all ranks are" in both[1].stdout


def test_logs_of_all_ranks_lie_with_node_0_and_a_recording_with_each_node(nodes: Nodes) -> None:
    executed = nodes.run("train", rdzv_backend="c10d")

    told = [results(one) for one in executed]
    runs = [max(node.kernel.log_dir.glob("run-*"), key=lambda run: run.stat().st_mtime) for node in nodes.all]
    assert [sorted(file.name for file in run.glob("rank_*.log")) for run in runs] == [
        [f"rank_{rank}.log" for rank in range(4)],
        ["rank_2.log", "rank_3.log"],
    ]
    assert "rank 3 on node 1 eth0" in (runs[0] / "rank_3.log").read_text()
    assert all((run / "run.jsonl").read_text().count('"run_ended"') == 1 for run in runs)
    # Without a word of the user's, nothing is unpickled that anybody could have sent.
    assert [value is None for value in told[0]] == [False, False, True, True]
    assert "Give rdzv_id, a word that only you know" in executed[0].stdout


def test_n06_a_node_that_does_not_come_is_named(nodes: Nodes) -> None:
    first, second = nodes.all

    alone = [node.collect(node.launch("train", timeouts="Timeouts(rendezvous_s=2)")) for node in (first, second)]

    assert [one.ename for one in alone] == ["StartError", "StartError"]
    assert alone[0].evalue.startswith(
        "1 of 2 nodes came to 10.77.0.1:29500 within 2 s: node 0 (host-0). Missing: node 1."
    )
    assert alone[1].evalue.startswith("node 0 never came: nobody let this node in at 10.77.0.1:29500 within 2 s")


def test_nodes_that_do_not_fit_together_are_told_on_each(nodes: Nodes) -> None:
    first, second = nodes.all
    cells = [first.launch("train"), second.launch("train", num_processes=1)]

    told = {one.evalue for one in nodes.collect(cells)}

    assert told == {"node 0 (host-0) brings 2 ranks and node 1 (host-1) 1: give the same num_processes on all nodes."}


def test_a_death_on_one_node_is_the_cause_on_each(nodes: Nodes) -> None:
    executed = nodes.run("die_once, (3,)")

    assert [one.ename for one in executed] == ["RunFailed", "RunFailed"]
    for one in executed:
        assert one.evalue.startswith("die_once: rank 3 of 4 (cpu, node 1) died: killed by SIGKILL"), one.evalue


def test_k02_who_waits_for_a_rank_of_another_node_is_told_on_each(nodes: Nodes, tmp_path: Path) -> None:
    go_on = tmp_path / "go_on"
    cells = nodes.launch(f"wait_for_rank_3, ({str(go_on)!r},)", timeouts="Timeouts(stalled_s=2)")
    for node, cell in zip(nodes.all, cells, strict=True):
        node.kernel.wait_for(cell, "ranks 0-2 wait in torch.distributed.barrier (Cell In[1], line", DEADLINE_S)

    go_on.touch()

    executed = nodes.collect(cells)
    assert results(executed[0])[:2] == ["went on"] * 2
    for one in executed:
        assert "rank 3 is at Cell In[1], line" in one.stdout
        assert "(`time.sleep(0.05)`" in one.stdout


def test_k02_that_a_rank_has_returned_is_told_on_each_node_of_its_own_ranks(nodes: Nodes) -> None:
    executed = nodes.run("return_early_on_rank_3")

    assert [one.ename for one in executed] == ["RunFailed", "RunFailed"]
    for one in executed:
        assert "rank 3 has returned" in one.evalue, one.evalue
    own = max(nodes.all[1].kernel.log_dir.glob("run-*"), key=lambda run: run.stat().st_mtime)
    failed = [event for event in recorded_events(own) if isinstance(event, RankFailed) and event.failure.rank == 2]
    assert [event.failure.kind for event in failed][-1:] == ["dead_end"], failed


def test_all_nodes_start_again_when_a_rank_has_died_and_restarts_are_allowed(nodes: Nodes) -> None:
    executed = nodes.run("die_once, (3,)", max_restarts=1, rdzv_id="a secret word")

    assert results(executed[0]) == ["1"] * 4
    assert results(executed[1]) == [None, None, "1", "1"]


@pytest.mark.parametrize("stopped", [0, 1])
def test_an_interrupt_on_either_node_ends_both(nodes: Nodes, stopped: int) -> None:
    cells = nodes.launch("wait")
    for node, cell in zip(nodes.all, cells, strict=True):
        node.until_up(cell)

    nodes.all[stopped].kernel.interrupt()

    executed = nodes.collect(cells)
    assert executed[stopped].ename == "RunInterrupted", executed[stopped].described()
    assert executed[1 - stopped].ename == "RunStopped", executed[1 - stopped].described()


def test_the_second_node_may_be_a_shell(nodes: Nodes, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{TRAIN}\nif __name__ == '__main__':\n    train()\n")
    first, second = nodes.all
    cell = first.launch("train")
    done = second.host.run(
        sys.executable, "-m", "accel_nb.cli", "launch", "--num-nodes", "2", "--node-rank", "1", "--master-addr",
        "10.77.0.1", "--use-port", PORT, "--num-processes", "2", "--device", "cpu", script, timeout_s=DEADLINE_S,
    )  # fmt: skip

    executed = first.collect(cell)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 3 on node 1 eth0" in done.stdout
    assert "rank 0 on node 0" not in done.stdout
    assert shown_ranks(executed) == {"[r0]", "[r1]", "[r2]", "[r3]"}
    assert len(results(executed)) == 4
