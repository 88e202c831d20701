"""What was asked (`LaunchRequest`) and what will be done (`LaunchPlan`)."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

THE_CALL = "the call"
UNRECORDED = "(not recorded)"
"""What stands in events for the value of a variable."""

StartMethod = Literal["forkserver", "spawn", "fork"]
Returns = Literal["all", "main"]
OnFailure = Literal["raise", "return"]


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines of one run, in seconds. User code itself never has one."""

    start_s: float = 60.0
    """From the request until every rank is ready to call the function; doubled while the server is cold."""
    rendezvous_s: float = 120.0
    """From the first rank in ``init_process_group`` until the last one has arrived."""
    stalled_s: float = 30.0
    """After so long a wait of a rank for others that do not come, it is told who waits where. Ends nothing."""
    stop_grace_s: float = 3.0
    """From SIGINT to SIGTERM. SIGKILL follows one second later."""


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of one call, as given. Field by field those of `accel_nb.notebook_launcher`."""

    function_name: str = "function"
    num_processes: int | None = None
    """None: one rank per visible accelerator, else 1."""
    mixed_precision: str = "no"
    use_port: int | None = None
    """None: the system chooses. A number: that port, bound before anything starts."""
    master_addr: str = "127.0.0.1"
    node_rank: int = 0
    num_nodes: int = 1
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_conf: dict[str, str | int | float | bool] | None = None
    rdzv_id: str = "none"
    max_restarts: int = 0
    monitor_interval: float = 0.1
    log_line_prefix_template: str | None = None
    devices: tuple[int | str, ...] | None = None
    """Positions among the visible devices, or vendor ids; rank r computes on ``devices[r]``."""
    device: str = "auto"
    backend: str = "auto"
    """The engine: "local", "mpi", "ray", "elastic"."""
    hostfile: str = ""
    """With "mpi": which hosts run ranks. Empty: this machine."""
    block: bool = True
    env: dict[str, str] | None = None
    """Set for the ranks on top of the kernel's own environment."""
    debug: bool | None = None
    on_failure: OnFailure = "raise"
    start_method: StartMethod = "forkserver"
    returns: Returns = "all"
    dry_run: bool = False
    memory_snapshot: bool = False
    timeouts: Timeouts = Timeouts()
    origins: dict[str, str] = {}
    """Field -> where its value comes from: `THE_CALL`, ``the command line``, a file. Those left out come from the call
    where they are not at their defaults.
    """
    settings_file: str = ""
    """The configuration file that was read for this launch; empty: none."""
    notices: tuple[str, ...] = ()
    """What stands in that file and has no effect, one sentence each."""


class PlannedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank of the launch that a dry run is about will compute on."""

    label: str
    """For people: ``cuda:3 NVIDIA H100``, in the machine's numbering."""
    memory_bytes: int = 0
    """0: not known."""
    used_bytes: int = 0
    """In use by anybody when it was planned."""
    reserved_bytes: int = 0
    """What context and communicator of a rank take of it besides tensors."""


class DryRunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The launch that a dry run is about."""

    devices: tuple[PlannedDevice, ...]
    """By rank of that launch, of which there may be more than the dry run has."""

    @property
    def has_accelerators(self) -> bool:
        return any(device.label != "cpu" for device in self.devices)


class RankPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a plan."""

    rank: int
    local_rank: int
    node: int = 0
    host: str = ""
    device_index: int | None = None
    """Position among the devices visible to the ranks (what `LOCAL_RANK` means to frameworks); None on CPU."""
    device_label: str = "cpu"
    """For people: ``cuda:3 NVIDIA H100``, in the machine's numbering."""
    cpu_threads: int = 1


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What will be started, with a reason for each choice made on the user's behalf."""

    run_id: str
    function_name: str
    engine: str
    device_kind: str
    process_group: str
    """torch.distributed's backend for this device kind: "gloo", "nccl"."""
    ranks: tuple[RankPlan, ...]
    start_method: StartMethod = "forkserver"
    hostfile: str = ""
    """As in the request."""
    rendezvous_host: str = "127.0.0.1"
    rendezvous_port: int | None = None
    """None: chosen by the system when the store's socket is bound."""
    mixed_precision: str = "no"
    debug: bool | None = None
    """None: not said, so that ranks compare their operations where that costs next to nothing."""
    max_restarts: int = 0
    monitor_interval: float = 0.1
    returns: Returns = "all"
    on_failure: OnFailure = "raise"
    log_line_prefix_template: str | None = None
    timeouts: Timeouts = Timeouts()
    env: dict[str, str] = {}
    """Variables the ranks get on top of the kernel's: the user's `env` and the device's visibility."""
    env_removed: tuple[str, ...] = ()
    """Variables of the kernel that the ranks must not see: those of another launcher."""
    reasons: tuple[str, ...] = ()
    """One sentence per choice made for the user; to be read at ``Run.plan``."""
    notable: tuple[str, ...] = ()
    """Those of `reasons` that overrule or limit what the user may expect; shown before the run."""
    asked_num_processes: int | None = None
    memory_snapshot: bool = False
    """Ranks record where their device's memory is allocated, and tell it when they fail."""
    dry_run: DryRunPlan | None = None
    """Not None: ranks end after their first optimizer step and report what was measured."""

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)

    def without_values(self) -> LaunchPlan:
        """For records and front ends: which variables are set, not what they hold, which may be secret."""
        return replace(self, env=dict.fromkeys(self.env, UNRECORDED))
