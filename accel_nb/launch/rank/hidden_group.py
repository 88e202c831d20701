"""A default process group that a rank opened before it knew its function, kept out of sight until the function asks
for such a group.

opened, first operation done -> hidden: ``torch.distributed.is_initialized()`` is False -> adopted | dropped
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ...protocol import environment

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import PrefixStore

_READ_BY_TRANSPORTS = ("GLOO_", "NCCL_", "TORCH_")
"""Beginnings of variables that are read when a group is opened."""


class HiddenGroup:
    """One group. Used by the thread that runs the function.

    Opened by `init`, which is torch's own ``init_process_group``; `destroy` is its ``destroy_process_group``. Neither
    is called with anything that only they know, so that what they leave in torch's records is torch's business.
    """

    def __init__(
        self,
        init: Callable[..., None],
        destroy: Callable[..., None],
        *,
        store: PrefixStore,
        rank: int,
        num_ranks: int,
        backend: str,
        device: torch.device,
    ) -> None:
        """Open it with all ranks, do the first operation, hide it. `device` must be the current one of its kind."""
        import torch.distributed as dist

        self._destroy = destroy
        self._backend = backend
        self._device = device
        self._variables = _transport_variables()
        own_hook = sys.excepthook
        init(backend=backend, store=store, rank=rank, world_size=num_ranks)
        if (counted := _count_ranks(device)) != num_ranks:
            raise RuntimeError(f"the first all_reduce of {num_ranks} ranks counted {counted:g}")
        # torch names the rank in what the hook writes, from the moment on at which the group is open.
        self._hook, sys.excepthook = sys.excepthook, own_hook
        self._group: Any = dist.distributed_c10d.GroupMember.WORLD  # torch's ProcessGroup
        _set_default(None)

    def fits(self, call: inspect.BoundArguments) -> bool:
        """Whether `call` of ``init_process_group``, which is known to mean the run's ranks, would open such a group."""
        given = call.arguments
        known = {"backend", "init_method", "timeout", "world_size", "rank", "store", "group_name", "device_id"}
        return (
            str(given.get("backend")).lower() == self._backend
            and all(name in known or not value for name, value in given.items())
            and self._is_own_device(given.get("device_id"))
            and self._can_have(given.get("timeout"))
            and _transport_variables() == self._variables
        )

    def adopt(self, call: inspect.BoundArguments) -> None:
        """Make it the default group that `call`, which fits, asks for."""
        from torch.distributed import constants, distributed_c10d

        given = call.arguments
        _set_default(self._group)
        _put_into(self._hook, sys.excepthook)
        sys.excepthook = self._hook
        if given.get("device_id") is not None:
            self._group.bound_device_id = self._device
        timeout = given.get("timeout")
        if timeout is not None and timeout != self._default_timeout():
            distributed_c10d._set_pg_timeout(timeout)  # noqa: SLF001  there is no public way
        distributed_c10d._get_default_store().set_timeout(  # noqa: SLF001  likewise
            timeout or constants.default_pg_timeout
        )

    def drop(self) -> None:
        """Close it: another group is wanted."""
        from torch.distributed import distributed_c10d

        _set_default(self._group)
        self._group = None
        if self._backend == "nccl":
            # To destroy it as usual the ranks would wait for each other.
            distributed_c10d._abort_process_group()  # noqa: SLF001  see accel_nb.devices.nccl_groups
        if distributed_c10d.is_initialized():
            self._destroy()

    def _is_own_device(self, device: object) -> bool:
        return device is None or device == self._device or (self._device.type != "cpu" and device == self._device.index)

    def _can_have(self, timeout: object) -> bool:
        from torch import distributed

        if timeout is None or timeout == self._default_timeout():
            return True
        # gloo obeys another one since torch 2.9, which has this method: pytorch/pytorch#158128
        changes = self._backend != "gloo" or hasattr(distributed.ProcessGroupGloo, "set_timeout")
        return isinstance(timeout, timedelta) and changes

    def _default_timeout(self) -> timedelta:
        from torch.distributed import Backend, distributed_c10d

        default: timedelta = distributed_c10d._get_default_timeout(Backend(self._backend))  # noqa: SLF001  no public way
        return default


def _count_ranks(device: torch.device) -> float:
    """By a first all_reduce, which connects them. Leaves no tensor behind."""
    import torch
    import torch.distributed as dist

    counted = torch.ones(1, device=device)
    dist.all_reduce(counted)
    return counted.item()


def _set_default(group: Any) -> None:  # noqa: ANN401  torch's, or None
    """The one place at which torch keeps the default group (torch 2.1 to 2.13), guarded by a test on the oldest and the
    newest.
    """
    from torch.distributed import distributed_c10d

    distributed_c10d._update_default_pg(group)  # noqa: SLF001  see above


def _put_into(hook: Callable[..., object], inner: Callable[..., object]) -> None:
    """Have torch's `hook` call `inner`, which user code may have set since."""
    free = getattr(hook, "__code__", None)
    names = () if free is None else free.co_freevars
    for name, cell in zip(names, getattr(hook, "__closure__", None) or (), strict=True):
        if name == "old_hook":
            cell.cell_contents = inner


def _transport_variables() -> dict[str, str]:
    variables = environment.current()
    return {name: value for name, value in variables.items() if name.startswith(_READ_BY_TRANSPORTS)}
