"""What needs no Ray: room on a cluster, words about deaths, surroundings, a Ray that is not there."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import pytest

from accel_nb.errors import EngineUnavailable, NotEnoughDevices
from accel_nb.launch.engines.on_ray import actors, cluster
from accel_nb.launch.engines.on_ray.actors import ActorSet, KeptActors
from accel_nb.launch.engines.on_ray.deaths import answers, death_text
from accel_nb.launch.engines.on_ray.rank_host import surroundings_here
from accel_nb.launch.engines.on_ray.room import RayNode, needs_of_rank, shares
from accel_nb.protocol import environment
from accel_nb.protocol.commands import Surroundings

from ...launching import start

CPUS = needs_of_rank(on_gpu=False)
GPUS = needs_of_rank(on_gpu=True)


def node(name: str, *, free: Mapping[str, float], total: Mapping[str, float] | None = None, port: int = 0) -> RayNode:
    return RayNode(
        node_id=f"{name}1234567890", host=name, address="127.0.0.1", manager_port=port, total=total or free, free=free
    )


def test_ranks_go_to_as_few_nodes_as_have_room() -> None:
    nodes = [node("a", free={"CPU": 2.0}), node("b", free={"CPU": 8.0}), node("c", free={"CPU": 3.5})]

    assert shares(nodes, 1, CPUS, "it") == (1,)
    assert shares(nodes, 8, CPUS, "it") == (8,)
    assert shares(nodes, 10, CPUS, "it") == (8, 2)
    assert shares(nodes, 13, CPUS, "it") == (8, 3, 2)


def test_a_rank_on_a_gpu_needs_a_cpu_beside_it() -> None:
    nodes = [node("a", free={"CPU": 1.0, "GPU": 4.0}), node("b", free={"CPU": 8.0}), node("c", free={"GPU": 2.0})]

    assert shares(nodes, 1, GPUS, "it") == (1,)
    with pytest.raises(NotEnoughDevices, match="2 ranks need 1 CPU and 1 GPU each, and it has room for 1 now"):
        shares(nodes, 2, GPUS, "it")


def test_a_lack_of_room_names_what_each_node_has() -> None:
    nodes = [node("a", free={"CPU": 0.0}, total={"CPU": 4.0}), node("b", free={"CPU": 1.0}, total={"CPU": 2.0})]

    with pytest.raises(NotEnoughDevices) as raised:
        shares(nodes, 3, CPUS, "the Ray cluster at h:1")

    assert str(raised.value) == (
        "3 ranks need 1 CPU each, and the Ray cluster at h:1 has room for 1 now: a (Ray node a1234567) has 0 of 4 CPU "
        "free; b (Ray node b1234567) has 1 of 2 CPU free. Ask for at most 1, or add nodes."
    )


def test_a_full_cluster_is_to_be_waited_for() -> None:
    with pytest.raises(NotEnoughDevices, match=r"Wait until it is free, or add nodes\.$"):
        shares([node("a", free={}, total={"CPU": 1.0})], 1, CPUS, "it")


def test_only_some_of_many_nodes_are_listed() -> None:
    nodes = [node(f"n{number}", free={"CPU": 0.0}) for number in range(20)]

    with pytest.raises(NotEnoughDevices, match=r"n7 .*; and 12 nodes more") as raised:
        shares(nodes, 1, CPUS, "it")
    assert "n8" not in str(raised.value)


class ActorDiedError(Exception):
    """Of Ray's name."""


DIED = ActorDiedError(
    "The actor died unexpectedly before finishing this task.\n\tclass_name: RankHost\n\tpid: 26218\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was "
    "killed by the OOM killer due to high memory usage, (2) ray stop --force was called"
)
NODE_DIED = ActorDiedError(
    "The actor died unexpectedly before finishing this task.\n\tclass_name: RankHost\n"
    "The actor died because its node has died. Node Id: e815f1cc\n\tthe actor's node was terminated unexpectedly: "
    "health check failed due to missing too many heartbeats"
)


def test_the_death_of_an_actor_is_told_in_rays_words_without_its_guesses() -> None:
    assert death_text(DIED, node("a", free={}), 17, node_answers=True) == (
        "The Ray actor beside it (pid 17 at 127.0.0.1) has died. Ray says: ActorDiedError: Worker unexpectedly exits "
        "with a connection error code 2. End of file"
    )


def test_the_death_of_a_node_is_told_by_its_name() -> None:
    text = death_text(NODE_DIED, node("a", free={}), 17, node_answers=False)

    assert text.startswith("Its node, a (Ray node a1234567) at 127.0.0.1, has died, was stopped, or cannot be reached")
    assert text.endswith("health check failed due to missing too many heartbeats")


def test_what_our_own_code_has_raised_is_told_as_it_is() -> None:
    error = ActorDiedError("a long traceback")
    error.cause = ValueError("no way")  # type: ignore[attr-defined]  # as Ray's RayTaskError has it

    assert death_text(error, node("a", free={}), 17, node_answers=True) == "It has failed: no way"


def test_a_node_answers_as_long_as_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = node("a", free={}, port=listener.getsockname()[1])
        assert answers(there)
    assert not answers(there)


def test_ranks_see_the_devices_of_their_actor_and_none_of_rays_debugger() -> None:
    kernels = {"CUDA_VISIBLE_DEVICES": "5", "HOME": "/h", "PYTHONBREAKPOINT": "ray.util.rpdb._driver_set_trace"}
    own = {"CUDA_VISIBLE_DEVICES": "2,3", "HOME": "/other", "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace"}

    assert around(kernels, own) == {"CUDA_VISIBLE_DEVICES": "2,3", "HOME": "/h"}
    assert around({"PYTHONBREAKPOINT": "mine.trace"}, {}) == {"PYTHONBREAKPOINT": "mine.trace"}


def around(kernels: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    given = Surroundings(
        variables=environment.to_bytes(kernels), cwd=b"/", sys_path=(), argv=(), umask=0o22, locale="C"
    )
    return environment.from_bytes(surroundings_here(given, own, ("CUDA_VISIBLE_DEVICES",)).variables)


class _Actors(ActorSet):
    """A set that needs no cluster."""

    def __init__(self) -> None:
        self.shares, self.needs, self.killed = (2,), dict(CPUS), False

    def lives(self) -> bool:
        return not self.killed

    def kill(self) -> None:
        self.killed = True


def test_kept_actors_are_used_again_but_not_when_they_may_be_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, idle = KeptActors(), _Actors()
    kept.keep(idle)
    assert kept.take((2,), CPUS) is idle
    assert kept.take((2,), CPUS) is None

    monkeypatch.setattr(actors, "_SURELY_KEPT_S", 0.0)
    kept.keep(idle)

    assert kept.take((2,), CPUS) is None
    assert idle.killed


def test_actors_of_another_shape_are_let_go() -> None:
    kept, idle = KeptActors(), _Actors()
    kept.keep(idle)

    assert kept.take((1, 1), CPUS) is None
    assert idle.killed


def test_without_ray_the_line_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda _: None)

    with pytest.raises(EngineUnavailable) as raised:
        start(print, backend="ray")

    assert str(raised.value) == "backend='ray' needs Ray, which is not installed here: pip install 'accel-nb[ray]'."
