"""Where ranks wait for each other before they save or load together, and learn at once that one does not come.

Through the store of the run, on connections of our own:

    {n}/rank    what that rank came to the n-th meeting for, and how far it has
                come: backwards that all ranks share
    {n}/count   how many have come
    {n}/open    the rank that has come first; "over": one has ended, there will be no such meeting
    {n}/settling how many wanted to say what has become of it; the first one does
    {n}/settled "all": have come; else why this can never happen

A rank that trains on needs the others in its forward or backward, where they never come, since they wait here: a
watching thread of that rank sees it and settles the meeting.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import msgspec
from torch.distributed import (  # type: ignore[attr-defined]  # all are public, says the documentation
    DistError,
    DistStoreError,
    Store,
    TCPStore,
)

from ...errors import CheckpointError
from ...protocol import environment, lockstep
from ..operations.group_store import wait_for_keys
from ..ranks.process_group import RankFacts

TELL_S = 30.0
"""A rank that has waited this long says for whom."""
PATIENCE_S = 1800.0
"""As long as a collective of gloo waits (torch's default)."""
LOOK_S = 0.25
STUCK_S = 5.0
"""The forward of a prepared model in training waits only for what the first comer has sent long ago, or will never
send."""
_CONNECT_S = 10.0
_WATCH_S = 20 * 86400.0
"""torch writes a line when a wait runs out, and counts milliseconds in 32 bits."""

_PLACES = {
    ("torch.autograd", "backward"): "backward",
    # where DistributedDataParallel (torch 2.6 to 2.13) sends buffers, and in the second pass its buckets, to all ranks
    ("torch.nn.parallel.distributed", "_pre_forward"): "forward",
}
"""Module and function -> what the user calls it."""

_ALL_HAVE_COME = "all"
_OVER = "over"


@dataclass
class _Counts:
    """Of this process, not of one Accelerator: its ranks may use one to train and another to save. They begin again
    when the ranks have parted.
    """

    epoch: int
    """`lockstep.epoch`."""
    meetings: int = 0
    """Number of the one that this rank came to last, alike on all ranks."""
    joins: int = 0
    """Blocks in which ranks may have unequally many backwards that are over, alike on all ranks."""
    backwards: int = 0
    """How many that wait for the other ranks this one has begun since the last of these blocks."""
    trainer: int = 0
    """The thread that began the last one."""
    has_watched: bool = False
    """Whether a watcher was wanted; there is none when the run's store is not known."""
    watcher: _Watcher | None = None

    @property
    def progress(self) -> tuple[int, int]:
        """Alike on ranks that have come equally far."""
        return self.joins, self.backwards

    def name(self, number: int) -> str:
        """What the keys of the `number`-th meeting begin with."""
        # A launcher that starts the ranks again may keep its store.
        return f"accel_nb/meeting/{environment.run_and_attempt()}/{self.epoch}/{number}"


_counts = _Counts(epoch=0)


def _current() -> _Counts:
    """Called by the thread that trains."""
    global _counts  # noqa: PLW0603  one per process is the point
    if _counts.epoch != lockstep.epoch():
        if (watcher := _counts.watcher) is not None:
            atexit.unregister(watcher.end)
            watcher.end()
        _counts = _Counts(lockstep.epoch(), trainer=_counts.trainer)
        if watcher is not None:
            _watch(watcher.rank, _counts)
    return _counts


class Arrival(msgspec.Struct, frozen=True):
    """One rank at a meeting."""

    operation: str
    progress: tuple[int, int]
    """`_Counts.progress`."""


class Meeting:
    """Used by the thread that trains."""

    def __init__(self, facts: RankFacts) -> None:
        self._facts = facts
        self._store: Store | None = None
        _current()  # where the ranks have parted, those that train are watched again from here on

    def note_backward(self) -> None:
        """This rank begins a backward that waits for the other ranks. Of others each rank may have its own number."""
        counts = _current()
        counts.backwards += 1
        lockstep.stand_at("backwards", counts.backwards)
        counts.trainer = threading.get_ident()
        if not counts.has_watched and self._facts.num_processes > 1:
            _watch(self._facts.process_index, counts)

    def note_joined(self) -> None:
        """A block is over in which ranks waited for those that had more batches: from now on all count from here."""
        counts = _current()
        counts.joins += 1
        counts.backwards = 0
        lockstep.stand_at("backwards", 0)

    def arrive(self, operation: str) -> None:
        """Return once every rank has come for the same `operation`. CheckpointError as soon as that cannot happen."""
        counts = _current()
        counts.meetings += 1
        lockstep.stand_at("checkpoints", counts.meetings)
        if self._facts.num_processes == 1:
            return
        self._store = self._store or _connect()
        if self._store is None:  # the group was opened in another way; the collective that follows waits, too
            return
        store, name = self._store, counts.name(counts.meetings)
        own = Arrival(operation, counts.progress)
        store.set(f"{name}/{self._facts.process_index}", msgspec.json.encode(own).decode())
        num_there = store.add(f"{name}/count", 1)
        if num_there == 1:
            store.set(f"{name}/open", str(self._facts.process_index))
        if num_there == self._facts.num_processes:
            _settle(store, name, self._disagreement(store, name))
        reason = self._wait(store, name, operation, is_first=num_there == 1)
        if reason != _ALL_HAVE_COME:
            raise CheckpointError(reason)

    def _wait(self, store: Store, name: str, operation: str, *, is_first: bool) -> str:
        settled = [f"{name}/settled"]
        if not wait_for_keys(store, settled, timeout_s=TELL_S):
            if is_first:
                print(self._waiting(store, name, operation, TELL_S))  # noqa: T201  for the user of the rank
            if not wait_for_keys(store, settled, timeout_s=PATIENCE_S):
                _settle(store, name, self._waiting(store, name, operation, TELL_S + PATIENCE_S))
        return store.get(f"{name}/settled").decode()

    def _waiting(self, store: Store, name: str, operation: str, waited_s: float) -> str:
        missing = [rank for rank in range(self._facts.num_processes) if not store.check([f"{name}/{rank}"])]
        return (
            f"rank {self._facts.process_index} has waited {waited_s:.0f} s in {operation} for rank "
            f"{', '.join(map(str, missing))}. {_hint(operation)}"
        )

    def _disagreement(self, store: Store, name: str) -> str:
        ranks = range(self._facts.num_processes)
        arrivals = [_decode(store.get(f"{name}/{rank}")) for rank in ranks]
        if len({one.operation for one in arrivals}) == 1:
            return _ALL_HAVE_COME
        called = ", ".join(f"rank {rank} {one.operation}" for rank, one in zip(ranks, arrivals, strict=True))
        return f"the ranks have called different operations at the same time: {called}. Let all call the same."


class Counted(msgspec.Struct, frozen=True):
    """How far a rank has come."""

    meetings: int = 0
    joins: int = 0


def counted() -> Counted:
    """Of this rank, for `go_on_after` on all."""
    counts = _current()
    return Counted(counts.meetings, counts.joins)


def go_on_after(everyones: Sequence[Counted]) -> None:
    """From here on all ranks count alike: they have left what they did at different places, some after more meetings
    and more backwards than others.
    """
    counts = _current()
    counts.meetings = max(one.meetings for one in everyones)
    counts.joins = 1 + max(one.joins for one in everyones)
    counts.backwards = 0
    lockstep.stand_at("checkpoints", counts.meetings)
    lockstep.stand_at("backwards", 0)


class _Watcher(threading.Thread):
    """Sees that this rank trains on while another waits: from its first backward to its end, or until ranks part."""

    def __init__(self, rank: int, counts: _Counts, store: Store, waker: Store) -> None:
        """`store`, `waker`: connections; the thread waits on the first, which nobody else can use meanwhile."""
        super().__init__(name="accel_nb meetings", daemon=True)
        self.rank = rank
        self._counts = counts
        self._store = store
        self._waker = waker
        self._is_ending = threading.Event()

    def run(self) -> None:
        number = self._counts.meetings
        try:
            while not self._is_ending.is_set():
                number += 1
                self._look_at(number)
        except (DistError, _RankEnds):  # the store is gone, or nobody will meet any more
            return

    def end(self) -> None:
        """Called before the process exits: a thread that still waits for the store then would abort it (SIGABRT). In a
        fork of the process there is no such thread.
        """
        if not self.is_alive():
            return
        self._is_ending.set()
        with suppress(DistError):
            names = [self._counts.name(number) for number in (self._counts.meetings, self._counts.meetings + 1)]
            # The first is open, unless an interrupt came just before.
            for key in [f"{name}/open" for name in names]:
                if not self._waker.check([key]):
                    self._waker.set(key, _OVER)
        self.join(_CONNECT_S)

    def _look_at(self, number: int) -> None:
        store, counts, name = self._store, self._counts, self._counts.name(number)
        while not _comes(store, f"{name}/open", _WATCH_S):
            pass
        opened_by = store.get(f"{name}/open").decode()
        if opened_by == _OVER:
            raise _RankEnds
        first_rank = int(opened_by)
        first = _decode(store.get(f"{name}/{first_rank}"))
        num_looks_in_forward = 0
        while counts.meetings < number and not self._is_ending.is_set() and not store.check([f"{name}/settled"]):
            place = _place_of(counts.trainer)
            num_looks_in_forward = num_looks_in_forward + 1 if place == "forward" else 0
            is_ahead = place == "backward" and counts.progress > first.progress
            if is_ahead or num_looks_in_forward * LOOK_S >= STUCK_S:
                _settle(store, name, self._accusation(first_rank, first.operation, place))
            self._is_ending.wait(LOOK_S)

    def _accusation(self, first_rank: int, operation: str, place: str) -> str:
        return (
            f"rank {first_rank} is in {operation}, and rank {self.rank} goes on training without it: "
            f"it is in a {place} that needs rank {first_rank}. {_hint(operation)}"
        )


class _RankEnds(Exception):
    """A rank has come to the end of its program."""


def _watch(rank: int, counts: _Counts) -> None:
    """Start the watching thread of this process, if the run's store is known."""
    counts.has_watched = True
    store, waker = _connect(), _connect()
    if store is not None and waker is not None:
        counts.watcher = _Watcher(rank, counts, store, waker)
        counts.watcher.start()
        atexit.register(counts.watcher.end)


def _settle(store: Store, name: str, reason: str) -> None:
    """Whoever comes first says what has become of the meeting, for all ranks."""
    # Not by compare_set, which wakes nobody who waits for the key in stores without libuv (torch 2.13), as a launch's.
    if store.add(f"{name}/settling", 1) == 1:
        store.set(f"{name}/settled", reason)


def _hint(operation: str) -> str:
    return f"Call {operation} on every rank, not inside `if accelerator.is_main_process:`."


def _comes(store: Store, key: str, timeout_s: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=timeout_s))
    except DistStoreError:
        return False
    return True


def _place_of(thread: int) -> str:
    """Whether `thread` is where a prepared model waits for the other ranks: "forward", "backward", or neither, ""."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  CPython's documented way to look at another thread
    while frame is not None:
        place = _PLACES.get((frame.f_globals.get("__name__", ""), frame.f_code.co_name))
        # In evaluation a rank may wait for another that is only slow: gloo passes buffers on from rank to rank.
        if place is not None and (place != "forward" or frame.f_locals["self"].training):
            return place
        frame = frame.f_back
    return ""


def _decode(arrival: bytes) -> Arrival:
    return msgspec.json.decode(arrival, type=Arrival)


def _connect() -> Store | None:
    """A connection of our own to the run's store; None when none is known or it does not answer."""
    host, port = environment.read_rendezvous()
    if not host:
        return None
    try:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_CONNECT_S))
    except DistError:
        return None
