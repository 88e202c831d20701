"""How this machine reaches the place where nodes meet: tried from here, before anything starts."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import NamedTuple

import psutil

from ....errors import InvalidArgument, PlanError, PortInUse
from ...planning.nodes import MeetingPoint
from ...planning.ports import owner_of


class Way(NamedTuple):
    """From this machine to the meeting point."""

    address: str
    """Of the meeting point, in numbers."""
    own: str
    """The address of this machine from which it is reached, and at which others reach this machine."""
    interface: str
    """The network interface that has it."""
    is_here: bool
    """The meeting point is on this machine."""


def find_way(point: MeetingPoint) -> Way:
    """Look it up. Raises `InvalidArgument` for an address that cannot be meant, `PlanError` where there is no way."""
    address = _resolved(point)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Sends nothing: the system chooses the route, and with it the address and the interface.
            probe.connect((address, point.port))
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise PlanError(
            f"master_addr={point.host!r}: there is no way from this machine, {described()}, to {address} "
            f"({error.strerror}). Give an address of node 0 in a network that all nodes share."
        ) from error
    interfaces = {known.address: name for name, all_of in psutil.net_if_addrs().items() for known in all_of}
    is_here = address in interfaces
    if point.backend == "static" and point.node_rank == 0 and not is_here:
        raise PlanError(
            f"node_rank=0 is the machine at master_addr={point.host!r}, and this machine has no such address: it is "
            f"{described()}. Give an address of node 0 on every node, or the right node_rank on this one."
        )
    return Way(address, own, interfaces.get(own, ""), is_here)


def listen(address: str, port: int, what: str) -> socket.socket:
    """A socket that listens there; port 0: the system chooses. `what` names the port for a reader. The caller owns it.

    Raises `PortInUse`, whose text says who has it as far as this user may know, and `PlanError`.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"{what} cannot be used: {address}:{port} is taken by {owner_of(port)}. End that process, or give "
                "another port on every node."
            ) from error
        raise PlanError(f"{what} cannot be used: {address}:{port}: {error.strerror}. Give another one.") from error
    return listener


def described() -> str:
    """This machine: ``host-1 (10.77.0.2 on eth0)``."""
    found = [
        f"{known.address} on {name}"
        for name, all_of in psutil.net_if_addrs().items()
        for known in all_of
        if known.family == socket.AF_INET and not ipaddress.ip_address(known.address).is_loopback
    ]
    return f"{socket.gethostname()} ({', '.join(found) or 'which has no network'})"


def _resolved(point: MeetingPoint) -> str:
    try:
        found = socket.getaddrinfo(point.host, point.port, socket.AF_INET, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise PlanError(
            f"master_addr={point.host!r}: this machine, {described()}, does not know that name ({error}). "
            "Give the address of node 0 in numbers."
        ) from error
    address = str(found[0][4][0])
    if ipaddress.ip_address(address).is_loopback:
        raise InvalidArgument(
            f"master_addr={point.host!r} is {address} here, this very machine only; give an address of node 0 that the "
            f"other nodes reach. This machine is {described()}."
        )
    return address
