"""What the nodes tell each other when they meet, and whether it fits together."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from ....protocol.nodes import NodeNote
from ....protocol.remote import Contact
from ...planning.nodes import NO_ID
from ..remote.keys import Keys, keys_from, new_keys

_SALT_BYTES = 16
_SHOWN_BYTES = 2


def read_notes(texts: Sequence[str]) -> list[NodeNote]:
    """Raises ValueError, as a sentence, for notes of another version of accel_nb."""
    try:
        return [msgspec.json.decode(text, type=NodeNote) for text in texts]
    except msgspec.MsgspecError as error:
        raise ValueError(f"a node has another version of accel_nb ({error}); install one on all.") from error


def note_text(note: NodeNote) -> str:
    return msgspec.json.encode(note).decode()


def unlike(notes: Sequence[NodeNote]) -> str:
    """Why the nodes cannot train together, the same sentence on all of them; empty: they can."""
    first = notes[0]
    for node, note in enumerate(notes):
        if note.num_ranks != first.num_ranks:
            return (
                f"node 0 ({first.host}) brings {first.num_ranks} ranks and node {node} ({note.host}) "
                f"{note.num_ranks}: give the same num_processes on all nodes."
            )
        if note.device_kind != first.device_kind:
            return (
                f"node 0 ({first.host}) computes on {first.device_kind} and node {node} ({note.host}) on "
                f"{note.device_kind}: give the same device on all nodes."
            )
    return ""


def shown_id(word: str) -> str:
    """What may be read of an ``rdzv_id`` by everybody: enough to tell two apart, too little to find it out."""
    if word == NO_ID:
        return NO_ID
    return hashlib.scrypt(word.encode(), salt=b"accel_nb rdzv_id", n=2**14, r=8, p=1, dklen=_SHOWN_BYTES).hex()


def new_salt() -> bytes:
    return secrets.token_bytes(_SALT_BYTES)


def keys_for(word: str, salt: bytes) -> Keys:
    """With a word of the user's, keys that nobody else can make; without, new ones, which all may read who can meet."""
    return new_keys() if word == NO_ID else keys_from(word, salt)


def published(contact: Contact, word: str, salt: bytes) -> str:
    """`contact` as it may be read by everybody who can meet: with the keys only where no word protects them."""
    if word != NO_ID:
        contact = replace(contact, hub_key="", agent_key="", agent_secret="")
    return f"{contact.encode()} {salt.hex()}"


def understood(text: str, word: str) -> Contact:
    """What `published` gave. Raises ValueError."""
    encoded, _, salt = text.partition(" ")
    contact = Contact.decode(encoded)
    if word == NO_ID:
        return contact
    keys = keys_from(word, bytes.fromhex(salt))
    return replace(contact, hub_key=keys.hub_key, agent_key=keys.agent_key, agent_secret=keys.agent_secret)
