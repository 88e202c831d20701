"""A Ray cluster whose nodes are on this machine, as Ray's own tests have it."""

from __future__ import annotations

from typing import Any

_TRIES = 4
"""A node whose helper processes need more than 15 s to start, on a busy machine, is given up by Ray."""
_STORE_BYTES = 80 << 20


class SimulatedCluster:
    """Of nodes with these numbers of CPUs, the head first. Used by the main thread: what it starts ends with that."""

    def __init__(self, *cpus: int) -> None:
        from ray.cluster_utils import Cluster

        self._cluster: Any = _tried(lambda: Cluster(initialize_head=True, head_node_args=_node(cpus[0])))
        self._nodes = {self._cluster.head_node.node_id: self._cluster.head_node}
        for number in cpus[1:]:
            self.add(number)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, cpus: int) -> None:
        node = _tried(lambda: self._cluster.add_node(**_node(cpus)))
        self._nodes[node.node_id] = node

    def kill(self, node_id: str) -> None:
        """As if its power was cut."""
        self._cluster.remove_node(self._nodes.pop(node_id), allow_graceful=False)

    def end(self) -> None:
        self._cluster.shutdown()


def _node(cpus: int) -> dict[str, object]:
    return {"num_cpus": cpus, "object_store_memory": _STORE_BYTES, "include_dashboard": False}


def _tried(start: Any) -> Any:  # noqa: ANN401  Ray is not typed here
    for left in reversed(range(_TRIES)):
        try:
            return start()
        except Exception as error:  # Ray has no class for it
            if not left or "timed out during startup" not in str(error):
                raise
    raise AssertionError("the last try returns or raises")
