"""How the ranks of a search tell each other, through the run's store, what has become of a try.

    {cell}/{name}/{call}     one call of a search; cell: that kept ranks run, else 0. The others are below it
    .../{try}/begin/{rank}   Readiness: this rank is about to begin the try
    .../{try}/end/{rank}     Outcome of the try on this rank
    .../{try}/out            set: memory has run out on some rank
    .../{try}/watch/{rank}   "out" or "over": wakes that rank's watching thread
    .../{try}/opens/{n}/{rank}   this rank is about to open a process group, its n-th in the try
    .../over/{rank}          this rank needs the store no more
    .../{try}/within/...     the same of the searches that the function calls in that try

The store is the run's own, below any process group, so that it answers while groups are closed and opened again.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import msgspec
from torch.distributed import (  # type: ignore[attr-defined]  # public, says the documentation
    DistError,
    PrefixStore,
    Store,
    TCPStore,
)

from ...protocol import environment, ledger, sink
from ...protocol.agreement import ask_while_waiting
from ...protocol.places import users_place
from ..operations import abandoned
from ..operations.group_store import group_store, read_keys, wait_for_keys
from ..ranks import process_group, turns
from ..ranks.state import existing_facts
from .outcomes import Outcome, Readiness

TELL_S = 30.0
"""A rank that has waited this long for the others says for whom."""
_WATCH = timedelta(days=20)
"""torch counts milliseconds in 32 bits."""
_CONNECT = timedelta(seconds=30)
_THREAD_ENDS_S = 10.0
_FAREWELL_S = 10.0
_CONNECT_S = 300.0
"""As long as torch's TCPStore waits by default."""
_OPENS = "torch.distributed.init_process_group"

Message = TypeVar("Message", Outcome, Readiness)

_kept: set[Store] = set()
"""Where rank 0 serves the store, it would end with the group that it was made for; later groups use it."""


@dataclass(frozen=True)
class _Stage:
    """What ranks wait for each other at, for people."""

    verb: str
    advice: str


_COMES = _Stage("has come to", "Call it on every rank, or with together=False where only some do.")
_CONNECTS = _Stage(
    "waits to connect in",
    "Make the Accelerator, or open the process group, on every rank; after some minutes torch's own time-out decides.",
)
_ENDS = _Stage(
    "has ended",
    "If that rank does not compute for longer, it waits for an operation of all ranks that this one has not called.",
)


@dataclass
class _Scope:
    """Where searches are called: outside of any other, or in one try of another."""

    prefix: str = "accel_nb/search"
    calls: Counter[tuple[int, str]] = field(default_factory=Counter)
    """How often each search was called there, by the cell of kept ranks and its name: alike on all ranks. A cell or a
    try may have ended before it called any.
    """


_scopes = [_Scope()]
"""The innermost last."""


class Ranks:
    """Those of one call of a search. Used by the thread that computes."""

    def __init__(
        self, name: str, rank: int, num_ranks: int, connect: Callable[[], Store], *, rank_0_serves: bool = False
    ) -> None:
        """`connect`: a connection to the store, each time a new one. `rank_0_serves`: it ends with that rank."""
        self.rank = rank
        self.num_ranks = num_ranks
        self._name = name
        self._rank_0_serves = rank_0_serves
        scope, own = _scopes[-1], ledger.own()
        cell = own.cell if own is not None else 0
        scope.calls[cell, name] += 1
        self._prefix = f"{scope.prefix}/{environment.run_and_attempt()}/{cell}/{name}/{scope.calls[cell, name]}"
        self.store = connect()
        self._watched = connect()

    def begin(self, number: int, own: Readiness) -> list[Readiness]:
        """Return once every rank is about to begin the try `number`, with what each has said."""
        prefix = f"{self._prefix}/{number}/begin"
        self.store.set(f"{prefix}/{self.rank}", _text(own))
        return _all(self._everyones(prefix, Readiness, _COMES))

    @contextmanager
    def trying(self, number: int, abort: Callable[[], None]) -> Iterator[None]:
        """A block for the try: whatever waits in it is asked to leave when memory runs out on another rank, by
        `abandoned`, and by `abort`, called from another thread.
        """
        prefix = f"{self._prefix}/{number}"
        _scopes.append(_Scope(f"{prefix}/within"))
        openings = itertools.count()
        try:
            with (
                process_group.meeting_first(lambda: self._meet(f"{prefix}/opens/{next(openings)}")),
                _Watch(self._watched, self.store, f"{prefix}/watch/{self.rank}", abort),
            ):
                yield
        finally:
            _scopes.pop()

    def has_run_out(self, number: int) -> bool:
        """Whether memory has run out on some rank in the try `number`. Told before that rank leaves any group."""
        return self.store.check([f"{self._prefix}/{number}/out"])

    def report(self, number: int, own: Outcome) -> None:
        """How the try has ended here."""
        prefix = f"{self._prefix}/{number}"
        self.store.set(f"{prefix}/end/{self.rank}", _text(own))
        if own.kind == "ran_out":
            self.store.set(f"{prefix}/out", "")
            for rank in range(self.num_ranks):
                self.store.set(f"{prefix}/watch/{rank}", "out")

    def outcomes(self, number: int) -> list[Outcome]:
        """Wait for all ranks to have reported; how it has ended on each."""
        return _all(self._everyones(f"{self._prefix}/{number}/end", Outcome, _ENDS))

    def outcomes_unless_out(self, number: int) -> list[Outcome] | None:
        """As `outcomes`; None as soon as memory has run out on some rank."""
        return self._everyones(f"{self._prefix}/{number}/end", Outcome, _ENDS, unless=lambda: self.has_run_out(number))

    def outcomes_soon(self, number: int, within_s: float) -> list[Outcome] | None:
        """As `outcomes`; None when they are not all there after `within_s`."""
        keys = self._keys(f"{self._prefix}/{number}/end")
        return _messages(self.store, keys, Outcome) if wait_for_keys(self.store, keys, timeout_s=within_s) else None

    def _meet(self, prefix: str) -> None:
        """Wait for all ranks to come here. AnotherRankFailed when memory has run out on one of them."""
        self.store.set(f"{prefix}/{self.rank}", "")
        keys, own = self._keys(prefix), ledger.own()
        with contextlib.nullcontext() if own is None or not own.may_write else own.activity(_OPENS, *users_place()):
            # A launch ends a try that is not left soon. What follows has a time-out of its own.
            if not wait_for_keys(self.store, keys, timeout_s=TELL_S) and not sink.is_open():
                self._tell(keys, _CONNECTS)
                wait_for_keys(self.store, keys, timeout_s=_CONNECT_S)

    def part(self) -> None:
        """The search is over: called by all. The store stays until each has read what it needs."""
        if not self._rank_0_serves:
            return
        prefix = f"{self._prefix}/over"
        self.store.set(f"{prefix}/{self.rank}", "")
        if self.rank == 0:
            wait_for_keys(self.store, self._keys(prefix), timeout_s=_FAREWELL_S)

    def group_prefix(self, number: int) -> str:
        """Where the group that the try `number` begins with has its keys."""
        return f"{self._prefix}/{number}/group"

    def _everyones(
        self, prefix: str, kind: type[Message], stage: _Stage, unless: Callable[[], bool] = lambda: False
    ) -> list[Message] | None:
        keys = self._keys(prefix)
        if not wait_for_keys(self.store, keys, timeout_s=TELL_S, unless=unless) and not unless():
            self._tell(keys, stage)
            wait_for_keys(self.store, keys, unless=unless)
        return None if unless() else _messages(self.store, keys, kind)

    def _keys(self, prefix: str) -> list[str]:
        return [f"{prefix}/{rank}" for rank in range(self.num_ranks)]

    def _tell(self, keys: list[str], stage: _Stage) -> None:
        missing = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
        names = ", ".join(map(str, missing))
        if missing and self.rank == next(rank for rank in range(self.num_ranks) if rank not in missing):
            turns.tell(
                f"{self._name} {stage.verb} a try of find_executable_batch_size on rank {self.rank}, which has waited "
                f"{TELL_S:g} s for rank {names}. {stage.advice}"
            )


class _Watch:
    """Within the block a thread waits for the news that memory has run out on another rank."""

    def __init__(self, watched: Store, store: Store, key: str, abort: Callable[[], None]) -> None:
        """`watched`: a connection for the thread, which nobody else can use meanwhile."""
        self._watched = watched
        self._store = store
        self._key = key
        self._abort = abort
        self._is_over = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="accel_nb batch size", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """A thread that waited for the store when the process ends would abort it (SIGABRT): it always ends here."""
        with self._lock:
            self._is_over = True
        self._store.set(self._key, "over")
        self._thread.join(_THREAD_ENDS_S)
        abandoned.stay(self)

    def _run(self) -> None:
        try:
            self._watched.wait([self._key], _WATCH)
        except DistError:  # the store is gone, and with it the run
            return
        with self._lock:
            if self._is_over:
                return
            abandoned.leave(self, "memory has run out on another rank, which gave up what this one waits for")
            self._abort()


def find_ranks(name: str) -> Ranks | None:
    """The ranks that search together with this one; None: it is alone, or no store is known, which is told."""
    numbers = _own_numbers()
    if numbers is None:
        return None
    # Where the ranks compare what they call, they wait for each other before they do.
    ask_while_waiting(abandoned.check)
    served = environment.served_store()
    if served is not None:
        return Ranks(name, *numbers, lambda: _connected(*served))
    below = _below_default_group()
    if isinstance(below, TCPStore):
        _kept.add(below)
        host, port = below.host, below.port
        return Ranks(name, *numbers, lambda: _connected(host, port), rank_0_serves=True)
    if below is not None:  # a FileStore, which several threads may use
        return Ranks(name, *numbers, lambda: below)
    if numbers[0] == 0:
        turns.tell(
            f"{name} searches its batch size on each rank alone: the ranks have no store to agree through. Make the "
            "Accelerator before it is called."
        )
    return None


def _own_numbers() -> tuple[int, int] | None:
    """This rank's and how many there are; None: one alone."""
    if process_group.is_open():
        from torch import distributed

        numbers = distributed.get_rank(), distributed.get_world_size()
    else:
        facts, started = existing_facts(), environment.read_rank()
        if facts is not None:
            numbers = facts.process_index, facts.num_processes
        elif started is not None:
            numbers = started.rank, started.world_size
        else:
            return None
    return numbers if numbers[1] > 1 else None


def _below_default_group() -> Store | None:
    """The store that the open group was made with."""
    store = group_store() if process_group.is_open() else None
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _all(messages: list[Message] | None) -> list[Message]:
    assert messages is not None, "only a wait with `unless` ends without"
    return messages


def _connected(host: str, port: int) -> Store:
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=_CONNECT)


def _text(message: Outcome | Readiness) -> str:
    return msgspec.json.encode(message).decode()


def _messages(store: Store, keys: list[str], kind: type[Message]) -> list[Message]:
    return [msgspec.json.decode(text, type=kind) for text in read_keys(store, keys)]
