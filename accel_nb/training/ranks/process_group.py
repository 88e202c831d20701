"""Joins this process to the ranks it was started with, and leaves them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from ...devices import gloo_groups
from ...errors import TrainingError
from ...protocol import environment
from . import placement
from .distributed_type import DistributedType
from .mpirun_meeting import met_under_mpirun


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """Who this rank is. The same on every machine: two started ranks are 0 of 2 and 1 of 2, also without hardware."""

    num_processes: int
    process_index: int
    local_process_index: int
    node_index: int = 0
    """Number of the machine; 0 also where the launcher does not tell it."""
    device: torch.device
    distributed_type: DistributedType
    backend: str | None
    """torch.distributed's name of what carries the collectives; None: no process group was needed."""
    launched: bool
    """False: no launcher started this process, as in a notebook's kernel."""
    timeout: timedelta = distributed.constants.default_pg_timeout
    """Of each collective, as far as it was said here."""

    def describe(self) -> str:
        """What ``print(state)`` shows, a line for each fact."""
        backend = f" by {self.backend}" if self.backend else ""
        return (
            f"Distributed environment: {self.distributed_type}{backend}\n"
            f"Rank: {self.process_index} of {self.num_processes}, on its machine {self.local_process_index}\n"
            f"Device: {self.device}\n"
        )


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """Arguments of ``init_process_group``. None: what fits the device, and torch's defaults."""

    backend: str | None = None
    init_method: str | None = None
    timeout: timedelta | None = None
    """Of each collective."""


def join(*, cpu: bool, settings: GroupSettings) -> RankFacts:
    """Choose the device and, among several ranks, open the process group; one that is open already is adopted.

    Blocks until every rank has joined. Raises TrainingError when the start left out something that is needed, or when
    `settings` ask for what an open group cannot have any more.
    """
    started = environment.read_rank()
    device = placement.choose_device(
        cpu=cpu or environment.cpu_requested(),
        local_rank=None if started is None else started.local_rank,
        num_local_ranks=1 if started is None else started.local_world_size,
        is_counted=started is not None and started.is_local_size_told,
        named=environment.torch_device(),
    )
    if is_open():
        adapt(settings)
    elif started is not None and started.world_size > 1:
        _open(started, device, settings)
    if not is_open():
        num_ranks, rank = 1, 0
    else:
        num_ranks, rank = distributed.get_world_size(), distributed.get_rank()
    return RankFacts(
        num_processes=num_ranks,
        process_index=rank,
        local_process_index=0 if num_ranks == 1 else rank if started is None else started.local_rank,
        node_index=0 if started is None else started.node_rank,
        device=device,
        distributed_type=placement.distributed_type(device, num_ranks),
        backend=distributed.get_backend() if is_open() else None,
        launched=started is not None or num_ranks > 1,
        **({} if settings.timeout is None else {"timeout": settings.timeout}),
    )


_before_opening: list[Callable[[], None]] = []
"""The innermost last."""


@contextlib.contextmanager
def meeting_first(meet: Callable[[], None]) -> Iterator[None]:
    """Within the block `meet` is called before a group is opened: there ranks may wait for each other such that they
    can be called off, as they cannot once they connect.
    """
    _before_opening.append(meet)
    try:
        yield
    finally:
        _before_opening.pop()


def is_open() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def adapt(settings: GroupSettings) -> None:
    """Make the open group obey `settings`, as far as an open group can; nothing to do when none is open.

    TrainingError for another backend or a way to meet.
    """
    if not is_open():
        return
    if settings.backend is not None and settings.backend != distributed.get_backend():
        raise TrainingError(
            f"backend={settings.backend!r} was asked for, but the process group is open already, with "
            f"{distributed.get_backend()!r}. Say it to the first Accelerator or PartialState."
        )
    if settings.init_method is not None:
        raise TrainingError(
            f"init_method={settings.init_method!r} was asked for, but the process group is open already. "
            "Say it to the first Accelerator or PartialState."
        )
    if settings.timeout is None:
        return
    if "gloo" in distributed.get_backend() and not gloo_changes_timeouts():
        warnings.warn(
            f"timeout={settings.timeout!r} was asked for, but the process group is open already, and gloo of torch "
            f"{torch.__version__} keeps the timeout that it began with. Say it to the first Accelerator or "
            "PartialState, or use torch 2.9 or newer.",
            stacklevel=2,
        )
        return
    distributed.distributed_c10d._set_pg_timeout(settings.timeout)  # noqa: SLF001  there is no public way


def gloo_changes_timeouts() -> bool:
    """Whether an open group of gloo obeys another timeout: since torch 2.9 (pytorch/pytorch#158128), which has this
    method; before, torch took it and did nothing.
    """
    return hasattr(distributed.ProcessGroupGloo, "set_timeout")


def barrier(device: torch.device) -> None:
    """Return once every rank has called this."""
    distributed.barrier(device_ids=placement.wrapped_device_ids(device))


def leave(group: distributed.ProcessGroup | None = None) -> None:
    """Close `group`, by default all groups. Does nothing when none is open."""
    if is_open():
        gloo_groups.before_closing()
        distributed.destroy_process_group(group)


def _open(started: environment.RankEnvironment, device: torch.device, settings: GroupSettings) -> None:
    with contextlib.ExitStack() as until_all_are_there:
        if _before_opening:
            _before_opening[-1]()
        if settings.init_method is None and not all(environment.read_rendezvous()):
            until_all_are_there.enter_context(_meeting(started))
        _init_process_group(started, device, settings)
        gloo_groups.guard_forks()
        # Only now is everybody connected: a rank that ended before would break the others' connecting (gloo, torch
        # 2.13).
        barrier(device)


def _meeting(started: environment.RankEnvironment) -> contextlib.AbstractContextManager[None]:
    """Where the ranks meet, found out. Raises TrainingError."""
    rank_variable = environment.mpi_rank_variable()
    if rank_variable:
        return met_under_mpirun(started.rank, rank_variable)
    raise TrainingError(
        f"rank {started.rank} of {started.world_size} does not know where to meet the others: MASTER_ADDR and "
        "MASTER_PORT are not set. torchrun and accel-nb set them; with srun, or mpirun over several machines, set them "
        "to the host of rank 0 and a free port there."
    )


def _init_process_group(started: environment.RankEnvironment, device: torch.device, settings: GroupSettings) -> None:
    arguments: dict[str, Any] = {"backend": settings.backend or placement.process_group_backend(device)}
    if settings.timeout is not None:
        arguments["timeout"] = settings.timeout
    if settings.init_method is not None:
        arguments["init_method"] = settings.init_method
    bound_device = placement.eager_group_device(device)
    if bound_device is not None:
        arguments["device_id"] = bound_device
    # torchrun's variables say rank and size by themselves; MPI's and SLURM's do not, nor does another way to meet.
    if "RANK" not in environment.current() or settings.init_method is not None:
        arguments |= {"rank": started.rank, "world_size": started.world_size}
    distributed.init_process_group(**arguments)
