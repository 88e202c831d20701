"""What a kernel and the process that meets other nodes for it say to each other, and what nodes say of themselves.

kernel --MeetingOrder, Introduce, Leave--> meeting <--torch's rendezvous and its store--> meetings of the other nodes
kernel <--Placed, Met, NotMet------------- meeting
"""

from __future__ import annotations

import msgspec

from .commands import Command


class MeetingOrder(Command, frozen=True, kw_only=True, tag="meeting_order"):
    """Meet the others. Attached, if `hosts`: the socket that listens at the meeting point."""

    backend: str
    """Of torch's rendezvous: "static", "c10d"."""
    host: str
    port: int
    num_nodes: int
    node_rank: int
    run_id: str
    settings: dict[str, int]
    hosts: bool
    """Whether the store that all meet in is here."""
    own: str
    """The address of this machine that the others reach."""
    name: str
    """This machine, for a reader."""
    deadline_s: float


class Introduce(Command, frozen=True, kw_only=True, tag="introduce"):
    """Tell the others `note`, and give theirs."""

    note: str


class MeetAgain(Command, frozen=True, kw_only=True, tag="meet_again"):
    """All nodes start again: a new round of the rendezvous."""

    attempt: int


class Leave(Command, frozen=True, kw_only=True, tag="leave"):
    """Do not wait any more; the others are told why."""

    reason: str


MeetingCommand = MeetingOrder | Introduce | MeetAgain | Leave


class Placed(Command, frozen=True, kw_only=True, tag="placed"):
    """The rendezvous is complete, and this is node number `node` of it."""

    node: int


class Met(Command, frozen=True, kw_only=True, tag="met"):
    """What the nodes have said of themselves, by their number."""

    notes: tuple[str, ...]


class NotMet(Command, frozen=True, kw_only=True, tag="not_met"):
    """It came to nothing."""

    reason: str
    """Sentences for the user, with who is missing."""


MeetingNews = Placed | Met | NotMet


class NodeNote(msgspec.Struct, frozen=True, kw_only=True):
    """What one node tells the others before ranks start."""

    host: str
    """Its name."""
    address: str
    num_ranks: int
    device_kind: str
    contact: str = ""
    """Of the first node: how agents reach its kernel."""
