"""The two protocols of an engine: what starts the ranks of one attempt, and what was started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from ...protocol.batch_sizes import SearchHistory
from ...protocol.commands import KeeperMessage, RunCommand, RunOrder, Surroundings
from ...protocol.hardware import NodeHardware
from ...protocol.plan import LaunchPlan, LaunchRequest
from ...protocol.wire import Skipped
from ..planning.nodes import MeetingPoint


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a plan's ranks."""

    plan: LaunchPlan
    payload_fd: int
    """Borrowed for the duration of `Engine.start`."""
    store_fd: int | None = None
    """Listening socket for the store when the user has chosen a port; borrowed like the payload."""
    surroundings: Surroundings
    log_dir: Path
    notices: tuple[str, ...] = ()
    """What packing has to tell the user."""
    number: int = 0
    searches: SearchHistory = SearchHistory()
    """What the attempts before have learned of batch sizes."""
    first_sequence: int = 1
    meeting: MeetingPoint | None = None
    """Where the nodes meet; None: this machine's kernel starts all ranks."""

    def order(self) -> RunOrder:
        """For a keeper of this machine that holds all ranks; to other keepers the engine says what differs."""
        return RunOrder(
            plan=self.plan,
            surroundings=self.surroundings,
            log_dir=str(self.log_dir),
            notices=self.notices,
            attempt=self.number,
            searches=self.searches,
            first_sequence=self.first_sequence,
            port_given=self.store_fd is not None,
        )


class RankGroup(Protocol):
    """The kernel's end of one attempt. Used by one thread, the run's supervisor."""

    def fds(self) -> Sequence[int]:
        """Descriptors that become readable when `receive` or `lost` has something new."""

    def receive(self) -> list[KeeperMessage | Skipped]:
        """What the keeper has said since last asked."""

    def send(self, command: RunCommand, fds: Sequence[int] = ()) -> None:
        """Tell the keeper; `fds` belong to the command and stay the caller's. Never blocks."""

    def flush(self) -> bool:
        """Go on sending; False while something still waits to be sent."""

    def take_fd(self) -> int:
        """The descriptor that came with the oldest `Value` not yet taken. The caller owns it."""

    @property
    def answered(self) -> bool:
        """Whether a keeper has taken the run."""

    @property
    def answers_s(self) -> float | None:
        """How long to wait for `answered`; None: as the plan allows. Infinity: `lost` says when it takes too long."""

    def lost(self) -> str | None:
        """A sentence when whoever held the ranks has died; None while it lives."""

    def kill(self) -> None:
        """End the keeper and with it every rank, now."""

    def close(self) -> None: ...


class Engine(Protocol):
    """Starts ranks. A module constant ``ENGINE`` in ``launch/engines/<name>.py``."""

    name: str

    def check(self, request: LaunchRequest) -> None:
        """Refuse what this engine cannot do, or not on this machine: before anything is packed or started.

        Raises EngineUnavailable, InvalidArgument or another PlanError, in one sentence.
        """

    def hardware(self, request: LaunchRequest, own: NodeHardware) -> NodeHardware:
        """What the planner is to count on, where that is not what this machine has, `own`. Raises PlanError."""

    def check_plan(self, plan: LaunchPlan) -> None:
        """Refuse a plan that cannot be carried out with what there is now. Raises PlanError."""

    def num_tries(self) -> int:
        """How often `start` is worth a try before its error is told: what it builds on may have died unnoticed."""

    def start(self, attempt: Attempt, cancelled: Callable[[], bool]) -> RankGroup:
        """Begin; does not wait for the ranks. May wait for a server, until `cancelled`. Raises StartError."""

    def learn(self, attempt: Attempt, modules: Sequence[str]) -> None:
        """The run is over; `modules` are what its ranks had to import."""


@runtime_checkable
class KeepsWarm(Protocol):
    """An engine that keeps something for the next launch besides the ranks in standby."""

    def let_go(self) -> str:
        """End what is kept and not in use; what it was, for people, empty when there was nothing. Any thread."""
