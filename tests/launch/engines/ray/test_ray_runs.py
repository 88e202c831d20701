"""Launches on a Ray cluster: results, output, errors, stops, and actors that are kept. In an order in which few have to
wait for new actors.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from accel_nb import RunFailed
from accel_nb.errors import InvalidArgument, NotEnoughDevices, PlanError, RunStopped
from accel_nb.launch import engines
from accel_nb.launch.engines.on_ray.actors import KEPT
from accel_nb.launch.run import Run
from tests.notebook_kernel import NotebookKernel

from ...census import expect_gone, id_of, until_up, wait_until
from ...launching import Launched, launch, on_ranks, start
from .simulated import SimulatedCluster

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300), pytest.mark.usefixtures("cluster")]

OVER_S = 120
"""Only so that a hang fails its own test."""


def on_ray(function: Callable[..., object], *args: object, **options: Any) -> Launched:  # noqa: ANN401  see `start`
    return launch(function, *args, backend="ray", num_processes=4, **options)


def actors_of(run: Run) -> set[int]:
    """The processes of Ray's that hold the ranks of a run under way."""
    above = [psutil.Process(rank.pid).parents() for rank in run.state.ranks.values()]
    return {one.pid for parents in above for one in parents if one.name().startswith("ray::")}


def meets() -> tuple[dict[str, str], float]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    print(f"met as {os.environ['RANK']}")
    print("the rest", end="")
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    return {name: os.environ[name] for name in names}, total.item()


def sleeps() -> None:
    print("up", flush=True)
    time.sleep(1000)


def pid_of_actor() -> int:
    return next(one.pid for one in psutil.Process().parents() if one.name().startswith("ray::"))


def size_of(data: bytes) -> tuple[int, int]:
    return len(data), sum(data[:: 1 << 20])


def fails_on_rank_2() -> None:
    if os.environ["RANK"] == "2":
        raise ValueError("rank two is bad")
    time.sleep(1000)


def fails_once() -> str:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "3":
        raise OSError("the first time")
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def breakpoint_hook() -> str | None:
    return os.environ.get("PYTHONBREAKPOINT")


def test_ranks_on_three_nodes_meet_and_give_back_results_by_rank() -> None:
    launched = on_ray(meets)

    places = [value[0] for value in launched.values]
    assert [place["RANK"] for place in places] == ["0", "1", "2", "3"]
    assert [(place["GROUP_RANK"], place["LOCAL_RANK"]) for place in places] == [
        ("0", "0"), ("0", "1"), ("1", "0"), ("2", "0"),
    ]  # fmt: skip
    assert [place["LOCAL_WORLD_SIZE"] for place in places] == ["2", "2", "1", "1"]
    assert {value[1] for value in launched.values} == {10.0}


def test_output_comes_line_by_line_with_its_rank_and_is_in_the_files() -> None:
    launched = on_ray(meets)

    for rank in range(4):
        assert f"[r{rank}] met as {rank}\n" in launched.text
        assert launched.run.logs(rank) == f"met as {rank}\nthe rest"
    assert "repeated" not in launched.text
    assert {rank.node for rank in launched.run.state.plan.ranks} == {0, 1, 2}  # type: ignore[union-attr]
    assert (launched.run.log_dir / "run.jsonl").stat().st_size > 0


def test_the_next_launch_is_served_by_the_actors_that_are_there() -> None:
    first = on_ray(pid_of_actor).values
    begun_s = time.monotonic()
    second = on_ray(pid_of_actor).values
    print(f"second launch on the warm cluster: {time.monotonic() - begun_s:.2f} s")

    assert second == first
    assert len(set(first)) == 3


def test_a_big_payload_reaches_all_ranks() -> None:
    data = bytes(range(256)) * (1 << 17)

    assert set(on_ray(size_of, data).values) == {(len(data), sum(data[:: 1 << 20]))}


def test_ranks_do_not_get_rays_debugger() -> None:
    assert set(on_ray(breakpoint_hook).values) == {None}


def test_an_error_names_the_rank_and_stops_the_others() -> None:
    failure = on_ray(fails_on_rank_2).failure

    assert failure.rank == 2
    assert "ValueError: rank two is bad" in str(failure)
    assert type(failure.__cause__).__name__ == "ValueError"


def test_a_failed_run_is_started_again_on_the_same_actors() -> None:
    assert on_ray(fails_once, max_restarts=1).values == ["1", "1", "1", "1"]


def test_stop_ends_all_ranks_and_keeps_the_actors() -> None:
    run = until_up(start(sleeps, backend="ray", num_processes=4))
    ranks = {id_of(rank.pid) for rank in run.state.ranks.values()}
    actors = actors_of(run)
    begun_s = time.monotonic()

    run.stop()

    assert run.wait(OVER_S)
    print(f"stopped within {time.monotonic() - begun_s:.2f} s")
    with pytest.raises(RunStopped):
        run.result()
    expect_gone(ranks)
    assert set(on_ray(pid_of_actor).values) == actors


def test_stacks_of_ranks_on_all_nodes() -> None:
    run = until_up(start(sleeps, backend="ray", num_processes=4))

    stacks = run.stacks()

    run.stop(0.0)
    assert run.wait(OVER_S)
    assert set(stacks) == {0, 1, 2, 3}
    assert all("in sleeps" in text for text in stacks.values())


def test_a_killed_rank_is_the_cause() -> None:
    run = until_up(start(sleeps, backend="ray", num_processes=4))

    os.kill(run.state.ranks[1].pid, signal.SIGKILL)

    assert run.wait(OVER_S)
    with pytest.raises(RunFailed, match="rank 1 of 4") as raised:
        run.result()
    assert raised.value.cause.signal == "SIGKILL"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"num_processes": 9}, r"9 ranks need 1 CPU each, and the Ray cluster at .* has room for 4 now: .*2 of 2 CPU"),
        ({"device": "cuda"}, "no cuda device can be used on the Ray cluster at"),
        ({"dry_run": True}, "dry_run=True is not possible with backend='ray'"),
    ],
)
def test_what_the_cluster_cannot_do_is_refused_before_anything_starts(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        start(sleeps, backend="ray", **{"num_processes": 2, **options})


def test_lacking_room_is_a_lack_of_devices() -> None:
    with pytest.raises(NotEnoughDevices, match=r"Ask for at most 4, or add nodes\."):
        start(sleeps, backend="ray", num_processes=5)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"use_port": 29500}, "use_port=29500 is not possible with backend='ray': the ranks meet on a node"),
        ({"device": "mps"}, "device='mps' is not possible with backend='ray'; allowed: 'auto', 'cpu', 'cuda'"),
        ({"start_method": "spawn"}, "start_method='spawn' is not possible with backend='ray'"),
    ],
)
def test_arguments_without_a_meaning_on_ray_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        start(sleeps, backend="ray", **options)


def test_kept_actors_are_let_go_with_their_room() -> None:
    actors = {id_of(pid) for pid in on_ray(pid_of_actor).values}

    assert engines.let_go() == ["3 Ray actors for 4 ranks"]

    expect_gone(actors, 30)
    assert engines.let_go() == []
    wait_until(lambda: _num_groups() == 0, 30, lambda: f"{_num_groups()} placement groups")


def test_a_notebook_trains_on_the_cluster_and_leaves_nothing_behind() -> None:
    engines.let_go()  # of this process, for room
    kernel = NotebookKernel()
    try:
        code = (
            "from accel_nb import notebook_launcher\nfrom tests.launch.engines.ray.test_ray_runs import pid_of_actor\n"
        )
        kernel.ok(f"import sys; sys.path.append({str(Path.cwd())!r})\n{code}")
        cell = "list(notebook_launcher(pid_of_actor, num_processes=2, device='cpu', backend='ray'))"
        before = kernel.value("dict(__import__('os').environ)")
        first, second = kernel.value(cell, OVER_S), kernel.value(cell, OVER_S)
        assert kernel.value("dict(__import__('os').environ)") == before
        assert isinstance(first, list)
        actors = {id_of(pid) for pid in first}
    finally:
        kernel.shutdown()

    assert second == first
    expect_gone(actors, 30)
    wait_until(lambda: _num_groups() == 0, 30, lambda: f"{_num_groups()} placement groups")


def test_a_dead_actor_is_explained() -> None:
    run = until_up(start(sleeps, backend="ray", num_processes=4))
    ranks = {id_of(rank.pid) for rank in run.state.ranks.values()}
    node = run.state.plan.ranks[2]  # type: ignore[union-attr]
    actor = next(one.pid for one in psutil.Process(run.state.ranks[2].pid).parents() if one.name().startswith("ray::"))

    os.kill(actor, signal.SIGKILL)

    assert run.wait(OVER_S)
    with pytest.raises(RunFailed) as raised:
        run.result()
    assert raised.value.rank == 2
    message = raised.value.cause.message
    assert f"rank 2 on {node.host} (Ray node " in message
    assert f"The Ray actor beside it (pid {actor}" in message
    assert "Ray says: ActorDiedError: Worker unexpectedly exits" in message
    expect_gone(ranks)
    assert not KEPT.held()


def test_a_dead_node_is_the_cause_and_named(cluster: SimulatedCluster) -> None:
    run = until_up(start(sleeps, backend="ray", num_processes=4))
    ranks = {id_of(rank.pid) for rank in run.state.ranks.values()}
    node_id = _node_of(run, 3)
    begun_s = time.monotonic()

    cluster.kill(node_id)

    assert run.wait(OVER_S)
    print(f"the node's death was explained within {time.monotonic() - begun_s:.2f} s")
    with pytest.raises(RunFailed) as raised:
        run.result()
    assert raised.value.rank == 3
    message = raised.value.cause.message
    assert f"(Ray node {node_id[:8]})" in message
    assert "has died, was stopped, or cannot be reached any more. Ray says: Actor" in message
    expect_gone(ranks, 30)
    cluster.add(1)


def test_this_process_is_as_it_was() -> None:
    assert "PYTHONBREAKPOINT" not in os.environ
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert "ray" in sys.modules
    assert on_ranks(pid_of_nobody) == [0, 1]


def pid_of_nobody() -> int:
    return int(os.environ["RANK"])


def _num_groups() -> int:
    from ray.util.placement_group import placement_group_table

    return sum(group["state"] != "REMOVED" for group in placement_group_table().values())


def _node_of(run: Run, rank: int) -> str:
    """Ray's id of it."""
    parents = psutil.Process(run.state.ranks[rank].pid).parents()
    raylet = next(one for one in parents if one.name() == "raylet")
    return next(word.partition("=")[2] for word in raylet.cmdline() if word.startswith(("--node-id=", "--node_id=")))
