"""What the kernel and its agents say to each other. An agent stands beside each keeper to which the kernel cannot hand
descriptors: that on another machine, or that of a process which another launcher has started.

    kernel (hub) --HubMessage---> agent ──run channel──▶ keeper ──▶ ranks
    kernel (hub) <--AgentMessage- agent

Files travel beside a message, as descriptors do on one machine: `accel_nb.launch.engines.remote.link`.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from .commands import (
    Command,
    DumpStacks,
    KeeperMessage,
    PartCommand,
    PartMessage,
    Pull,
    Release,
    RunOrder,
    Stop,
    Surroundings,
)
from .events import RankFailed, RankFinished, Restarting, RunEnded
from .plan import StartMethod


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent finds the kernel and proves that it belongs to the run. Secret: who has it can run code there."""

    addresses: tuple[str, ...]
    """Of the kernel's machine, to be tried in this order."""
    port: int
    hub_key: str
    """Public key of the kernel's end (CURVE, Z85)."""
    agent_key: str
    agent_secret: str
    """The pair that all agents of this attempt use."""
    run_id: str
    place: str
    """Of the kernel; as in `AgentHello`."""
    seats: tuple[tuple[int, ...], ...]
    """Ranks of each agent, by the number of its seat."""
    start_method: StartMethod = "forkserver"

    @property
    def num_ranks(self) -> int:
        return sum(map(len, self.seats))

    def encode(self) -> str:
        """One word of text."""
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode()

    @staticmethod
    def decode(text: str) -> Contact:
        """What `encode` gave. Raises ValueError for anything else."""
        try:
            return msgspec.msgpack.decode(base64.urlsafe_b64decode(text.strip()), type=Contact)
        except (msgspec.MsgspecError, binascii.Error) as error:
            raise ValueError(f"this is no contact of a run: {error}") from error


class AgentHello(Command, frozen=True, kw_only=True, tag="agent_hello"):
    """An agent has come."""

    seat: int
    node: int | None = None
    """Number of its machine, where whoever started it has said so."""
    place: str
    """Equal for two agents when they share a machine and its network."""
    host: str
    pid: int
    versions: dict[str, str]
    """Of what must be the same everywhere: Python, torch, cloudpickle, accel_nb."""
    address: str
    """Its own, on the way to the kernel."""
    interface: str
    """The network interface that has `address`; empty: unknown."""
    store_port: int = 0
    """Where it listens for the run's store, at `address`, if it holds rank 0."""
    cpu_count: int = 1
    devices: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Kind -> name of each device there."""
    monotonic_s: float = 0.0
    """Its clock, by which failures of its ranks are ordered."""
    has_payload: bool = False
    """It needs none from the kernel."""
    has_kernel: bool = False
    """A kernel beside it, not the one it answers to, shows and records what its keeper tells."""
    word: str = ""
    """As in its `Summons`."""


class MeetAt(Command, frozen=True, kw_only=True, tag="meet_at"):
    """All have come. Say, by `Met`, whether the run's store can be reached there."""

    host: str
    port: int


class Met(Command, frozen=True, kw_only=True, tag="met"):
    problem: str = ""
    """Why the store cannot be reached; empty: it can."""


class Refused(Command, frozen=True, kw_only=True, tag="refused"):
    """The run does without this agent."""

    reason: str


class FilePart(Command, frozen=True, kw_only=True, tag="file_part"):
    """Bytes of a file in the folder that the keeper takes for the run's; for the real one."""

    name: str
    offset: int
    data: bytes


class AgentEnded(Command, frozen=True, kw_only=True, tag="agent_ended"):
    """Nothing of the run is left on its side, and nothing follows."""


class AgentFailed(Command, frozen=True, kw_only=True, tag="agent_failed"):
    """It cannot hold its ranks any more; they are being ended."""

    reason: str


class StopAsked(Command, frozen=True, kw_only=True, tag="stop_asked"):
    """The kernel beside the agent wants the run to end, on all machines."""

    by: str
    grace_s: float


class RunOver(Command, frozen=True, kw_only=True, tag="run_over"):
    """How it has ended, for the kernels of other machines that take part."""

    end: RunEnded | Restarting
    ranks: tuple[RankFinished | RankFailed, ...]
    """Of all ranks, as far as they have come."""


class OwnPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a kernel beside an agent has said of the ranks there, in place of what the hub says."""

    env: dict[str, str]
    """As in a plan."""
    log_dir: str
    first_sequence: int
    notices: tuple[str, ...]


class Summons(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told by whoever starts it."""

    contact: Contact
    seat: int
    node: int | None = None
    """Number of its machine; None: the kernel numbers the machines."""
    surroundings: Surroundings | None = None
    """What its ranks take over; None: what the kernel has."""
    word: str = ""
    """By which the kernel knows this agent from others that may have its contact; empty: nobody else has that."""
    own: OwnPart | None = None
    """Of the kernel that has started it, where that is not the one it answers to; None: there is none."""


HubMessage = RunOrder | Pull | Stop | DumpStacks | Release | PartCommand | MeetAt | Refused | RunOver
AgentMessage = KeeperMessage | PartMessage | AgentHello | Met | FilePart | AgentEnded | AgentFailed | StopAsked
