"""Close this rank's process groups in the middle of whatever the ranks were doing, and open them again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed import PrefixStore, Store, distributed_c10d  # type: ignore[attr-defined]  # public, not in __all__

from ...devices import gloo_groups, nccl_groups
from ..ranks import placement, process_group, state

_CLOSE = {"nccl": nccl_groups.close, "gloo": gloo_groups.close}
"""How ranks that wait in an operation of this backend are freed. Any other is closed as always: they may go on waiting.
"""
_UNNAMED = "undefined"
"""What torch calls the backend of a group that it was to choose backends for."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What it takes to make the default group as it was."""

    backend: str
    timeout: timedelta | None
    """None: torch's default."""
    device: torch.device | None
    """Bound to the group; None where there is none."""


def recipe_of_group() -> Recipe | None:
    """Of the open group, or else of the one that the states were made with: it may have been aborted meanwhile. None:
    there is neither.
    """
    facts = state.existing_facts()
    backend = distributed.get_backend() if process_group.is_open() else None if facts is None else facts.backend
    if backend is None:
        return None
    return Recipe(
        backend=backend,
        timeout=None if facts is None else facts.timeout,
        device=None if facts is None else placement.eager_group_device(facts.device),
    )


def progress_of_groups() -> str:
    """How many operations were begun in each group: ranks that say the same owe each other nothing. Empty: none open.
    Where a group does not count them, as one of several backends, every rank says something of its own.

    Private names of every torch since 2.0, guarded by tests on the oldest and the newest.
    """
    if not process_group.is_open():
        return ""
    groups: dict[Any, Any] = {**distributed_c10d._world.pg_names}  # noqa: SLF001
    return " ".join(sorted(f"{name}:{_progress(group)}" for group, name in groups.items()))


def _progress(group: Any) -> str:  # noqa: ANN401  torch does not say
    try:
        return str(group._get_sequence_number_for_group())  # noqa: SLF001
    except RuntimeError:
        return f"unknown to rank {distributed.get_rank()}"


def frees_by_abort() -> bool:
    """Whether a rank that waits in the open group is freed from another thread of its own. With gloo that deadlocks."""
    return process_group.is_open() and _carrier() == "nccl"


def close() -> None:
    """Close all groups. The ranks that wait for this one in them get an error. Nothing to do when none is open."""
    if process_group.is_open():
        _CLOSE.get(_carrier(), process_group.leave)()


def reopen(recipe: Recipe, store: Store, prefix: str, rank: int, num_ranks: int) -> None:
    """Open the default group again and bring the states up to date. Every rank must call this with the same `prefix`,
    one that was never used; blocks until all have.
    """
    arguments: dict[str, Any] = {} if recipe.backend == _UNNAMED else {"backend": recipe.backend}
    if recipe.timeout is not None:
        arguments["timeout"] = recipe.timeout
    if recipe.device is not None:
        arguments["device_id"] = recipe.device
    # A store of its own makes it the same under every launcher.
    distributed.init_process_group(store=PrefixStore(prefix, store), rank=rank, world_size=num_ranks, **arguments)
    device = recipe.device or torch.device("cpu")
    process_group.barrier(device)
    state.note_rebuilt_group()


def _carrier() -> str:
    """The backend that carries the operations of this rank's device, of those that the open group has."""
    # A text such as cpu:gloo,cuda:nccl
    names = {pair.partition(":")[2] for pair in distributed.get_backend_config().split(",")}
    if len(names) > 1:
        names = names & placement.open_process_groups() or names & {"gloo"}
    return next((name for name in _CLOSE if name in names), "")
