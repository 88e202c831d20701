"""Where an agent is, and whether it reaches what it needs: the kernel, and the run's store on another machine."""

from __future__ import annotations

import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version_tuple

import psutil

from ....devices import find_devices
from ....protocol.version import __version__

REACH_S = 5.0
"""For one address."""


class Unreachable(Exception):
    """Nothing answers; the text says what was tried, from where, and what the system said."""


def versions() -> dict[str, str]:
    """Of what must be the same on all machines of a run."""
    found = {"Python": ".".join(python_version_tuple()[:2]), "accel_nb": __version__}
    for name in ("torch", "cloudpickle"):
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            found[name] = ""
    return found


def reach(addresses: tuple[str, ...], port: int, who: str) -> tuple[str, str]:
    """The first of `addresses` at which somebody listens, and this machine's own on the way there. `who`: for people.

    Raises Unreachable.
    """
    said: list[str] = []
    for address in addresses:
        try:
            with socket.create_connection((address, port), REACH_S) as connection:
                return address, str(connection.getsockname()[0])
        except OSError as error:
            said.append(f"{address}:{port}: {error.strerror or error}")
    raise Unreachable(
        f"{who} on {socket.gethostname()} cannot reach the notebook's kernel at {'; '.join(said)}. Its machine must be "
        "reachable from the others at that address, and no firewall may be in between."
    )


def store_problem(host: str, port: int, who: str) -> str:
    """Why the run's store cannot be reached from here; empty: it can."""
    try:
        socket.create_connection((host, port), REACH_S).close()
    except OSError as error:
        return (
            f"{who} on {socket.gethostname()} cannot reach {host}:{port}, where the ranks meet, on rank 0's machine: "
            f"{error.strerror or error}. The machines must reach each other directly, without a firewall in between."
        )
    return ""


def listen(address: str, port: int | None) -> socket.socket:
    """A socket for the run's store. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port or 0))
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def interface_of(address: str) -> str:
    """The network interface that has `address`; empty: none."""
    for name, found in psutil.net_if_addrs().items():
        if any(one.address == address for one in found):
            return name
    return ""


def place() -> str:
    """Equal in two processes when they share a machine and its network."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    network = Path("/proc/self/ns/net")
    machine = boot.read_text().strip() if boot.exists() else socket.gethostname()
    return f"{machine}/{network.readlink() if network.exists() else ''}"


def device_names() -> dict[str, tuple[str, ...]]:
    """Kind -> name of each device that its driver lists here."""
    found = {kind.kind: kind.probe() for kind in find_devices()}
    return {kind: tuple(device.name for device in devices) for kind, devices in found.items() if devices}
