"""Refuse what would hang: before each operation ranks compare what they call, and with what.

`Checked` is there or it is not; the operations themselves know nothing of it. How ranks compare is the `Comparison`'s
business:  operation -> Checked -> Comparison -> operation, or error on all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Protocol

from torch.distributed import Store  # type: ignore[attr-defined]  # public, says the documentation

from ...errors import DistributedOperationException
from ...protocol import agreement, lockstep
from ...protocol.mismatch import mismatch
from ...protocol.places import place_text, users_place
from .group_store import read_keys, wait_for_keys
from .nested import Data
from .structure import describe, dims_and_dtype
from .transport import PUBLIC_HOME, Collectives

_SEPARATOR = "\x1f"
_FAREWELL_S = 5.0
"""How long a rank that is about to raise waits for the others to have read why."""


class Comparison(Protocol):
    """Tells each rank what the others are about to do."""

    def comparing(self, operation: str, given: str) -> AbstractContextManager[None]:
        """Around one operation. Entered when every rank has come to it with the same two values; else raises
        DistributedOperationException on all ranks.

        `operation`: its dotted name. `given`: what it was called with.
        """
        ...


class StoreComparison:
    """Compares through the group's store: two round trips, apart from any collective."""

    def __init__(self, store: Store, rank: int, num_ranks: int, timeout: timedelta) -> None:
        self._store = store
        self._rank = rank
        self._num_ranks = num_ranks
        self._timeout_s = timeout.total_seconds()
        # A store outlives states: keys of an earlier comparison are not ours.
        generation = store.add(f"accel_nb/comparisons/{rank}", 1)
        self._prefix = f"accel_nb/comparison{generation}"
        self._turn = 0

    @contextmanager
    def comparing(self, operation: str, given: str) -> Iterator[None]:
        if not agreement.is_unchecked():
            self._agree(_SEPARATOR.join([operation, given, place_text(*users_place())]))
        yield

    def _agree(self, own: str) -> None:
        lines = [line.split(_SEPARATOR) for line in self._everyones(own)]
        if len({(operation, given) for operation, given, _ in lines}) > 1:
            self._part()
            names, given, places = (list(column) for column in zip(*lines, strict=True))
            raise mismatch(names, given, places, reports=self._rank == 0)

    def _everyones(self, own: str) -> list[str]:
        """The lines of all ranks, by rank."""
        lockstep.note("comparisons")
        self._turn += 1
        keys = self._keys(self._turn)
        self._store.set(keys[self._rank], own)
        if not wait_for_keys(self._store, keys, timeout_s=self._timeout_s):
            absent = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            raise DistributedOperationException(self._missing(own.partition(_SEPARATOR)[0], absent))
        lines = read_keys(self._store, keys)
        # Everybody has come to this turn, so nobody reads the keys of the last one any more.
        self._store.delete_key(self._keys(self._turn - 1)[self._rank])
        return lines

    def _part(self) -> None:
        """Before an error on all ranks: returns when all have read each other's lines, or soon after."""
        keys = [f"{key}/read" for key in self._keys(self._turn)]
        self._store.set(keys[self._rank], "")
        wait_for_keys(self._store, keys, timeout_s=_FAREWELL_S)

    def _keys(self, turn: int) -> list[str]:
        return [f"{self._prefix}/{turn}/{rank}" for rank in range(self._num_ranks)]

    def _missing(self, operation: str, absent: Sequence[int]) -> str:
        ranks = " and ".join(f"rank {rank}" for rank in absent)
        return (
            f"rank {self._rank} of {self._num_ranks} waited {self._timeout_s:g} s in {operation} for "
            f"{ranks}: no operation of accel_nb was called there. Every rank has to call it, and checks have to be on "
            "for all ranks or for none."
        )


class Checked:
    """`inner`, but an operation that ranks do not call alike raises DistributedOperationException on all of them."""

    def __init__(self, inner: Collectives, comparison: Comparison) -> None:
        self.inner = inner
        self._comparing = comparison.comparing

    @property
    def num_ranks(self) -> int:
        return self.inner.num_ranks

    def gather(self, data: Data) -> Data:
        with self._comparing(f"{PUBLIC_HOME}.gather", describe(data)):
            return self.inner.gather(data)

    def gather_object(self, value: object) -> list[object]:
        with self._comparing(f"{PUBLIC_HOME}.gather_object", ""):
            return self.inner.gather_object(value)

    def broadcast(self, data: Data, source: int) -> Data:
        with self._comparing(f"{PUBLIC_HOME}.broadcast", f"{describe(data)}, from_process={source}"):
            return self.inner.broadcast(data, source)

    def broadcast_object(self, value: object, source: int) -> object:
        with self._comparing(f"{PUBLIC_HOME}.broadcast_object_list", f"from_process={source}"):
            return self.inner.broadcast_object(value, source)

    def reduce(self, data: Data, reduction: str, scale: float) -> Data:
        with self._comparing(f"{PUBLIC_HOME}.reduce", f"{describe(data)}, {reduction!r}, scale={scale}"):
            return self.inner.reduce(data, reduction, scale)

    def pad(self, data: Data, dim: int, pad_index: float, pad_first: bool) -> Data:
        with self._comparing(f"{PUBLIC_HOME}.pad_across_processes", f"{describe(data, dims_and_dtype)}, dim={dim}"):
            return self.inner.pad(data, dim, pad_index, pad_first)

    def wait(self) -> None:
        with self._comparing(f"{PUBLIC_HOME}.wait_for_everyone", ""):
            self.inner.wait()

    def agree(self, operation: str, given: str) -> None:
        with self._comparing(operation, given):
            pass
