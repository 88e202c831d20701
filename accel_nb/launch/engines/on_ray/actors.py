"""Sets of actors on a Ray cluster, each with its room (a placement group), kept from one launch to the next.

launch ── take ──▶ the idle set, if it fits and lives, else a new one ── hold ──▶ RankHost, one per share of ranks
run ends ── keep ──▶ idle, until the next launch, `let_go`, the kernel's end, or IDLE_S without a launch
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....errors import StartError
from .deaths import answers, death_text, rays_words
from .rank_host import RankHost
from .room import CPU, GPU, RayNode

IDLE_S = 600.0
"""A set without a launch gives its room back after so long: others wait for it."""
_SURELY_KEPT_S = IDLE_S - 60.0
"""A set is used again within this only: later it might be giving its room back just then."""
_ROOM_S = 10.0
"""For room that was free a moment ago."""
FREED_S = 5.0
"""Ray counts the room of actors that were ended as free after a moment; not later than this."""
_LOOK_S = 0.2
"""Asking Ray whether a call has ended takes 0.1 ms."""


class ActorSet:
    """One actor per share. Used by one thread at a time."""

    def __init__(self, shares: Sequence[int], needs: Mapping[str, float], visibility: Sequence[str]) -> None:
        """Ask for room and actors; waits for neither."""
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.shares = tuple(shares)
        self.needs = dict(needs)
        self.job = ray.get_runtime_context().get_job_id()
        self.nodes: tuple[RayNode, ...] = ()
        """Where each actor is; known once it is ready."""
        self.pids: tuple[int, ...] = ()
        self._group = placement_group([{n: a * share for n, a in needs.items()} for share in shares], "PACK")
        actor = ray.remote(RankHost)
        self._actors = [
            actor.options(
                num_cpus=needs.get(CPU, 0.0) * share,
                num_gpus=needs.get(GPU, 0.0) * share,
                max_concurrency=2,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=number),
            ).remote(IDLE_S, tuple(visibility))
            for number, share in enumerate(shares)
        ]
        self._where = [one.where.remote() for one in self._actors]

    def wait(self, nodes: Sequence[RayNode], start_s: float, cancelled: Callable[[], bool]) -> None:
        """Until all actors are there. Raises StartError, also when `cancelled`."""
        import ray

        begun_s = time.monotonic()
        while True:
            ready, rest = ray.wait(self._where, num_returns=len(self._where), timeout=_LOOK_S)
            waited_s = time.monotonic() - begun_s
            for one in ready:
                self._check_start(one)
            if not rest:
                break
            if cancelled():
                raise StartError("stopped while Ray started the actors")
            if waited_s > _ROOM_S and not self._has_room():
                raise StartError(
                    f"Ray has not found room for actors with {self._listing()} within {waited_s:.0f} s, though it was "
                    "free when the run was planned: somebody else has taken it."
                )
            if waited_s > start_s:
                raise StartError(
                    f"{len(rest)} of {len(self._where)} Ray actors have not started within {waited_s:.0f} s. If they "
                    "only are slow, pass timeouts=Timeouts(start_s=...)."
                )
        by_id = {node.node_id: node for node in nodes}
        found = ray.get(self._where)
        self.nodes = tuple(by_id[node_id] for node_id, _ in found)
        self.pids = tuple(pid for _, pid in found)

    def hold(self, summons: Sequence[bytes], payload: object) -> Calls:
        """Have each actor hold the ranks of its summons. `payload`: a reference to it in Ray's object store."""
        calls = [actor.hold.remote(one, payload) for actor, one in zip(self._actors, summons, strict=True)]
        return Calls(self, calls)

    def lives(self) -> bool:
        """Whether all actors answer, within moments."""
        import ray

        if not ray.is_initialized() or ray.get_runtime_context().get_job_id() != self.job:
            return False
        calls = [actor.where.remote() for actor in self._actors]
        ready, rest = ray.wait(calls, num_returns=len(calls), timeout=_ROOM_S)
        return not rest and not any(map(_error_of, ready))

    def kill(self) -> None:
        """End the actors and give the room back, now."""
        import ray
        from ray.util.placement_group import remove_placement_group

        if ray.is_initialized() and ray.get_runtime_context().get_job_id() == self.job:
            for actor in self._actors:
                ray.kill(actor)
            remove_placement_group(self._group)

    def _has_room(self) -> bool:
        from ray.util.placement_group import placement_group_table

        return bool(placement_group_table(self._group)["state"] == "CREATED")

    def _check_start(self, call: object) -> None:
        error = _error_of(call)
        if error is None:
            return
        missing = "No module named 'accel_nb'"
        if missing in str(error):
            raise StartError(
                "A node of the Ray cluster does not have accel_nb. Install the same version, with the same torch, on "
                "all nodes: pip install 'accel-nb[ray]'."
            ) from error
        raise StartError(f"A Ray actor could not start. Ray says: {rays_words(error)}") from error

    def _listing(self) -> str:
        return ", ".join(
            " and ".join(f"{amount * share:g} {name}" for name, amount in self.needs.items()) for share in self.shares
        )


class Calls:
    """One call of each actor of a set, under way."""

    def __init__(self, actors: ActorSet, calls: Sequence[Any]) -> None:
        self._set = actors
        self._calls = list(calls)
        self._texts: dict[int, str] = {}

    def over(self, timeout_s: float = 0.0) -> bool:
        """Whether all have ended, well or not, within that time."""
        import ray

        return not ray.wait(self._calls, num_returns=len(self._calls), timeout=timeout_s)[1]

    def failed(self) -> Mapping[int, str]:
        """Number of the actor -> why its call has failed, a sentence. Takes a moment."""
        import ray

        ended, _ = ray.wait(self._calls, num_returns=len(self._calls), timeout=0)
        for call in ended:
            number = self._calls.index(call)
            if number not in self._texts and (error := _error_of(call)) is not None:
                node = self._set.nodes[number]
                self._texts[number] = death_text(error, node, self._set.pids[number], node_answers=answers(node))
        return self._texts


class KeptActors:
    """The idle set of this process. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: ActorSet | None = None
        self._kept_s = float("-inf")
        """When it was put there, by the monotonic clock."""
        self.killed_s = float("-inf")
        """When actors were last ended, by the monotonic clock."""

    def end(self, actors: ActorSet) -> None:
        """Not to be kept."""
        self.killed_s = time.monotonic()
        actors.kill()

    def take(self, shares: Sequence[int], needs: Mapping[str, float]) -> ActorSet | None:
        """The idle set, if it is one like that and lives; any other is let go."""
        with self._lock:
            idle, self._idle = self._idle, None
            is_fresh = time.monotonic() < self._kept_s + _SURELY_KEPT_S
        if idle is None:
            return None
        if is_fresh and idle.shares == tuple(shares) and idle.needs == dict(needs) and idle.lives():
            return idle
        self.end(idle)
        return None

    def keep(self, actors: ActorSet) -> None:
        """For the next launch; the set that was kept before is let go."""
        with self._lock:
            before, self._idle = self._idle, actors
            self._kept_s = time.monotonic()
        if before is not None:
            self.end(before)

    def held(self) -> Mapping[str, Mapping[str, float]]:
        """Node -> what the idle set holds there: room for the next launch."""
        with self._lock:
            idle = self._idle
        found: dict[str, dict[str, float]] = {}
        for node, share in zip(idle.nodes, idle.shares, strict=True) if idle is not None else ():
            there = found.setdefault(node.node_id, {})
            for name, amount in idle.needs.items() if idle is not None else ():
                there[name] = there.get(name, 0.0) + amount * share
        return found

    def let_go(self) -> str:
        """End the idle set; what it was, empty when there is none."""
        with self._lock:
            idle, self._idle = self._idle, None
        if idle is None:
            return ""
        self.end(idle)
        return f"{_counted(len(idle.shares), 'Ray actor')} for {_counted(sum(idle.shares), 'rank')}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _error_of(call: object) -> Exception | None:
    """Of a call that has ended."""
    import ray

    try:
        ray.get(call)
    except Exception as error:  # noqa: BLE001  Ray's errors have no common base: its own, and those of the call
        return error
    return None


KEPT = KeptActors()
