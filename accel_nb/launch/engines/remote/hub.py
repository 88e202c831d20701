"""The kernel's end of the connections to the agents of one attempt: who may connect, frames out and in.

Encrypted and authenticated by CURVE (RFC 26 of ZeroMQ) with keys made for this attempt: an agent must know the hub's
public key, and the hub admits one pair of keys, which the agents have from the contact.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Sequence

import zmq
from zmq.utils import z85

from ....errors import PlanError, PortInUse
from ....protocol.plan import StartMethod
from ....protocol.remote import Contact
from .keys import Keys, new_keys
from .reaching import place

HEARTBEAT_MS = 1_000
HEARTBEAT_TIMEOUT_MS = 6_000
"""A machine that has not answered for so long is gone. ZeroMQ's own thread answers, also of a busy interpreter."""
QUEUED_FRAMES = 16
"""Waiting to be sent on one connection, of up to 1 MiB each."""
_ZAP = "inproc://zeromq.zap.01"
_TRIES = 20


class Hub:
    """Owns the sockets, used by one thread at a time. Bound when it is made."""

    def __init__(
        self,
        addresses: Sequence[str],
        seats: Sequence[Sequence[int]],
        *,
        run_id: str,
        start_method: StartMethod = "forkserver",
        port: int | None = None,
        keys: Keys | None = None,
    ) -> None:
        """Listen at each of this machine's `addresses` (numbers or names), which agents will try in this order. `port`:
        None lets the system choose. `keys`: None makes new ones. Raises PortInUse, PlanError.
        """
        self._context = zmq.Context()
        keys = keys or new_keys()
        self._admitted = z85.decode(keys.agent_key.encode())
        try:
            # First: connections are refused until somebody answers for them.
            self._gate = self._context.socket(zmq.REP)
            self._gate.bind(_ZAP)
            self._router = self._context.socket(zmq.ROUTER)
            self._secure(keys.hub_secret.encode())
            bound = _bind(self._router, addresses, port)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self.contact = Contact(
            addresses=tuple(addresses),
            port=bound,
            hub_key=keys.hub_key,
            agent_key=keys.agent_key,
            agent_secret=keys.agent_secret,
            run_id=run_id,
            place=place(),
            seats=tuple(tuple(ranks) for ranks in seats),
            start_method=start_method,
        )

    def _secure(self, secret: bytes) -> None:
        router = self._router
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, secret)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # says when a peer is gone
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.SNDHWM, QUEUED_FRAMES)
        router.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        router.setsockopt(zmq.IPV6, 1)

    def wait(self, wake_fds: Sequence[int], timeout_s: float) -> set[int]:
        """Until a frame or a connection comes, or one of `wake_fds` is readable; gives which of those are."""
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._gate, zmq.POLLIN)
        for fd in wake_fds:
            poller.register(fd, zmq.POLLIN)
        ready = {one for one, _ in poller.poll(round(timeout_s * 1000))}
        if self._gate in ready:
            self._open_gate()
        return {fd for fd in wake_fds if fd in ready}

    def receive(self) -> list[tuple[bytes, bytes]]:
        """All frames that have come, each with the name of its connection."""
        frames: list[tuple[bytes, bytes]] = []
        with contextlib.suppress(zmq.Again):
            while True:
                peer, data = self._router.recv_multipart(zmq.NOBLOCK)
                frames.append((peer, data))
        return frames

    def send(self, peer: bytes, data: bytes) -> bool:
        """One frame; False when the connection takes none now. Raises ConnectionError when it is gone."""
        try:
            self._router.send_multipart([peer, data], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == errno.EHOSTUNREACH:
                raise ConnectionError("the connection is gone") from error
            raise
        return True

    def close(self, linger_s: float = 0.0) -> None:
        """Drop all connections, once what waits is sent, as far as that takes no longer. A second call does nothing."""
        self._context.destroy(linger=round(linger_s * 1000))

    def _open_gate(self) -> None:
        """Answer who may connect (RFC 27 of ZeroMQ)."""
        version, number, *_, mechanism, key = self._gate.recv_multipart()
        admitted = mechanism == b"CURVE" and key == self._admitted
        code, text = (b"200", b"OK") if admitted else (b"400", b"not of this run")
        self._gate.send_multipart([version, number, code, text, b"", b""])


def endpoint(address: str, port: int | str) -> str:
    """As ZeroMQ writes it."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def _bind(router: zmq.Socket[bytes], addresses: Sequence[str], port: int | None) -> int:
    """The port, which is the same at all addresses."""
    numbers = list(dict.fromkeys(_number(address) for address in addresses))
    for left in reversed(range(_TRIES)):
        bound: list[str] = []
        try:
            chosen: int | str = port or "*"
            for number in numbers:
                router.bind(endpoint(number, chosen))
                bound.append(router.getsockopt_string(zmq.LAST_ENDPOINT))
                chosen = int(bound[-1].rpartition(":")[2])
        except zmq.ZMQError as error:
            for one in bound:
                router.unbind(one)
            if error.errno != errno.EADDRINUSE or (not left and port is None):
                raise PlanError(f"This machine cannot listen at {', '.join(numbers)}: {error.strerror}.") from error
            if port is not None:
                raise PortInUse(
                    f"port {port} cannot be used at {', '.join(numbers)}: it is taken. Give another one, or leave it "
                    "out and a free one is chosen."
                ) from error
            continue
        return int(chosen)
    raise AssertionError("the last try returns or raises")


def _number(address: str) -> str:
    """What the name stands for on this machine. Raises PlanError."""
    try:
        return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise PlanError(f"{address!r} is no address of this machine: {error.strerror}.") from error
