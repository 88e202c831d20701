"""Keys of the connections between a kernel and its agents: new ones, or such as follow from a word that both know."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import zmq
from zmq.utils import z85

_COST = 2**14
"""Of scrypt (RFC 7914): some 50 ms per guess."""
_KEY_BYTES = 32
"""Of Curve25519; any will do as a secret key."""


class Keys(NamedTuple):
    """Two pairs, in Z85: the kernel's, and the one that all agents use."""

    hub_key: str
    hub_secret: str
    agent_key: str
    agent_secret: str


def new_keys() -> Keys:
    hub_key, hub_secret = zmq.curve_keypair()
    agent_key, agent_secret = zmq.curve_keypair()
    return Keys(hub_key.decode(), hub_secret.decode(), agent_key.decode(), agent_secret.decode())


def keys_from(word: str, salt: bytes) -> Keys:
    """The same for everybody who knows `word`; `salt` is no secret, and another one for each launch."""
    made = hashlib.scrypt(word.encode(), salt=salt, n=_COST, r=8, p=1, dklen=2 * _KEY_BYTES)
    hub_secret, agent_secret = z85.encode(made[:_KEY_BYTES]), z85.encode(made[_KEY_BYTES:])
    hub_key, agent_key = zmq.curve_public(hub_secret), zmq.curve_public(agent_secret)
    return Keys(hub_key.decode(), hub_secret.decode(), agent_key.decode(), agent_secret.decode())
