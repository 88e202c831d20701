"""Names of addresses from ``/etc/hosts`` alone, without asking a name server.

torch's TCPStore looks up the name of each address that it connects to or accepts, for its log (``formatSockAddr`` of
torch/csrc/distributed/c10d/socket.cpp, torch 2.6 to 2.13). 127.0.0.1 it knows as ``::ffff:127.0.0.1``, which
``/etc/hosts`` does not have: so each rank asks the name server. Measured: one that does not answer costs 19 s in each
launch of two ranks; one that takes many questions slowly 4 s of the 5.7 of a launch of 64.

By ``__nss_configure_lookup`` of glibc, for the whole process, which from then on does not notice when the machine's
configuration changes (glibc 2.36). Where that is missing (musl) nothing is done.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_CONFIGURATION = Path("/etc/nsswitch.conf")
_DEFAULT = "files dns"
"""What glibc takes when the configuration says nothing (nsswitch.conf(5); nss/nss_database.c of glibc 2.34)."""
_CAN_GO_BACK = (2, 33)
"""Of glibc. Earlier ones remember for ever where they looked first (``startp`` of nss/getXXbyYY_r.c)."""


def look_up_in_hosts_file() -> None:
    """From now on, for a process that never asks for names of other machines."""
    _configure("files")


@contextlib.contextmanager
def looked_up_in_hosts_file() -> Iterator[None]:
    """Within the block, in all threads; afterwards as the machine is configured. Does nothing with an old glibc."""
    if _glibc() < _CAN_GO_BACK:
        yield
        return
    _configure("files")
    try:
        yield
    finally:
        _configure(configured(_CONFIGURATION))


def configured(file: Path) -> str:
    """Where the machine looks up hosts, in the words of nsswitch.conf(5): its last line about them counts."""
    found = _DEFAULT
    with contextlib.suppress(OSError):
        for line in file.read_text(errors="replace").splitlines():
            database, _, services = line.partition("#")[0].partition(":")
            if database.strip() == "hosts" and services.strip():
                found = services.strip()
    return found


def _glibc() -> tuple[int, ...]:
    """Its version; empty with another C library."""
    with contextlib.suppress(ValueError, OSError):
        name, _, numbers = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        if name == "glibc":
            return tuple(map(int, numbers.split(".")))
    return ()


def _configure(services: str) -> None:
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).__nss_configure_lookup(b"hosts", services.encode())  # noqa: SLF001  its name in glibc
