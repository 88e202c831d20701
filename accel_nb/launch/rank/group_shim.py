"""Around ``torch.distributed.init_process_group``, in ranks only: the run's own store, a fresh prefix per call, or the
group that a standby rank has opened already; and
around ``destroy_process_group``: no deadlock, and no waiting.

With torchrun's bare agent store the second ``init_process_group`` of a rank finds the keys of the first and hangs. Here
every call gets a prefix ``attempt{a}/init{n}``, so that init, destroy, init again works for any framework. A call that
names its own store, another init method or another address is left alone.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from ...devices import gloo_groups
from ...errors import RendezvousTimeout
from ...protocol import environment, ledger
from ...protocol.commands import RankOrder
from ...protocol.places import users_place
from ..host_names import looked_up_in_hosts_file
from .hidden_group import HiddenGroup

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import PrefixStore, TCPStore

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05
_ADOPTS = "adopts"
"""What a rank says on its arrival when it could take the group that it has opened already."""
EPOCH_BITS = 10
"""So many default groups, in bits, may a rank open or close before its counts are those of the next epoch."""


class ShimContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where this rank's store is and who it is there."""

    host: str
    port: int
    rank: int
    num_ranks: int
    attempt: int
    rendezvous_s: float
    process_group: str = ""
    """The backend that the run was planned for."""

    @classmethod
    def of(cls, order: RankOrder) -> ShimContext:
        return cls(
            host=order.store_host,
            port=order.store_port,
            rank=order.rank_plan.rank,
            num_ranks=order.num_ranks,
            attempt=order.attempt,
            rendezvous_s=order.rendezvous_s,
            process_group=order.process_group,
        )


class GroupShim:
    """Wraps torch's function in this process. Installed before anything else is imported, active in ranks."""

    def __init__(self) -> None:
        self._context: ShimContext | None = None
        self._client: TCPStore | None = None
        """A connection made ahead, for the first call."""
        self._inits = 0
        self._hidden: HiddenGroup | None = None
        """What a standby rank has opened, until the function opens or replaces it."""
        self._originals: dict[str, Callable[..., None]] = {}
        """torch's own functions, by name."""
        self._generation = 0
        """How many times a default group was opened or closed since the function began, ours or not."""

    def install(self) -> None:
        """Put the wrappers wherever torch keeps the functions: its own modules have copied some (device_mesh). A second
        call, as of a fork whose parent has done so, does nothing.
        """
        import torch.distributed as dist

        if self._originals:
            return

        for function, around in (
            (dist.init_process_group, self._around),
            (dist.destroy_process_group, self._around_destruction),
        ):
            self._originals[function.__name__] = function
            wrapped = around(function)
            for name, module in list(sys.modules.items()):
                if name.startswith("torch.") and vars(module).get(function.__name__) is function:
                    vars(module)[function.__name__] = wrapped

    def activate(self, context: ShimContext) -> None:
        self._context = context

    def connect(self, host: str, port: int) -> None:
        """Connect to the store that the coming run will use. Does nothing in a process without torch."""
        if "torch" in sys.modules:
            self._client = _connected_early(host, port)

    def stand_by(self, context: ShimContext, device: torch.device) -> None:
        """Open, with all ranks of the coming run, the default group that it is planned for, and hide it."""
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public, not in __all__

        # With a connection of its own: the group's threads use it, and must not make others wait.
        store = PrefixStore("standby", _connected_early(context.host, context.port))
        self._hidden = HiddenGroup(
            self._originals["init_process_group"],
            self._originals["destroy_process_group"],
            store=store,
            rank=context.rank,
            num_ranks=context.num_ranks,
            backend=context.process_group,
            device=device,
        )

    def realign(self, epoch: int) -> None:
        """Count the default groups that follow from `epoch` on: ranks that were out of step meet again."""
        self._inits = self._generation = epoch << EPOCH_BITS
        if (own := ledger.own()) is not None:
            own.begin_generation(self._generation)

    def close_groups(self) -> None:
        """Destroy the default group if the function left one that holds devices.

        gloo's is left to the end of the process: its destruction waits for a thread which, when it was the last to hold
        a tensor, waits for the GIL in turn (torch 2.6).
        """
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized() and dist.get_backend() != "gloo":
            dist.destroy_process_group()

    def _around(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init_process_group(*args: object, **kwargs: object) -> None:
            with self._new_generation():
                self._initialise(original, signature.bind(*args, **kwargs))

        return init_process_group

    def _initialise(self, original: Callable[..., None], call: inspect.BoundArguments) -> None:
        context = self._context
        if context is None:
            original(*call.args, **call.kwargs)
            return
        if _world_size() or not self._is_ours(call, context):
            # With an open one torch refuses.
            if not _world_size():
                self._drop_hidden()
            original(*call.args, **call.kwargs)
        else:
            self._open_ours(original, call, context)
            if _world_size() == context.num_ranks and _backend() == context.process_group:
                _note_opened_group()
        gloo_groups.guard_forks()

    def _open_ours(self, original: Callable[..., None], call: inspect.BoundArguments, context: ShimContext) -> None:
        """A group of the run's ranks: the one that all of them have opened already, or a new one."""
        timeout = call.arguments.get("timeout")
        may_adopt = self._hidden is not None and self._hidden.fits(call)
        store, all_adopt = self._store(
            context, timeout if isinstance(timeout, timedelta) else None, may_adopt=may_adopt
        )
        if self._hidden is not None and all_adopt:
            self._hidden.adopt(call)
            self._hidden = None
            return
        self._drop_hidden()
        call.arguments.pop("init_method", None)
        call.arguments |= {"store": store, "rank": context.rank, "world_size": context.num_ranks}
        original(*call.args, **call.kwargs)

    def _drop_hidden(self) -> None:
        hidden, self._hidden = self._hidden, None
        if hidden is not None:
            hidden.drop()

    @contextlib.contextmanager
    def _new_generation(self) -> Iterator[None]:
        """While the default group is opened."""
        own = ledger.own()
        if own is None or _world_size():  # an open one stays: torch refuses
            yield
            return
        self._leave_generation(own)
        with own.activity("torch.distributed.init_process_group", *users_place()):
            yield
        own.spans_run = _world_size() == own.page.num_ranks

    def _leave_generation(self, own: ledger.RankLedger) -> None:
        self._generation += 1
        own.begin_generation(self._generation)

    def _around_destruction(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def destroy_process_group(*args: object, **kwargs: object) -> None:
            if self._context is None:
                original(*args, **kwargs)
                return
            own = ledger.own()
            if own is not None and _closes_default(*args, **kwargs):
                self._leave_generation(own)
            gloo_groups.before_closing()
            with _closed_apart():
                original(*args, **kwargs)

        return destroy_process_group

    @staticmethod
    def _is_ours(call: inspect.BoundArguments, context: ShimContext) -> bool:
        given = call.arguments
        return (
            given.get("store") is None
            and given.get("init_method") in (None, "env://")
            and given.get("rank", -1) in (-1, context.rank)
            and given.get("world_size", -1) in (-1, None, context.num_ranks)
            and environment.read_rendezvous() == (context.host, context.port)
        )

    def _store(self, context: ShimContext, timeout: timedelta | None, *, may_adopt: bool) -> tuple[PrefixStore, bool]:
        """The run's store under this call's own prefix, after all ranks have arrived there; and whether all of them
        may adopt the group that they have opened already.

        Raises RendezvousTimeout with the missing ranks after `context.rendezvous_s`.
        """
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public, not in __all__
        from torch.distributed.constants import default_pg_timeout

        ahead, self._client = self._client, None
        if ahead is None or (ahead.host, ahead.port) != (context.host, context.port):
            ahead = _connected(context.host, context.port)
        store = PrefixStore(f"attempt{context.attempt}/init{self._inits}", ahead)
        self._inits += 1
        arrived = [f"arrived/{rank}" for rank in range(context.num_ranks)]
        store.set(arrived[context.rank], _ADOPTS if may_adopt else "")
        _wait_for_all(store, arrived, context)
        all_adopt = may_adopt and all(word == _ADOPTS.encode() for word in store.multi_get(arrived))
        # From here on the store answers within the group's own timeout, as it would without us.
        store.set_timeout(timeout or default_pg_timeout)
        return store, all_adopt


@contextlib.contextmanager
def _closed_apart() -> Iterator[None]:
    """The default group, destroyed inside, closes its connections in a thread of its own, soon afterwards.

    gloo waits for a tick of its loop, up to 10 ms, for each connection: with eight ranks that was half of a short
    launch (measured: 79 of 139 ms). Nobody needs to wait for it: the next group has connections of its own, and a rank
    that ends does not need to have closed any.
    """
    import torch.distributed as dist

    is_gloo = dist.is_initialized() and dist.get_backend() == "gloo"
    handles = [dist.group.WORLD] if is_gloo else []
    yield
    # A thread that Python does not know: none that user code would see, or that the end of the process waits for.
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(handles.clear, ())


def _note_opened_group() -> None:
    """In the ledger: the next run will want such a group, too."""
    own = ledger.own()
    if own is not None and own.may_write:
        own.note_opened_group()


def _backend() -> str:
    import torch.distributed as dist

    return dist.get_backend() if dist.is_initialized() else ""


def _closes_default(group: object = None) -> bool:
    import torch.distributed as dist

    return dist.is_initialized() and (group is None or group is dist.group.WORLD)


def _world_size() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_initialized() else 0


def _connected_early(host: str, port: int) -> TCPStore:
    """To this machine, before code of the user's runs: nothing looks up names of other machines meanwhile."""
    with looked_up_in_hosts_file():
        return _connected(host, port)


def _connected(host: str, port: int) -> TCPStore:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in __all__

    return TCPStore(host, port, is_master=False, wait_for_workers=False)


def _wait_for_all(store: PrefixStore, arrived: list[str], context: ShimContext) -> None:
    """Poll, so that an interrupt is obeyed at once: the store's own wait does not return for a signal."""
    end = time.monotonic() + context.rendezvous_s
    pause_s = _FIRST_PAUSE_S
    while not store.check(arrived):
        if time.monotonic() >= end:
            missing = [rank for rank, key in enumerate(arrived) if not store.check([key])]
            raise RendezvousTimeout(_missing_text(missing, context))
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def _missing_text(missing: list[int], context: ShimContext) -> str:
    names = ", ".join(map(str, missing))
    came = context.num_ranks - len(missing)
    where = f"init_process_group at {context.host}:{context.port}"
    # The same text on every rank that waited: the failures are told as one.
    return (
        f"{came} of {context.num_ranks} ranks came to {where} within {context.rendezvous_s:g} s, missing: {names}. "
        f"Every rank must call it (building an Accelerator does); if one of them is only slow, pass "
        "timeouts=Timeouts(rendezvous_s=...)."
    )


SHIM = GroupShim()
"""The one wrapper of this process: torch has one ``init_process_group``."""
