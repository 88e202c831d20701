"""What the processes of one run say to each other besides events.

    kernel --ServerRequest--> warm server        (SOCK_SEQPACKET, one message per packet)
    kernel <--ServerReady---- warm server
    kernel --RunCommand-----> keeper             (frames over a stream socket)
    kernel <--KeeperMessage-- keeper
    kernel --StartKeeper----> standby keeper     (SOCK_SEQPACKET)
    kernel <--StandbyNews---- standby keeper
    keeper --RankMessage----> rank               (frames)
    keeper <--RankReport----- rank               (frames)

File descriptors travel beside a message; its docstring says which.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .batch_sizes import SearchHistory
from .events import RunEvent, Whereabouts
from .failure import RankFailure
from .ledger import RankNotes
from .plan import LaunchPlan, RankPlan


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """What all of these share."""


# ---- kernel and warm server


class StartKeeper(Command, frozen=True, kw_only=True, tag="start_keeper"):
    """Hand the attached socket (the keeper's end of a run's channel) to a keeper with this many ranks; to a standby
    keeper: take it, if all ranks are still ready, else close it.
    """

    num_ranks: int


class CountDevices(Command, frozen=True, kw_only=True, tag="count_devices"):
    """Count devices in a throw-away child and write JSON ``{kind: count}`` to the attached pipe."""

    variables: dict[str, str]
    """Environment of that child on top of the server's: visibility variables."""
    unset: tuple[str, ...] = ()
    """Variables that child must not have: visibility variables that the kernel has no more."""


class ForkAhead(Command, frozen=True, kw_only=True, tag="fork_ahead"):
    """Fork a keeper with this many ranks when there is nothing else to do: a run is likely to ask for it."""

    num_ranks: int


class StandBy(Command, frozen=True, kw_only=True, tag="stand_by"):
    """Have a keeper with this many ranks get them ready for a launch that is likely to come. Attached: the memory file
    of a `StandbyOrder`, and the socket over which that keeper and the kernel talk until the run begins: when the kernel
    closes its end, the set is let go.
    """

    num_ranks: int


ServerRequest = StartKeeper | CountDevices | ForkAhead | StandBy


class ServerReady(Command, frozen=True, kw_only=True, tag="server_ready"):
    """Everything is imported; ranks can be forked."""

    struck: dict[str, str] = {}
    """Module -> why it must not be imported before a fork. Not empty: the server has ended itself."""


# ---- kernel and keeper


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank takes over from the kernel so that user code finds itself at home.

    What names files is in bytes, as the system has it (``os.fsencode``): it need not be UTF-8, and text must be.
    """

    variables: dict[bytes, bytes]
    """The whole environment, before the rank's own variables."""
    cwd: bytes
    sys_path: tuple[bytes, ...]
    argv: tuple[bytes, ...]
    umask: int
    locale: str


class RunOrder(Command, frozen=True, kw_only=True, tag="run_order"):
    """Begin. Attached: the payload's memory file, then, if `port_given`, the listening socket for the store."""

    plan: LaunchPlan
    surroundings: Surroundings
    log_dir: str
    notices: tuple[str, ...] = ()
    attempt: int = 0
    searches: SearchHistory = SearchHistory()
    """What the attempts before have learned."""
    first_sequence: int = 1
    port_given: bool = False
    store_port: int = 0
    """Of the run's store where another keeper hosts it, at the plan's address; 0: this one does."""


class StandbyOrder(Command, frozen=True, kw_only=True, tag="standby_order"):
    """Get ranks ready as the run that `like` began would have them, and keep them so."""

    like: RunOrder
    idle_s: float
    """Give up after this long without a run."""
    free_times: float
    """Only while each device, or for CPU ranks the machine, has this many times free what a rank in standby takes."""
    alone: bool = True
    """Only while nobody else uses one of the devices."""


class StandbyNews(Command, frozen=True, kw_only=True, tag="standby_news"):
    """How a standby set fares."""

    state: Literal["ready", "over"]
    keeper_pid: int
    reason: str = ""
    """Why it is over."""


class Pull(Command, frozen=True, kw_only=True, tag="pull"):
    """Ready for one more `EventBatch`."""


class Stop(Command, frozen=True, kw_only=True, tag="stop"):
    """End the ranks: SIGINT, after `grace_s` SIGTERM, one second later SIGKILL. 0: SIGKILL at once."""

    by: str
    grace_s: float


class DumpStacks(Command, frozen=True, kw_only=True, tag="dump_stacks"):
    """Answer with `Stacks`."""


class RunCell(Command, frozen=True, kw_only=True, tag="run_cell"):
    """Run one cell in the namespace of those before. Attached: the payload's memory file. For ranks that are kept."""

    cell: int
    """Counts the cells of the run, from 1."""
    is_first: bool = False
    """Whether the rank is the first that runs it: what it displays is shown."""
    sends_value: bool = False
    """Whether the rank is to give back what the cell's function returns."""
    pushed: tuple[str, ...] = ()
    """Variables of the payload that replace the rank's own."""


class CloseGroups(Command, frozen=True, kw_only=True, tag="close_groups"):
    """Close the process group, in which the ranks are out of step; who waits in it is freed."""

    epoch: int
    """The groups that follow are counted from here, on all ranks alike."""


class EndCells(Command, frozen=True, kw_only=True, tag="end_cells"):
    """No cell follows: leave."""


class ToRanks(Command, frozen=True, kw_only=True, tag="to_ranks"):
    """Pass on to these ranks. Attached: what belongs to it."""

    ranks: tuple[int, ...]
    message: RunCell | CloseGroups | EndCells


class InterruptRanks(Command, frozen=True, kw_only=True, tag="interrupt_ranks"):
    """SIGINT to these ranks: it ends what they run, and not them."""

    ranks: tuple[int, ...]


class Release(Command, frozen=True, kw_only=True, tag="release"):
    """The kernel has all it wants; the keeper may go."""


class PullNotes(Command, frozen=True, kw_only=True, tag="pull_notes"):
    """Ready for one more `RanksNoted`. This and what follows is for keepers that hold some of a run's ranks only."""


class DescribeRanks(Command, frozen=True, kw_only=True, tag="describe_ranks"):
    """Answer with `RanksDescribed`."""


class FailRanks(Command, frozen=True, kw_only=True, tag="fail_ranks"):
    """Ranks of this keeper wait for ever, for those of others: end the run with these failures."""

    failures: tuple[RankFailure, ...]


class TakeUp(Command, frozen=True, kw_only=True, tag="take_up"):
    """What the kernel has found out belongs to the record of this keeper's part, too."""

    events: tuple[RunEvent, ...]


PartCommand = PullNotes | DescribeRanks | FailRanks | TakeUp
RunCommand = RunOrder | Pull | Stop | DumpStacks | ToRanks | InterruptRanks | Release | PartCommand


class KeeperHello(Command, frozen=True, kw_only=True, tag="keeper_hello"):
    """A keeper took the run. Attached: a pidfd of the keeper."""

    pid: int


class EventBatch(Command, frozen=True, kw_only=True, tag="event_batch"):
    events: tuple[RunEvent, ...]


class Value(Command, frozen=True, kw_only=True, tag="value"):
    """What a rank returned. Attached: the memory file that holds it."""

    rank: int


class Stacks(Command, frozen=True, kw_only=True, tag="stacks"):
    text_by_rank: dict[int, str]


class GroupOpened(Command, frozen=True, kw_only=True, tag="group_opened"):
    """A rank has opened a default process group of all ranks, with the backend that the plan names."""


class RanksNoted(Command, frozen=True, kw_only=True, tag="ranks_noted"):
    """What the ledger holds of some ranks, where their notes have changed."""

    notes: tuple[RankNotes, ...]
    """By the clock of the keeper's machine."""


class RanksDescribed(Command, frozen=True, kw_only=True, tag="ranks_described"):
    """Where all of this keeper's ranks are."""

    notes: tuple[RankNotes, ...]
    """As in `RanksNoted`."""
    places: tuple[Whereabouts, ...]


KeeperMessage = KeeperHello | EventBatch | Value | Stacks | GroupOpened
PartMessage = RanksNoted | RanksDescribed
"""What a keeper of some ranks says besides."""


# ---- keeper and rank


class StoreAddress(Command, frozen=True, kw_only=True, tag="store_address"):
    """Where the store of the coming run listens, told to ranks that wait: they connect ahead."""

    host: str
    port: int


class RankOrder(Command, frozen=True, kw_only=True, tag="rank_order"):
    """Become this rank. Attached: the payload's memory file."""

    rank_plan: RankPlan
    num_ranks: int
    surroundings: Surroundings
    """`variables` are final: nothing is added in the rank."""
    store_host: str
    store_port: int
    attempt: int
    rendezvous_s: float
    stack_file: str
    """Where faulthandler writes at a fatal signal and on request."""
    exception_file: str
    """Where the exception object goes, if it can be pickled."""
    send_value: bool = True
    memory_snapshot_file: str = ""
    """Record where device memory is allocated, and write it there at a failure; empty: nobody asked."""
    dry_run: bool = False
    """End the function after its first optimizer step, and report that instead of a value."""
    hides_devices: bool = False
    """In a dry run: the launch that it is about has accelerators, and this rank sees none."""
    process_group: str = ""
    """The backend that the plan names."""


class GetReady(Command, frozen=True, kw_only=True, tag="get_ready"):
    """Open the device and the process group that a run with such an order would open, and say `RankReady`."""

    order: RankOrder
    device_kind: str


class Confirm(Command, frozen=True, kw_only=True, tag="confirm"):
    """A run is about to be handed over: say `RankReady` once more."""


class RankReady(Command, frozen=True, kw_only=True, tag="rank_ready"):
    """What `GetReady` asked for is done, and this rank is alive."""


RankMessage = StoreAddress | GetReady | Confirm | RankOrder | RunCell | CloseGroups | EndCells
RankReport = RunEvent | RankReady
