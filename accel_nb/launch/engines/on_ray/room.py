"""Which nodes of a Ray cluster take how many ranks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ....errors import NotEnoughDevices

CPU, GPU = "CPU", "GPU"
"""Ray's names of the two resources."""
_SHOWN_NODES = 8


class RayNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node that Ray counts as alive."""

    node_id: str
    host: str
    address: str
    manager_port: int = 0
    """Where its raylet listens."""
    total: Mapping[str, float]
    free: Mapping[str, float]
    """Of `total`, what nobody has taken; what this kernel's own kept actors hold is free for its next launch."""

    @property
    def label(self) -> str:
        return f"{self.host} (Ray node {self.node_id[:8]})"


def needs_of_rank(*, on_gpu: bool) -> dict[str, float]:
    """What one rank takes of its node."""
    return {CPU: 1.0, GPU: 1.0} if on_gpu else {CPU: 1.0}


def shares(nodes: Sequence[RayNode], num_ranks: int, needs: Mapping[str, float], cluster: str) -> tuple[int, ...]:
    """How many ranks go together, the most first: on as few nodes as have room for them now.

    Raises NotEnoughDevices, which names what the cluster has.
    """
    rooms = sorted((room(node, needs) for node in nodes), reverse=True)
    taken: list[int] = []
    left = num_ranks
    for size in rooms:
        if left and size:
            taken.append(min(size, left))
            left -= taken[-1]
    if left:
        raise NotEnoughDevices(_lack(nodes, num_ranks, needs, cluster))
    return tuple(taken)


def room(node: RayNode, needs: Mapping[str, float]) -> int:
    """How many ranks the node can take now."""
    return int(min(node.free.get(name, 0.0) // amount for name, amount in needs.items()))


def _lack(nodes: Sequence[RayNode], num_ranks: int, needs: Mapping[str, float], cluster: str) -> str:
    each = " and ".join(f"{amount:g} {name}" for name, amount in needs.items())
    possible = sum(room(node, needs) for node in nodes)
    counted = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
    advice = f"Ask for at most {possible}" if possible else "Wait until it is free"
    return (
        f"{counted} need {each} each, and {cluster} has room for {possible} now: {_listing(nodes, needs)}. {advice}, "
        "or add nodes."
    )


def _listing(nodes: Sequence[RayNode], needs: Mapping[str, float]) -> str:
    told = [
        f"{node.label} has "
        + " and ".join(f"{node.free.get(name, 0.0):g} of {node.total.get(name, 0.0):g} {name} free" for name in needs)
        for node in nodes[:_SHOWN_NODES]
    ]
    more = len(nodes) - len(told)
    return "; ".join([*told, *([f"and {more} nodes more"] if more > 0 else [])]) or "it has no node"
