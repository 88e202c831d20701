"""Samplers made from another sampler: one rank's share of it, or all but its first batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, TypeVar

from torch.utils.data import BatchSampler, Sampler

from ...errors import TrainingError
from .position import Position
from .sharding import Share, Sharing, num_shares, share_batches
from .streams import on_shared_streams

Batches = Iterator[list[int]]
Item = TypeVar("Item")


class _Wrapping(BatchSampler):
    """A batch sampler around another, whose attributes it passes on."""

    def __init__(self, batch_sampler: BatchSampler | Sampler[list[int]]) -> None:
        self.batch_sampler = batch_sampler
        # A batch sampler of the user's own need have neither: its batches may differ in size.
        self.batch_size: int | None = getattr(batch_sampler, "batch_size", None)  # type: ignore[assignment]
        self.drop_last: bool = getattr(batch_sampler, "drop_last", False)

    @property
    def sampler(self) -> Any:  # noqa: ANN401  None when the wrapped one has none
        return getattr(self.batch_sampler, "sampler", None)

    @sampler.setter
    def sampler(self, sampler: Any) -> None:  # noqa: ANN401  whatever gives indices
        self.batch_sampler.sampler = sampler  # type: ignore[union-attr]

    @property
    def total_length(self) -> int:
        """Batches of the wrapped sampler."""
        return len(self.batch_sampler)  # type: ignore[arg-type]  # a Sampler need not have a length

    def set_epoch(self, epoch: int) -> None:
        """Hand `epoch` to the wrapped sampler and its sampler, if their order depends on it."""
        for sampler in (self.batch_sampler, self.sampler):
            if hasattr(sampler, "set_epoch"):  # by torch's convention and no base class
                sampler.set_epoch(epoch)


class BatchSamplerShard(_Wrapping):
    """Wraps the user's batch sampler, which still makes every index: each rank runs it whole and keeps its share.

    So it must make the same batches on every rank, which the loader sees to. Parameters are those of
    ``accelerate.data_loader.BatchSamplerShard`` (1.15), and attributes that may be changed between two passes.
    ValueError for a batch that cannot be split.
    """

    def __init__(
        self,
        batch_sampler: BatchSampler | Sampler[list[int]],
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        super().__init__(batch_sampler)
        self.num_processes, self.process_index = num_processes, process_index
        self.split_batches, self.even_batches = split_batches, even_batches
        self.sharing  # noqa: B018  refuses what cannot be shared
        self.order_seed: int | None = None
        """Of the next pass, for a sampler that has no generator of its own; the loader sets it alike on all ranks."""
        self.start_after: Position | None = None
        """Where the next pass begins; None: at the beginning."""
        self._resumed_pass: _Peeking | None = None
        self.newest: Share[int] | None = None
        """What was given last. After the last batch that is the last step, which is when it is needed."""

    @property
    def sharing(self) -> Sharing:
        return Sharing(
            num_ranks=self.num_processes,
            rank=self.process_index,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            split=self.split_batches,
            even=self.even_batches,
        )

    def __iter__(self) -> Batches:
        if self.start_after is None:
            return self._given()
        # Nothing is drawn yet: with workers, a DataLoader calls ``iter`` twice and leaves the first iterator alone.
        self._resumed_pass = _Peeking(self._given())
        return self._resumed_pass

    def skip(self) -> None:
        """Draw what `start_after` leaves out of the pass that has begun, and the first batch that it does not."""
        if self._resumed_pass is not None:
            self._resumed_pass.peek()
            self._resumed_pass = None

    def __len__(self) -> int:
        """Batches this rank reads. TypeError when the wrapped sampler has no length."""
        return num_shares(self.total_length, self.sharing, last_batch_size=self._last_batch_size(self.total_length))

    def _given(self) -> Batches:
        batches, beginning = self._source()
        for share in share_batches(batches, self.sharing, beginning):
            self.newest = share
            yield share.samples  # type: ignore[misc]  # of what the user's sampler gives, which torch takes as it is

    def _source(self) -> tuple[Batches, list[list[int]]]:
        """The batches of the coming pass, and the first of those that it leaves out."""
        start, self.start_after = self.start_after, None
        if start is None or start.num_source_batches == 0:
            return iter(self._in_order(self.batch_sampler)), []
        if start.batch_size == self.batch_size:
            iterator = iter(self._in_order(self.batch_sampler))
            return iterator, _skipped(iterator, start.num_source_batches, self.num_processes)
        if type(self.batch_sampler) is not BatchSampler or start.num_samples is None or self.batch_size is None:
            raise TrainingError(
                f"the saved pass had read {start.num_source_batches} batches of {start.batch_size or 'any size'}, and "
                f"{type(self.batch_sampler).__name__} now makes batches of {self.batch_size or 'any size'}: the place "
                "to go on cannot be found. Use the batch size of the saved run, or torch's BatchSampler."
            )
        indices = iter(self._in_order(self.sampler))
        first = iter(_skipped(indices, start.num_samples, self.num_processes * self.batch_size))
        beginning = list(_batched(first, self.batch_size, drop_last=False))
        return _batched(indices, self.batch_size, drop_last=self.drop_last), beginning

    def _in_order(self, source: Iterable[Item]) -> Iterable[Item]:
        return source if self.order_seed is None else on_shared_streams(source, self.order_seed)

    def _last_batch_size(self, num_batches: int) -> int | None:
        if type(self.batch_sampler) is not BatchSampler or num_batches == 0:
            return None
        last = len(self.batch_sampler.sampler) - (num_batches - 1) * self.batch_sampler.batch_size  # type: ignore[arg-type]
        return min(last, self.batch_sampler.batch_size)


class SkipBatchSampler(_Wrapping):
    """All but the first `skip_batches` batches of another batch sampler."""

    def __init__(self, batch_sampler: BatchSampler | Sampler[list[int]], skip_batches: int = 0) -> None:
        super().__init__(batch_sampler)
        self.skip_batches = skip_batches
        self.pauses = False
        """Skip nothing in the next pass: it goes on where another was left."""

    def __iter__(self) -> Batches:
        num_left, self.pauses = 0 if self.pauses else self.skip_batches, False
        # A generator: nothing is drawn, and `pauses` is not used up, by an iterator that nobody reads.
        yield from islice(self.batch_sampler, num_left, None)

    def __len__(self) -> int:
        return max(0, self.total_length - self.skip_batches)


class SamplerShard(Sampler[Any]):
    """One rank's share of a sampler whose items are not batched: each is dealt out as a batch of one is.

    `drop_last` does not exist without batching. Other arguments are `BatchSamplerShard`'s.
    """

    batch_size = 1

    def __init__(
        self, sampler: Iterable[Any], num_processes: int, process_index: int, even_batches: bool = True
    ) -> None:
        self.sampler = sampler
        self.shard = BatchSamplerShard(_Singles(sampler), num_processes, process_index, even_batches=even_batches)

    def __iter__(self) -> Iterator[Any]:
        return map(itemgetter(0), iter(self.shard))

    def __len__(self) -> int:
        return len(self.shard)


class _Singles(BatchSampler):
    """A sampler's items as batches of one."""

    batch_size = 1
    drop_last = False

    def __init__(self, sampler: Iterable[Any]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[Any]]:
        return ([item] for item in self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]  # a Sampler need not have a length


class SkipOnce(Sampler[Any]):
    """All but the first `num_left` items of a sampler, of any kind, in the next pass, and all of them after that.

    What is left out is drawn by `skip`, at the latest with the first item: a DataLoader of one process draws the seed
    of its workers after it has called ``iter``, and its sampler draws after that.
    """

    def __init__(self, batch_sampler: Sampler[Any], num_left: int) -> None:
        self.batch_sampler = batch_sampler
        self.num_left = num_left
        self._items: Iterator[Any] | None = None

    @property
    def sampler(self) -> Any:  # noqa: ANN401  None when the wrapped one has none
        return getattr(self.batch_sampler, "sampler", None)

    @property
    def batch_size(self) -> int | None:
        return getattr(self.batch_sampler, "batch_size", None)

    def __iter__(self) -> Iterator[Any]:
        self._items = iter(self.batch_sampler)
        return self._given(self._items)

    def _given(self, items: Iterator[Any]) -> Iterator[Any]:
        self.skip()
        yield from items

    def skip(self) -> None:
        """Draw what is left out of the pass that has begun."""
        if self._items is not None:
            num_left, self.num_left = self.num_left, 0
            _skipped(self._items, num_left, 0)
            self._items = None

    def __len__(self) -> int:
        return len(self.batch_sampler)  # type: ignore[arg-type]  # a Sampler need not have a length


WRAPPERS = (_Wrapping, SamplerShard, _Singles, SkipOnce)
"""What only passes on, or leaves out, what a sampler of the user's gives."""


class _Peeking(Iterator[list[int]]):
    """Batches, of which the next may be drawn before it is asked for."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._ahead: list[list[int]] = []

    def __next__(self) -> list[int]:
        return self._ahead.pop() if self._ahead else next(self._batches)

    def peek(self) -> None:
        if not self._ahead:
            self._ahead = list(islice(self._batches, 1))


def _skipped(items: Iterator[Any], num_items: int, num_kept: int) -> list[Any]:
    """Advance `items` by `num_items`; the first `num_kept` of those."""
    kept = list(islice(items, min(num_items, num_kept)))
    deque(islice(items, max(0, num_items - len(kept))), maxlen=0)
    return kept


def _batched(samples: Iterator[int], batch_size: int, *, drop_last: bool) -> Batches:
    while batch := list(islice(samples, batch_size)):
        if len(batch) == batch_size or not drop_last:
            yield batch
