"""This process's connection to a Ray cluster: the user's, that of RAY_ADDRESS, or one of its own on this machine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from importlib.util import find_spec

from ....errors import EngineUnavailable
from ....protocol import environment
from ...planning.nodes import LOOPBACK
from .room import RayNode

ADDRESS = "RAY_ADDRESS"
_CLIENT = "ray://"
_TRIES = 3
_TOO_SLOW = "timed out during startup"
"""Ray gives its own helper processes 15 s to start, which on a busy machine is too short."""


def ray_problem() -> str:
    """Why there is no Ray to be used; empty: it is installed. Imports nothing."""
    spec = find_spec("ray")
    if spec is not None and spec.origin is not None:
        return ""
    return "backend='ray' needs Ray, which is not installed here: pip install 'accel-nb[ray]'."


class Connection:
    """Of this process, which is a driver of Ray's. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._joining: _Joining | None = None

    def join(self) -> str:
        """Connect, unless the user has; what to call the cluster. Raises EngineUnavailable."""
        if problem := ray_problem():
            raise EngineUnavailable(problem)
        with environment.restored("RAY_"):
            import ray
        if not ray.is_initialized():
            with self._lock:
                if self._joining is None or self._joining.is_over:
                    if self._joining is not None:
                        self._joining.leave()
                    self._joining = _Joining(environment.current().get(ADDRESS, ""))
                joining = self._joining
            joining.wait()
        return f"the Ray cluster at {ray.get_runtime_context().gcs_address}"

    def nodes(self) -> list[RayNode]:
        """Those that Ray counts as alive, this process's first."""
        import ray
        from ray._private.state import available_resources_per_node  # what Ray's own libraries use; no public one

        free: Mapping[str, Mapping[str, float]] = available_resources_per_node()
        own = ray.get_runtime_context().get_node_id()
        found = [
            RayNode(
                node_id=node["NodeID"],
                host=node["NodeManagerHostname"],
                address=node["NodeManagerAddress"],
                manager_port=node["NodeManagerPort"],
                total=node["Resources"],
                free=free.get(node["NodeID"], {}),
            )
            for node in ray.nodes()
            if node["Alive"]
        ]
        return sorted(found, key=lambda node: node.node_id != own)

    def address(self) -> str:
        """Of this machine, where all nodes of the cluster can reach it."""
        import ray

        own = str(ray.util.get_node_ip_address())
        return own if any(node.address != own for node in self.nodes()) else LOOPBACK

    def leave(self) -> None:
        """Disconnect; a cluster of this process's own ends. Does nothing where the user has connected, or nobody."""
        with self._lock:
            joining, self._joining = self._joining, None
        if joining is not None:
            joining.leave()


class _Joining:
    """One connection of our own making, held by a thread of its own: what Ray starts dies with the thread that has
    started it, and only in a main thread does Ray replace the handlers of signals, which are the kernel's.
    """

    def __init__(self, address: str) -> None:
        """`address`: as in RAY_ADDRESS; empty: a new cluster on this machine."""
        self._address = address
        self._error: Exception | None = None
        self._joined = threading.Event()
        self._to_leave = threading.Event()
        self._thread = threading.Thread(target=self._hold, name="accel_nb ray", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Where Ray is not connected: it was, or could not."""
        return self._joined.is_set()

    def wait(self) -> None:
        """Until it is there. Raises EngineUnavailable."""
        self._joined.wait()
        if self._error is None:
            return
        if not self._address:
            raise EngineUnavailable(
                f"Ray could not start a cluster on this machine: {_one_line(self._error)} Ray's logs are in "
                "session_latest/logs of its temporary folder."
            ) from self._error
        raise EngineUnavailable(
            f"{ADDRESS}={self._address!r}: Ray could not connect: {_one_line(self._error)} Take {ADDRESS} out of the "
            "environment, and Ray starts a cluster on this machine."
        ) from self._error

    def leave(self) -> None:
        self._to_leave.set()
        self._thread.join()

    def _hold(self) -> None:
        try:
            self._init()
        except Exception as error:  # noqa: BLE001  told by `wait`, in the thread that asked
            self._error = error
            _shut_down()
            return
        finally:
            self._joined.set()
        self._to_leave.wait()
        _shut_down()

    def _init(self) -> None:
        import ray

        if self._address.startswith(_CLIENT):
            raise ConnectionError(
                "Ray Client is not enough, as the ranks are watched from here. Run the notebook on a node of the "
                f"cluster, with {ADDRESS}=auto."
            )
        with environment.restored("PYTHONBREAKPOINT"), environment.restored("RAY_"):
            if self._address:
                ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
            else:
                _start_cluster()


def _start_cluster() -> None:
    import ray

    for left in reversed(range(_TRIES)):
        try:
            ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray has no class for it
            if not left or _TOO_SLOW not in str(error):
                raise
            ray.shutdown()
        else:
            return


def _shut_down() -> None:
    import ray

    ray.shutdown()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if text.endswith(".") else f"{text}."


CONNECTION = Connection()
