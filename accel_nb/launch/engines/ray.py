"""Ranks on a Ray cluster, in actors that are kept for the next launch.

    kernel ── JoinedGroup ══zmq══ agent ── keeper ──▶ ranks       of each node
       └── Ray: room, actors, the payload ──▶ RankHost, nursery ──forks──┘

Ray places, transports the payload and knows about deaths; output, events, stops and results go the way of all agents.
"""

from __future__ import annotations

import mmap
import pickle
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from ...devices import find_devices
from ...errors import EngineUnavailable, InvalidArgument, NotEnoughDevices
from ...protocol import environment
from ...protocol.hardware import DeviceInfo, NodeHardware
from ...protocol.plan import LaunchPlan, LaunchRequest
from ...protocol.remote import Contact, Summons
from .engine import Attempt
from .on_ray.actors import FREED_S, KEPT, ActorSet, Calls
from .on_ray.cluster import CONNECTION, ray_problem
from .on_ray.room import CPU, GPU, RayNode, needs_of_rank, shares
from .remote.hub import Hub
from .remote.joined_group import JoinedGroup
from .remote.limits import check_limits

_LOOK_S = 0.2
"""Between two looks at what Ray knows of the actors."""
_ENDS_S = 15.0
"""Agents whose run is over end within this, or their actors are not kept."""
_KINDS = ("auto", "cpu", "cuda")
_GPU_KIND = "cuda"


class RayEngine:
    """The engine behind ``backend="ray"``."""

    name = "ray"

    def check(self, request: LaunchRequest) -> None:
        """Refuse what cannot be done on Ray; connect to its cluster, started on this machine when there is none.

        Raises EngineUnavailable, PlanError.
        """
        if problem := ray_problem():
            raise EngineUnavailable(problem)
        check_limits(request)
        _check_arguments(request)
        CONNECTION.join()

    def hardware(self, request: LaunchRequest, own: NodeHardware) -> NodeHardware:  # noqa: ARG002  of the protocol
        """What the cluster has, free or not, as one machine."""
        cluster = CONNECTION.join()
        nodes = CONNECTION.nodes()
        gpus = tuple(DeviceInfo(index=index) for index in range(int(sum(node.total.get(GPU, 0.0) for node in nodes))))
        return replace(
            own,
            host=cluster,
            cpu_count=max(1, int(sum(node.total.get(CPU, 0.0) for node in nodes))),
            devices={_GPU_KIND: gpus} if gpus else {},
            visible_ids={},
            unusable={},
            notes=(),
        )

    def check_plan(self, plan: LaunchPlan) -> None:
        """Raises NotEnoughDevices where the cluster has no room for the ranks now."""
        _room(plan.num_ranks, _needs(plan), CONNECTION.join())

    def num_tries(self) -> int:
        """Kept actors are looked at before they are used."""
        return 1

    def start(self, attempt: Attempt, cancelled: Callable[[], bool]) -> JoinedGroup:
        """Have the attempt's ranks held by actors: kept ones, or new ones, for which it waits. Raises StartError,
        NotEnoughDevices.
        """
        cluster = CONNECTION.join()
        plan = attempt.plan
        needs = _needs(plan)
        wanted = _room(plan.num_ranks, needs, cluster)
        actors = KEPT.take(wanted, needs)
        if actors is None:
            actors = ActorSet(wanted, needs, _visibility(plan.device_kind))
            try:
                actors.wait(CONNECTION.nodes(), plan.timeouts.start_s, cancelled)
            except BaseException:
                KEPT.end(actors)
                raise
        seats = _seats(wanted)
        hub: Hub | None = None
        try:
            hub = Hub([CONNECTION.address()], seats, run_id=plan.run_id)
            calls = actors.hold(_summons(attempt, hub.contact), _in_object_store(attempt))
        except BaseException:
            if hub is not None:
                hub.close()
            KEPT.end(actors)
            raise
        env = environment.without(plan.env, _visibility(plan.device_kind))
        return JoinedGroup(replace(attempt, plan=replace(plan, env=env)), hub, RayStarter(actors, seats, calls))

    def learn(self, attempt: Attempt, modules: Sequence[str]) -> None:
        """Nothing: the actors are kept as they are."""

    def let_go(self) -> str:
        """End the actors that are kept; what they were, empty when there are none."""
        return KEPT.let_go()


class RayStarter:
    """The actors of one attempt, as an `AgentStarter`."""

    def __init__(self, actors: ActorSet, seats: Sequence[Sequence[int]], calls: Calls) -> None:
        self._actors = actors
        self._seats = seats
        self._calls = calls
        self._gone: Mapping[int, str] = {}
        self._looked_s = 0.0
        self._killed = False

    def fd(self) -> int:
        return -1

    def gone(self) -> Mapping[int, str]:
        now = time.monotonic()
        if now >= self._looked_s + _LOOK_S:
            self._looked_s = now
            self._gone = self._calls.failed()
        return self._gone

    def evidence(self, seat: int) -> str:
        return self._calls.failed().get(seat, "")

    def seat_text(self, seat: int) -> str:
        ranks = self._seats[seat]
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        return f"{who} on {self._actors.nodes[seat].label}"

    def replaces(self, _seat: int) -> bool:
        return True

    def kill(self) -> None:
        self._killed = True
        KEPT.end(self._actors)

    def close(self) -> None:
        """Keep the actors, if they are as good as before."""
        if self._killed:
            return
        if self._calls.over(_ENDS_S) and not self._calls.failed():
            KEPT.keep(self._actors)
        else:
            KEPT.end(self._actors)


def _check_arguments(request: LaunchRequest) -> None:
    if request.device not in _KINDS:
        allowed = ", ".join(map(repr, _KINDS))
        raise InvalidArgument(f"device={request.device!r} is not possible with backend='ray'; allowed: {allowed}.")
    refused = {
        "devices": (request.devices, None, "Ray chooses them"),
        "use_port": (request.use_port, None, "the ranks meet on a node that Ray chooses"),
        "start_method": (request.start_method, "forkserver", "the actors' own way is the only one"),
        "num_nodes": (request.num_nodes, 1, "the cluster has its nodes already"),
    }
    for name, (value, default, why) in refused.items():
        if value != default:
            raise InvalidArgument(f"{name}={value!r} is not possible with backend='ray': {why}. Leave it out.")


def _room(num_ranks: int, needs: Mapping[str, float], cluster: str) -> tuple[int, ...]:
    """As `shares`, on the cluster as it is; waits for what was this kernel's own a moment ago."""
    while True:
        try:
            return shares(_nodes(), num_ranks, needs, cluster)
        except NotEnoughDevices:
            if time.monotonic() > KEPT.killed_s + FREED_S:
                raise
            time.sleep(_LOOK_S)


def _nodes() -> list[RayNode]:
    """Of the cluster; what the kept actors hold counts as free."""
    held = KEPT.held()
    return [replace(node, free=_sum(node.free, held.get(node.node_id, {}))) for node in CONNECTION.nodes()]


def _sum(free: Mapping[str, float], held: Mapping[str, float]) -> dict[str, float]:
    return {name: free.get(name, 0.0) + held.get(name, 0.0) for name in {*free, *held}}


def _needs(plan: LaunchPlan) -> dict[str, float]:
    return needs_of_rank(on_gpu=plan.device_kind == _GPU_KIND)


def _visibility(kind: str) -> tuple[str, ...]:
    """Variables by which accelerators of `kind` are shown and hidden."""
    return tuple(name for device in find_devices() if device.kind == kind for name in device.visibility_variables)


def _seats(wanted: Sequence[int]) -> list[tuple[int, ...]]:
    """Ranks are numbered actor by actor."""
    begins = [sum(wanted[:number]) for number in range(len(wanted))]
    return [tuple(range(begin, begin + share)) for begin, share in zip(begins, wanted, strict=True)]


def _summons(attempt: Attempt, contact: Contact) -> list[bytes]:
    return [
        msgspec.msgpack.encode(Summons(contact=contact, seat=seat, node=seat, surroundings=attempt.surroundings))
        for seat in range(len(contact.seats))
    ]


def _in_object_store(attempt: Attempt) -> object:
    """A reference to the payload there: each node fetches it once."""
    import ray

    with mmap.mmap(attempt.payload_fd, 0, prot=mmap.PROT_READ) as area:
        return ray.put(pickle.PickleBuffer(area))


ENGINE = RayEngine()
