"""An agent's end of the connection to the hub."""

from __future__ import annotations

import zmq
from zmq.utils.monitor import recv_monitor_message

from ....protocol.remote import HubMessage, Summons
from ....protocol.wire import Skipped
from .hub import HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS, QUEUED_FRAMES, endpoint
from .link import Link

_GONE = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_FAILED_AUTH


class Wire:
    """The agent's end of the connection to the hub."""

    def __init__(self, summons: Summons, address: str) -> None:
        contact = summons.contact
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, contact.hub_key.encode())
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, contact.agent_key.encode())
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, contact.agent_secret.encode())
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)  # a connection that breaks has lost messages
        self.socket.setsockopt(zmq.SNDHWM, QUEUED_FRAMES)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
        self.socket.setsockopt(zmq.IPV6, 1)
        self.monitor = self.socket.get_monitor_socket(_GONE)
        self.is_gone = False
        self.is_welcome = False
        """The kernel has answered, if only by a sign of life: it sends those to the agents that it waits with."""
        self.socket.connect(endpoint(address, contact.port))
        self.link: Link[HubMessage] = Link(self._send, HubMessage)

    def receive(self) -> list[HubMessage | Skipped]:
        """All that has come. Sets `is_gone` and `is_welcome`."""
        messages: list[HubMessage | Skipped] = []
        while self.socket.poll(0):
            self.is_welcome = True
            message = self.link.take(self.socket.recv())
            if message is not None:
                messages.append(message)
        while self.monitor.poll(0):
            recv_monitor_message(self.monitor)
            self.is_gone = True
        return messages

    def close(self, linger_s: float) -> None:
        """Send what waits, as far as that takes no longer. A second call does nothing."""
        if self.socket.closed:
            return
        self.link.close()
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=round(linger_s * 1000))
        self._context.term()

    def _send(self, data: bytes) -> bool:
        if self.is_gone:
            return True
        try:
            self.socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True
