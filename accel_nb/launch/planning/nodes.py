"""What a call says about several machines: refused, or where their nodes meet. Pure: nothing is looked up here."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

import msgspec
from msgspec.structs import replace

from ...errors import InvalidArgument, PlanError
from ...protocol.plan import LaunchRequest, RankPlan

LOOPBACK = "127.0.0.1"

RENDEZVOUS_BACKENDS = ("static", "c10d")
"""Of torch.distributed.elastic; those that need no server of their own."""
_SETTINGS = {
    "static": ("timeout",),
    "c10d": (
        "join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "read_timeout",
        "keep_alive_interval", "keep_alive_max_attempt",
    ),
}  # fmt: skip
"""What torch's handlers read from ``rdzv_conf`` (``static_tcp_rendezvous.py``, ``dynamic_rendezvous.py``,
``c10d_rendezvous_backend.py`` of torch 2.6 to 2.13) and we do not set ourselves: all of them whole numbers.
"""
SEVERAL_NODES, ONE_NODE = "elastic", "local"
"""Names of the engines that ``backend="auto"`` means."""
NO_ID = "none"
"""Upstream's default of ``rdzv_id``: nobody has chosen one."""


class MeetingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where the nodes of a launch meet, and by which of torch's rendezvous."""

    num_nodes: int
    node_rank: int
    """As given. With c10d the rendezvous decides, and this is only what the call says."""
    backend: str
    host: str
    port: int
    id: str = NO_ID
    settings: dict[str, int] = {}

    @property
    def shown(self) -> str:
        """``10.77.0.1:29500``."""
        return f"{self.host}:{self.port}"


def check_nodes(request: LaunchRequest) -> None:
    """Raises `InvalidArgument` for values that are never right together, `PlanError` for what cannot be combined."""
    num_nodes, node_rank = request.num_nodes, request.node_rank
    if not _is_whole(num_nodes) or num_nodes < 1:
        raise InvalidArgument(f"num_nodes={num_nodes!r}: give a whole number of at least 1.")
    if not _is_whole(node_rank) or not 0 <= node_rank < num_nodes:
        last = "0, since num_nodes is 1" if num_nodes == 1 else f"a whole number from 0 to {num_nodes - 1}"
        raise InvalidArgument(f"node_rank={node_rank!r}: give {last}.")
    if num_nodes == 1:
        _refuse_for_one_node(request)
    else:
        _refuse_for_several(request)
        meeting_point(request)


def meeting_point(request: LaunchRequest) -> MeetingPoint:
    """Where the nodes of a launch over several machines meet. Raises `InvalidArgument`."""
    _check_backend(request)
    if not str(request.rdzv_id).strip():
        raise InvalidArgument(f"rdzv_id={request.rdzv_id!r}: give a word, the same on every node, or leave it out.")
    host, port = _endpoint(request)
    if is_loopback_name(host):
        raise InvalidArgument(
            f"{_where(request)}: {host} is this very machine for each of the {request.num_nodes} nodes; give an "
            "address of node 0 that the others reach (hostname -I shows those of a machine)."
        )
    return MeetingPoint(
        num_nodes=request.num_nodes,
        node_rank=request.node_rank,
        backend=request.rdzv_backend,
        host=host,
        port=port,
        id=request.rdzv_id,
        settings=_settings(request.rdzv_backend, request.rdzv_conf or {}),
    )


def engine_name(request: LaunchRequest) -> str:
    """What starts the ranks."""
    if request.backend != "auto":
        return request.backend
    return ONE_NODE if request.num_nodes == 1 else SEVERAL_NODES


def on_all_nodes(own: tuple[RankPlan, ...], request: LaunchRequest) -> tuple[RankPlan, ...]:
    """The ranks of all nodes, each of which has as many as this one, `own`. What others compute on is not known yet."""
    if request.num_nodes == 1:
        return own
    return tuple(
        replace(rank, rank=node * len(own) + rank.rank, node=node, host=rank.host if node == request.node_rank else "")
        for node in range(request.num_nodes)
        for rank in own
    )


def nodes_reasons(request: LaunchRequest) -> tuple[str, ...]:
    """What is to be said about the nodes."""
    if request.num_nodes == 1:
        return ()
    point = meeting_point(request)
    decides = " (the rendezvous numbers the nodes)" if point.backend == "c10d" else ""
    who = f"{request.num_nodes} nodes of {request.num_processes} ranks each"
    how = f"by torch's {point.backend!r} rendezvous{decides}"
    return (f"{who} meet at {point.shown}, {how}; this is node {request.node_rank}.",)


def is_loopback_name(host: str) -> bool:
    return host in ("localhost", "::1", "0.0.0.0", "::") or host.startswith("127.")  # noqa: S104  refused, not bound


def _check_backend(request: LaunchRequest) -> None:
    if request.rdzv_backend not in RENDEZVOUS_BACKENDS:
        allowed = " and ".join(map(repr, RENDEZVOUS_BACKENDS))
        raise InvalidArgument(f"rdzv_backend={request.rdzv_backend!r} is not known; there are {allowed}.")


def _refuse_for_one_node(request: LaunchRequest) -> None:
    _check_backend(request)
    if request.backend in ("mpi", "ray") and request.rdzv_backend != "static":
        raise InvalidArgument(
            f"rdzv_backend={request.rdzv_backend!r} is not possible with backend={request.backend!r}, whose ranks meet "
            "in a way of their own: leave rdzv_backend out."
        )
    # On one machine both kinds of rendezvous come to the same: there is nobody to wait for.
    unsaid = {
        "rdzv_endpoint": (request.rdzv_endpoint, ""),
        "rdzv_conf": (request.rdzv_conf or None, None),
        "rdzv_id": (request.rdzv_id, NO_ID),
    }
    for name, (value, allowed) in unsaid.items():
        if value != allowed:
            raise InvalidArgument(
                f"{name}={value!r} is about several machines, and num_nodes is 1: leave {name} out, or give num_nodes."
            )
    # With MPI it is the address at which the other hosts reach this one.
    if not is_loopback_name(str(request.master_addr)) and request.backend != "mpi":
        raise InvalidArgument(
            f"master_addr={request.master_addr!r} is about several machines, and num_nodes is 1: ranks of one machine "
            f"meet at {LOOPBACK}; leave master_addr out, or give num_nodes."
        )
    if request.backend == "elastic":
        raise InvalidArgument("backend='elastic' is for several machines: give num_nodes, or leave backend out.")


def _refuse_for_several(request: LaunchRequest) -> None:
    what = f"num_nodes={request.num_nodes}"
    if request.backend == "local":
        raise InvalidArgument(f"{what} and backend='local' contradict each other: leave one of them out.")
    if request.backend not in ("auto", "elastic"):
        raise InvalidArgument(
            f"{what} is for machines that each make this call, and backend={request.backend!r} starts the ranks of all "
            "machines from one: leave one of them out."
        )
    if request.dry_run:
        raise PlanError(f"dry_run=True looks at one machine: leave out {what}.")
    if request.device == "tpu":
        raise PlanError(f"{what} and device='tpu': several TPU hosts are not part of this version.")
    if request.num_processes is None:
        raise InvalidArgument(
            f"{what} needs num_processes, the number of ranks on each machine, which must be the same on all of them."
        )


def _endpoint(request: LaunchRequest) -> tuple[str, int]:
    """``rdzv_endpoint``, else ``master_addr`` and ``use_port``."""
    said_address = not is_loopback_name(str(request.master_addr))
    if not request.rdzv_endpoint:
        if not request.use_port or not str(request.use_port).isdecimal():
            raise InvalidArgument(
                f"num_nodes={request.num_nodes} needs use_port, a port of node 0 that is free and that the other nodes "
                "reach; the same number on every node."
            )
        return str(request.master_addr), int(request.use_port)
    host, _, port = str(request.rdzv_endpoint).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InvalidArgument(f"rdzv_endpoint={request.rdzv_endpoint!r}: write address:port, as in '10.0.0.1:29500'.")
    other = (said_address and request.master_addr != host) or (request.use_port and int(request.use_port) != int(port))
    if other:
        raise InvalidArgument(
            f"rdzv_endpoint={request.rdzv_endpoint!r} and master_addr={request.master_addr!r}, "
            f"use_port={request.use_port!r} name different places: give one of them."
        )
    return host, int(port)


def _where(request: LaunchRequest) -> str:
    if request.rdzv_endpoint:
        return f"rdzv_endpoint={request.rdzv_endpoint!r} with num_nodes={request.num_nodes}"
    return f"master_addr={request.master_addr!r} with num_nodes={request.num_nodes}"


def _settings(backend: str, given: Mapping[str, object]) -> dict[str, int]:
    known = _SETTINGS[backend]
    settings = {}
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f" (nearest: {near[0]!r})" if near else ""
            raise InvalidArgument(
                f"rdzv_conf: {name!r} is not known of rdzv_backend={backend!r}{hint}; allowed: {', '.join(known)}."
            )
        text = str(value)
        if not text.isdecimal() or int(text) < 1:
            raise InvalidArgument(f"rdzv_conf: {name} is {value!r}; give a whole number of at least 1.")
        settings[name] = int(text)
    return settings


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
