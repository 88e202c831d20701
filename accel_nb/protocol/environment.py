"""The environment contract: every variable that accel_nb reads or writes, and the only file that touches os.environ.

Towards a rank it is torchrun's contract (``torch/distributed/run.py``, "Environment Variables") plus the
``ACCELERATE_*`` variables which Hugging Face Accelerate's state reads, so that either library obeys the call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from .plan import LaunchPlan, RankPlan

SERVER_KEY_PREFIXES = (
    "TORCH", "PYTORCH_", "TRITON_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "LD_", "MALLOC_", "PYTHON",
)  # fmt: skip
"""Read once, when an interpreter or a library loads: set later, they do nothing."""

_FOREIGN_LAUNCHERS: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "torchrun": (
        frozenset({
            "RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE",
            "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        }),
        ("TORCHELASTIC_",),
    ),
    "SLURM": (
        frozenset({
            "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE",
            "SLURM_TASKS_PER_NODE", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_MPI_TYPE",
        }),
        ("SLURM_STEP", "SLURM_SRUN_", "SLURM_PMI"),
    ),
    "MPI": (
        frozenset({"PMIX_RANK", "PMIX_NAMESPACE", "PMIX_ID", "PMIX_SECURITY_MODE"}),
        (
            "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "OMPI_APP_CTX_", "OMPI_FIRST_", "OMPI_FILE_", "OMPI_NUM_",
            "OMPI_MCA_orte_", "OMPI_MCA_ess", "PMIX_SERVER_", "PMI_", "MPI_LOCAL", "HYDI_", "MV2_COMM_WORLD_",
            "PALS_", "JSM_NAMESPACE_",
        ),
    ),
}  # fmt: skip
"""Launcher -> names and prefixes of what it sets in each of *its* ranks, from which a library concludes its rank.

A kernel that inherited them is not one of those ranks. What describes a job or tunes a library without naming a rank
stays: ``SLURM_JOB_ID``, ``SLURM_TMPDIR``, ``OMPI_MCA_btl``, ``I_MPI_ROOT``, ``HYDRA_FULL_ERROR`` (not MPI's hydra).
Sources: ``torch/distributed/run.py``; srun(1), "OUTPUT ENVIRONMENT VARIABLES"; what mpirun of Open MPI 4.1 and
MPICH 4 was seen to set; ``lightning/fabric/plugins/environments``.
"""

RANK_CONTRACT_NAMES = _FOREIGN_LAUNCHERS["torchrun"][0] | {
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE",
    "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU", "ACCELERATE_DEBUG_MODE", "ACCEL_NB_DEVICE",
}  # fmt: skip
"""Written by us for each rank: a caller's `env` cannot set them."""

RESPECTED_NAMES = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""We only have defaults for these: the user's value, in the kernel or in `env`, wins."""


ALL_LINES = "ACCEL_NB_ALL_LINES"
"""Of the kernel; see `all_lines_wanted`."""

LOG_DIR = "ACCEL_NB_LOG_DIR"
"""Where runs leave their logs; see `log_root`."""

CONFIG = "ACCEL_NB_CONFIG"
"""The file that holds settings between launches; see `config_file`."""

VIEW = "ACCEL_NB_VIEW"
"""Of the kernel; see `view_wanted`."""

DEVICE = "ACCEL_NB_DEVICE"
"""Of ranks; see `device_kind`."""

STANDBY = "ACCEL_NB_STANDBY"
"""Of the kernel, or of a launch's `env`; see `standby_wanted`."""

CONTACT = "ACCEL_NB_CONTACT"
"""Of agents; see `take_contact`."""

FAILED_BATCH_SIZES = "ACCEL_NB_FAILED_BATCH_SIZES"
"""Of ranks that were started again; see `failed_batch_sizes_variable`."""


def foreign_launcher(name: str) -> str:
    """Which launcher sets the variable `name` in its ranks: "torchrun", "SLURM", "MPI"; empty when none does."""
    for launcher, (names, prefixes) in _FOREIGN_LAUNCHERS.items():
        if name in names or name.startswith(prefixes):
            return launcher
    return ""


def is_foreign_launcher_variable(name: str) -> bool:
    return foreign_launcher(name) != ""


def is_server_key_variable(name: str) -> bool:
    return name.startswith(SERVER_KEY_PREFIXES) and not is_foreign_launcher_variable(name)


def current() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)


def value(name: str) -> str:
    """Of one variable in this process; empty when it is not set. A copy of all takes a tenth of a millisecond."""
    return os.environ.get(name, "")


def replace_all(variables: Mapping[str, str]) -> None:
    """Make `variables` this process's whole environment. For ranks only: the kernel's is never changed."""
    for name in [name for name in os.environ if name not in variables]:
        del os.environ[name]
    os.environ.update(variables)


def to_bytes(variables: Mapping[str, str]) -> dict[bytes, bytes]:
    """As the system has them: also values that are not UTF-8 can be sent like this."""
    return {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}


def from_bytes(variables: Mapping[bytes, bytes]) -> dict[str, str]:
    """What `to_bytes` was given."""
    return {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()}


def without(variables: Mapping[str, str], removed: Iterable[str]) -> dict[str, str]:
    gone = frozenset(removed)
    return {name: value for name, value in variables.items() if name not in gone}


def rank_variables(plan: LaunchPlan, rank: RankPlan, *, port: int, attempt: int) -> dict[str, str]:
    """torchrun's variables for `rank`, and the ``ACCELERATE_*`` ones. `port` is that of the run's store.

    To be laid over ``plan.env``. Of `RESPECTED_NAMES` and ``ACCELERATE_DEBUG_MODE`` those in ``plan.env`` are left out.
    """
    num_local = sum(other.node == rank.node for other in plan.ranks)
    nodes = {other.node for other in plan.ranks}
    variables = {
        "RANK": str(rank.rank),
        "LOCAL_RANK": str(rank.local_rank),
        "WORLD_SIZE": str(plan.num_ranks),
        "LOCAL_WORLD_SIZE": str(num_local),
        "GROUP_RANK": str(rank.node),
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank.rank),
        "ROLE_WORLD_SIZE": str(plan.num_ranks),
        "MASTER_ADDR": plan.rendezvous_host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": plan.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "ACCELERATE_MIXED_PRECISION": plan.mixed_precision,
        "ACCELERATE_USE_CPU": str(plan.device_kind == "cpu").lower(),
        DEVICE: plan.device_kind,
        "OMP_NUM_THREADS": str(rank.cpu_threads),
    }
    if plan.debug is not None:
        variables["ACCELERATE_DEBUG_MODE"] = str(int(plan.debug))
    if len(nodes) == 1:
        variables |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return without(variables, {*RESPECTED_NAMES, "ACCELERATE_DEBUG_MODE"} & plan.env.keys())


class RankEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Which rank this process is, and what the launcher asked of the training layer."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    is_local_size_told: bool = True
    """Otherwise that is at most so many: all ranks, or, by SLURM, those of a machine that has as many as it may."""
    node_rank: int = 0
    """Number of the machine; 0 also where the launcher does not tell it (MPI)."""


_RANK_SOURCES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    # Its OMPI_COMM_WORLD_NODE_RANK is no number of a node, but the rank within one.
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", ""),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS", ""),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", ""),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NODEID"),
)  # fmt: skip
"""rank, local rank, ranks, ranks on this node, node: torchrun and ours; Open MPI; MPICH and Intel MPI (hydra);
MVAPICH2; srun."""


def read_rank(variables: Mapping[str, str] | None = None) -> RankEnvironment | None:
    """Which rank a launcher made this process; None in a process that no launcher started.

    The first launcher whose rank *and* size are both set wins. A SLURM allocation in which this process was not
    started by srun as one of several tasks counts as no launcher.
    """
    env = os.environ if variables is None else variables
    for rank, local_rank, size, local_size, node in _RANK_SOURCES:
        if not (_is_number(env.get(rank)) and _is_number(env.get(size))):
            continue
        if rank == "SLURM_PROCID" and (int(env[size]) == 1 or "SLURM_STEP_ID" not in env):
            continue
        return RankEnvironment(
            rank=int(env[rank]),
            local_rank=_number(env, local_rank, int(env[rank])),
            world_size=int(env[size]),
            local_world_size=_number(env, local_size, int(env[size])),
            is_local_size_told=_is_number(env.get(local_size)) and rank != "SLURM_PROCID",
            node_rank=_number(env, node, 0),
        )
    return None


def mpi_rank_variable() -> str:
    """By which an mpirun that has started all its ranks on this machine tells this one its number; empty: no mpirun has
    started this process, it does not tell how many ranks are here, or some are elsewhere.
    """
    for rank, _, size, local_size, _ in _RANK_SOURCES:
        if _is_number(os.environ.get(rank)) and _is_number(os.environ.get(size)):
            is_mpis = foreign_launcher(rank) == "MPI"
            return rank if is_mpis and os.environ.get(local_size) == os.environ[size] else ""
    return ""


def set_rendezvous(host: str, port: int) -> None:
    """In a rank: a store answers there, as torchrun's agent's does; all ranks are on this machine."""
    os.environ.update({"MASTER_ADDR": host, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"})
    os.environ.setdefault("TORCHELASTIC_RESTART_COUNT", "0")
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(name, "lo")


def read_rendezvous() -> tuple[str, int]:
    """MASTER_ADDR and MASTER_PORT as they stand now; ``("", 0)`` when they are not set."""
    return os.environ.get("MASTER_ADDR", ""), _number(os.environ, "MASTER_PORT", 0)


def served_store() -> tuple[str, int] | None:
    """Where a store answers that outlives every process group of the ranks: torchrun's agent's, or our keeper's. None:
    there is none, and with ``env://`` rank 0 makes one with the group.
    """
    return read_rendezvous() if is_true(os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "")) else None


def run_and_attempt() -> str:
    """What tells this start of the ranks from others that may have used the same store."""
    return f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def take_contact() -> str:
    """``ACCEL_NB_CONTACT``: how an agent finds its kernel. A secret, which leaves the environment; empty: not set."""
    return os.environ.pop(CONTACT, "")


def mpi_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Those by which an MPI library finds out that mpirun has started its process, and which one of them it is."""
    return {name: value for name, value in variables.items() if name.startswith(_OF_MPI)}


_OF_MPI = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPIR_", "MPI_LOCAL", "HYDI_", "HYDRA_", "I_MPI_")


def mpi_fds(variables: Mapping[str, str]) -> list[int]:
    """Descriptors that such a process has inherited for its MPI library (``PMI_FD`` of hydra)."""
    return [int(variables["PMI_FD"])] if _is_number(variables.get("PMI_FD")) else []


def failed_batch_sizes_variable(failed: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """``ACCEL_NB_FAILED_BATCH_SIZES``: what the ranks of an earlier attempt of the run could not hold, by the name of
    the search. Nothing when that is nothing.
    """
    return {FAILED_BATCH_SIZES: msgspec.json.encode(failed).decode()} if failed else {}


def failed_batch_sizes(name: str) -> tuple[int, ...]:
    """Of the search `name`, in the order in which they failed."""
    text = os.environ.get(FAILED_BATCH_SIZES, "{}")
    return msgspec.json.decode(text, type=dict[str, tuple[int, ...]]).get(name, ())


def log_root() -> Path:
    """Where runs leave their logs: ``ACCEL_NB_LOG_DIR``, else ``accel_nb/runs`` in the user's state directory
    (``XDG_STATE_HOME`` of the XDG base directory specification, by default ``~/.local/state``).

    Absolute: the kernel may change its folder while runs write there. A relative one counts from the working directory;
    raises FileNotFoundError when that is gone.
    """
    if own := os.environ.get(LOG_DIR):
        return Path(own).absolute()
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The specification has relative paths ignored.
    return (state if state.is_absolute() else Path.home() / ".local" / "state") / "accel_nb" / "runs"


def config_file() -> Path:
    """Where settings are kept between launches: ``ACCEL_NB_CONFIG``, else ``accel_nb/config.yaml`` in the user's
    configuration folder (``XDG_CONFIG_HOME`` of the XDG base directory specification, by default ``~/.config``).
    """
    if own := os.environ.get(CONFIG):
        return Path(own)
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # The specification has relative paths ignored.
    return (folder if folder.is_absolute() else Path.home() / ".config") / "accel_nb" / "config.yaml"


RANK_BACKEND = "module://accel_nb.launch.rank.figures"
_INLINE_BACKENDS = ("module://matplotlib_inline", "module://ipykernel", "inline")
"""What ipykernel sets ``MPLBACKEND`` to: they hand figures to a notebook's shell, which ranks do not have."""


def rank_environment(base: Mapping[bytes, bytes], plan: LaunchPlan, own: Mapping[str, str]) -> dict[str, str]:
    """A rank's whole environment: the kernel's `base` without another launcher's variables, the plan's own
    variables, and the contract `own` (of `rank_variables`). An interface the user has chosen stays.
    """
    given = without(from_bytes(base), plan.env_removed) | plan.env
    if given.get("MPLBACKEND", "").startswith(_INLINE_BACKENDS):
        given["MPLBACKEND"] = RANK_BACKEND
    interfaces = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {**given, **own, **{str(name): given[name] for name in interfaces if name in given}}


def all_lines_wanted() -> bool:
    """``ACCEL_NB_ALL_LINES``: show what loggers of all ranks say, not only WARNING and above of those other than 0."""
    return is_true(os.environ.get(ALL_LINES, ""))


def standby_wanted(variables: Mapping[str, str]) -> str:
    """``ACCEL_NB_STANDBY``: "on", "auto", or "off", also when nothing is said. ValueError for anything else."""
    text = variables.get(STANDBY, "").strip().lower()
    if text in ("", "auto"):
        return text or "off"
    return "on" if text == "on" or (text != "off" and str_to_bool(text)) else "off"


def matters_to_standby(name: str) -> bool:
    """Whether a rank's variable may be read when its device and its process group are opened: it is the same in a run
    that finds both open. Those are left out that differ from run to run, or that only our own layers read, later.
    """
    return name not in _NOT_FOR_STANDBY and not name.startswith(("ACCELERATE_", "ACCEL_NB_", "TORCHELASTIC_"))


_NOT_FOR_STANDBY = frozenset({"MASTER_PORT", "COLUMNS", "LINES", "PWD", "OLDPWD", "SHLVL", "_"})


def view_wanted() -> str:
    """How the user wants runs to be shown in cells; "auto" when nothing is said."""
    return os.environ.get(VIEW) or "auto"


def log_level() -> str | None:
    """``ACCELERATE_LOG_LEVEL``: the level of loggers made by `get_logger`; None when it is not set."""
    return os.environ.get("ACCELERATE_LOG_LEVEL") or None


def mlflow_variables() -> dict[str, str]:
    """MLflow's variables that `MLflowTracker` knows, without their prefix, as far as they are set."""
    names = ("EXPERIMENT_NAME", "RUN_ID", "TAGS", "NESTED_RUN")
    return {name: os.environ[f"MLFLOW_{name}"] for name in names if f"MLFLOW_{name}" in os.environ}


def clearml_names() -> tuple[str | None, str | None]:
    """``CLEARML_PROJECT`` and ``CLEARML_TASK``; None for what is not set."""
    return os.environ.get("CLEARML_PROJECT"), os.environ.get("CLEARML_TASK")


def mixed_precision() -> str:
    """``ACCELERATE_MIXED_PRECISION``: what an `Accelerator` without its own setting uses."""
    return os.environ.get("ACCELERATE_MIXED_PRECISION", "no")


def cpu_requested() -> bool:
    """``ACCELERATE_USE_CPU``, or a CPU in ``ACCELERATE_TORCH_DEVICE``: accelerators must be left alone."""
    return is_true(os.environ.get("ACCELERATE_USE_CPU", "")) or torch_device().split(":")[0] == "cpu"


def device_kind() -> str:
    """``ACCEL_NB_DEVICE``: the kind of device that our launcher has given this rank; empty where it is not ours."""
    return os.environ.get(DEVICE, "")


def torch_device() -> str:
    """``ACCELERATE_TORCH_DEVICE``: what this process computes on, as torch writes it; empty when it is not set."""
    return os.environ.get("ACCELERATE_TORCH_DEVICE", "")


def gradient_accumulation_steps() -> int:
    """``ACCELERATE_GRADIENT_ACCUMULATION_STEPS``: what an `Accelerator` without its own setting uses."""
    return _number(os.environ, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 1)


def dynamo_variables() -> dict[str, str]:
    """What the launch says about ``torch.compile``: ``ACCELERATE_DYNAMO_*``, by the rest of their names."""
    prefix = "ACCELERATE_DYNAMO_"
    return {name.removeprefix(prefix): value for name, value in os.environ.items() if name.startswith(prefix)}


def parallelism_variables() -> dict[str, str]:
    """How the launch lays out the ranks: ``PARALLELISM_CONFIG_*``, by the rest of their names."""
    prefix = "PARALLELISM_CONFIG_"
    return {name.removeprefix(prefix): value for name, value in os.environ.items() if name.startswith(prefix)}


def parallelism_requested() -> bool:
    """``ACCELERATE_USE_PARALLELISM_CONFIG``: an `Accelerator` without its own setting obeys `parallelism_variables`."""
    return is_true(os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", ""))


def debug_mode() -> bool | None:
    """``ACCELERATE_DEBUG_MODE``: whether operations compare what all ranks gave before they send it; None: not said."""
    text = os.environ.get("ACCELERATE_DEBUG_MODE", "")
    return is_true(text) if text else None


def fork_launched() -> bool:
    """``FORK_LAUNCHED``: Accelerate's notebook_launcher forked this process from a kernel."""
    return is_true(os.environ.get("FORK_LAUNCHED", ""))


def is_true(text: str) -> bool:
    """Whether `text` is one of the spellings of yes that Accelerate's ``str_to_bool`` accepts."""
    return text.strip().lower() in _YES


def str_to_bool(value: str, to_bool: bool = False) -> int | bool:
    """1 for a spelling of yes, 0 for one of no; True and False with `to_bool`. ValueError for anything else."""
    text = value.strip().lower()
    if text not in _YES | _NO:
        known = ", ".join(sorted(_YES | _NO))
        raise ValueError(f"{value!r} is neither yes nor no; the spellings are {known}.")
    return text in _YES if to_bool else int(text in _YES)


def parse_flag_from_env(key: str, default: bool = False) -> bool:
    """Whether the variable `key` says yes; `default` when it is not set. ValueError when it is neither yes nor no."""
    return bool(str_to_bool(os.environ.get(key, str(default))))


def parse_choice_from_env(key: str, default: str = "no") -> str:
    """The variable `key`; `default` when it is not set."""
    return os.environ.get(key, str(default))


def get_int_from_env(env_keys: Iterable[str], default: int) -> int:
    """The first of the variables `env_keys` that is a number of 0 or more, else `default`."""
    values = (_number(os.environ, key, -1) for key in env_keys)
    return next((value for value in values if value >= 0), default)


@contextmanager
def changed(variables: Mapping[str, str], *, cleared: bool = False) -> Iterator[None]:
    """Within the block the environment has `variables` as well, or with `cleared` only those; afterwards it is exactly
    as it was. Of the whole process: other threads see it, too.
    """
    before = current()
    try:
        replace_all(dict(variables) if cleared else before | dict(variables))
        yield
    finally:
        replace_all(before)


@contextmanager
def restored(prefix: str) -> Iterator[None]:
    """After the block the variables whose names begin with `prefix` are as they were, the others as the block left
    them.
    """
    before = {name: value for name, value in os.environ.items() if name.startswith(prefix)}
    try:
        yield
    finally:
        others = {name: value for name, value in os.environ.items() if not name.startswith(prefix)}
        replace_all(others | before)


_YES = frozenset({"y", "yes", "t", "true", "on", "1"})
_NO = frozenset({"n", "no", "f", "false", "off", "0"})


def _is_number(text: str | None) -> bool:
    return text is not None and text.isdecimal()


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else default
