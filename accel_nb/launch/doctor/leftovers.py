"""Processes of ours whose kernel is gone. There should be none: they end with it, unless they cannot be ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from ...protocol.diagnosis import Finding

_SERVER = "accel_nb.launch.servers.warm_server"


def leftover_pids() -> list[int]:
    """Warm servers, keepers and ranks of this user whose kernel does not live any more."""
    found = []
    for process in psutil.process_iter():
        try:
            kernel = kernel_of(process.cmdline()) if _is_ours(process) else None
            zombie = kernel is not None and process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue  # it has ended, or is not ours to look at
        if kernel is not None and not zombie and not psutil.pid_exists(kernel):
            found.append(process.pid)
    return sorted(found)


def _is_ours(process: psutil.Process) -> bool:
    """Of this user, and counted like this process: in a container of its own the kernel's number is another one."""
    return process.uids().real == os.getuid() and _counting(process.pid) == _counting(os.getpid())


def _counting(pid: int) -> str:
    """Linux's namespace of process ids; empty where there is none, or the process has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def kernel_of(command: list[str]) -> int | None:
    """The kernel for which `command` was started by `accel_nb.launch.interpreter`; None for other programs."""
    if not command or _SERVER not in command[-1]:
        return None
    try:
        _, module, _, arguments = json.loads(command[-1])
    except ValueError:
        return None
    return int(arguments[0]) if module == _SERVER else None


def findings(pids: Iterable[int]) -> Iterator[Finding]:
    listed = " ".join(map(str, pids))
    if listed:
        yield Finding(
            severity="hint",
            what=f"Processes of accel_nb are left whose kernel is gone: {listed}.",
            why="They hold memory and perhaps devices; what a driver or a network file system holds ends late.",
            remedy=f"`kill -9 {listed}`, and look at them with `ps -o pid,stat,wchan,cmd {listed}` if they stay.",
        )
