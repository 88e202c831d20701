"""Which host runs how many ranks, out of a host file as any of the MPIs writes it."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from ....errors import InvalidArgument

_SLOTS = re.compile(r"(?:slots|max_slots|max-slots|cpu|np)\s*=\s*(\d+)")
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class HostLine(msgspec.Struct, frozen=True):
    """One host of a host file."""

    host: str
    slots: int | None
    """None: the file does not say."""


class HostShare(msgspec.Struct, frozen=True):
    """One host, and how many ranks it runs."""

    host: str
    num_ranks: int
    is_here: bool = False
    """It is the kernel's own machine."""


def read_hostfile(path: str) -> list[HostLine]:
    """``host``, ``host slots=4`` (Open MPI), ``host:4`` (MPICH, Intel MPI), one a line, with ``#`` comments. Raises
    InvalidArgument.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"hostfile={path!r} cannot be read: {reason}.") from error
    found: dict[str, HostLine] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split(maxsplit=1)
        if not words:
            continue
        parsed = _parsed(words)
        if parsed is None:
            raise InvalidArgument(
                f"hostfile={path!r}, line {number}: {line.strip()!r} is no host; write one a line, as `host`, "
                "`host slots=4` or `host:4`."
            )
        before = found.get(parsed.host)
        # A host that is listed again has more slots.
        if before is not None:
            parsed = HostLine(parsed.host, (before.slots or 1) + (parsed.slots or 1))
        found[parsed.host] = parsed
    if not found:
        raise InvalidArgument(f"hostfile={path!r} names no host.")
    return list(found.values())


def _parsed(words: Sequence[str]) -> HostLine | None:
    host, colon, number = words[0].partition(":")
    slots = _SLOTS.match(words[1].strip()) if len(words) > 1 else None
    # What begins with a dash would be an option of ssh.
    if (
        not host
        or host.startswith("-")
        or (colon and not number.isdecimal())
        or (len(words) > 1 and slots is None and "=" not in words[1])
    ):
        return None
    given = int(number) if number else int(slots[1]) if slots is not None else None
    return None if given == 0 else HostLine(host, given)


def own_names() -> frozenset[str]:
    """What stands for this machine in a host file."""
    addresses = {one.address for found in psutil.net_if_addrs().values() for one in found}
    return frozenset({*_LOCAL, socket.gethostname(), *addresses})


def share_out(hosts: Sequence[HostLine], num_ranks: int | None, here: frozenset[str]) -> list[HostShare]:
    """`num_ranks` over `hosts`: their slots filled in the file's order, or, where it does not say them all, as equally
    as possible. None: one per slot. More ranks than slots go round again.
    """
    slots = [line.slots or 1 for line in hosts]
    wanted = sum(slots) if num_ranks is None else num_ranks
    if any(line.slots is None for line in hosts):
        each, more = divmod(wanted, len(hosts))
        given = [each + (index < more) for index in range(len(hosts))]
    else:
        given, left = [0] * len(hosts), wanted
        while left:
            for index, number in enumerate(slots):
                taken = min(number, left)
                given[index] += taken
                left -= taken
    pairs = zip(hosts, given, strict=True)
    return [HostShare(line.host, number, _is_here(line.host, here)) for line, number in pairs if number]


def _is_here(host: str, here: frozenset[str]) -> bool:
    if host in here:
        return True
    try:
        return str(socket.getaddrinfo(host, None)[0][4][0]) in here
    except OSError:
        return False
