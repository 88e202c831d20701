"""The listening socket of a run's store: held from the moment its port is known until the store takes it over."""

from __future__ import annotations

import errno
import socket

import psutil

from ...errors import PlanError, PortInUse
from .nodes import LOOPBACK


def bind_loopback(port: int | None) -> socket.socket:
    """A socket that listens on `port` of the loopback interface; the system chooses the port for None.

    The caller owns it: nobody else can take the port while it is open. Raises `PortInUse`, whose text says who has the
    port as far as this user may know, and `PlanError` for a port that needs privileges.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # Connections of an earlier run that linger in TIME_WAIT are no reason to refuse; a listener still is.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port or 0))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if port is not None and error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"use_port={port} cannot be used: {LOOPBACK}:{port} is taken by {owner_of(port)}. "
                "End that process or give another port; leave use_port out and a free port is chosen."
            ) from error
        if port is not None and error.errno == errno.EACCES:
            raise PlanError(
                f"use_port={port} cannot be used: ports below 1024 need privileges on this machine. "
                "Leave use_port out and a free port is chosen."
            ) from error
        raise
    return listener


def owner_of(port: int) -> str:
    """Who listens on `port`, as far as this user may know."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return "a process that cannot be named here"
    users = [c.pid for c in connections if c.laddr and c.laddr.port == port and c.status == psutil.CONN_LISTEN]
    users += [c.pid for c in connections if c.laddr and c.laddr.port == port and c.status != psutil.CONN_LISTEN]
    for pid in users:
        if pid:
            return f"pid {pid} ({_command(pid)})"
    return "a process of another user or another container"


def _command(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return " ".join(process.cmdline())[:200] or process.name()
    except psutil.Error:
        return "command unknown"
