"""What rank 0 makes of the batches it reads: steps, with one part for each rank. No process group.

A *step* is what all ranks are given at once: `num_ranks` batches, or one that is split. Equal batches are dealt out as
they are. Rows are cut and joined only where they do not come out even, always in the order of the source, so that the
ranks' parts put one after the other are the source again:

    source   [0 1] [2 3] [4 5] [6]          batches of 2, 2 ranks
    step 0   rank 0: [0 1]   rank 1: [2 3]
    step 1   rank 0: [4 5]   rank 1: [6 0]  the last step is shared equally and filled from the beginning
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Final

import torch

from ...errors import TrainingError
from ..operations.nested import Data, map_tensors
from .rows import CannotJoin, RowCounter, cut, join
from .sharding import Sharing, split_bounds

SliceFunction = Callable[..., Data]
"""``slice_fn(batch, slice, process_index=, num_processes=)``: the rows of `slice`, for one rank."""


class _Nothing:
    """The type of `NOTHING`."""


NOTHING: Final = _Nothing()
"""The part of a rank that is given no batch, at an uneven end."""


@dataclass(frozen=True)
class Step:
    """What all ranks are given at once."""

    parts: Sequence[Data]
    """By rank; `NOTHING` for a rank that gets no more."""
    num_genuine: int | None
    """Rows of all parts, without those that only fill them; None: batches have no rows."""
    sizes: tuple[int, ...] | None
    """Rows of each part, by rank, 0 for none; None: batches have no rows."""


@dataclass(frozen=True)
class _Batch:
    data: Data
    num_rows: int
    counter: RowCounter
    """Knows the lists with one item per row."""

    def rows(self, start: int, stop: int) -> _Batch:
        if (start, stop) == (0, self.num_rows):
            return self
        data = cut(self.data, start, stop, self.num_rows, self.counter.row_lists)
        return replace(self, data=data, num_rows=stop - start)


def deal(
    batches: Iterable[Data],
    how: Sharing,
    slice_fn: SliceFunction | None = None,
    count: Callable[[Data], int | None] | None = None,
    num_samples: int | None = None,
) -> Iterator[Step]:
    """The steps made of `batches`. Reads one batch ahead only after a step that does not come out even.

    `slice_fn`: makes each part from the joined rows of a step, instead of plain slicing. `count`: rows of a batch, None
    when it has none; by default a `RowCounter`. `num_samples`: how many `batches` have together; None: not known.
    """
    return _Dealer(how, slice_fn, count, num_samples).steps(_Source(batches))


class _Source(Iterator[Data]):
    """Batches, and whether there are more."""

    def __init__(self, batches: Iterable[Data]) -> None:
        self._batches = iter(batches)
        self._ahead: list[Data] = []

    def __next__(self) -> Data:
        return self._ahead.pop() if self._ahead else next(self._batches)

    def is_exhausted(self) -> bool:
        if not self._ahead:
            self._ahead.extend(islice(self._batches, 1))
        return not self._ahead


class _Dealer:
    """One pass."""

    def __init__(
        self, how: Sharing, slice_fn: SliceFunction | None, count: Callable[[Data], int | None] | None,
        num_samples: int | None,
    ) -> None:  # fmt: skip
        self._how, self._slice_fn = how, slice_fn
        known = [size for size in (how.batch_size, num_samples) if size is not None]
        self._row_counter = RowCounter(None if how.batch_size is None else min(known))
        self._count = count or self._row_counter
        self._beginning: list[Data] = []
        """Batches of the first step, where whole ones may be needed again."""
        self._first_rows: _Batch | None = None
        """Of the source, as many as there are ranks unless it has less: what fills the last step."""
        self._carried: _Batch | None = None
        """Rows of the step before that did not come out even: less than one per rank."""

    def steps(self, source: _Source) -> Iterator[Step]:
        how = self._how
        while batches := list(islice(source, 1 if how.split else how.num_ranks)):
            counts = [self._count(batch) for batch in batches]
            counted = self._counted(batches, counts)
            if how.batch_size is None or len(counted) < len(batches):
                yield from self._whole(batches, counts)
                continue
            self._remember_first_rows(counted)
            if self._carried is None and self._comes_out_even(counted):
                yield self._even(counted)
            elif self._carried is None and not how.even and not how.split:
                yield from self._uneven(counted, source)
            else:
                yield from self._shared(counted, source)
        if self._carried is not None and not how.drop_last:
            yield self._last([self._carried])

    def _counted(self, batches: list[Data], counts: list[int | None]) -> list[_Batch]:
        sized = zip(batches, counts, strict=True)
        return [_Batch(data, num_rows, self._row_counter) for data, num_rows in sized if num_rows is not None]

    def _comes_out_even(self, batches: list[_Batch]) -> bool:
        if self._how.split:
            return batches[0].num_rows % self._how.num_ranks == 0
        return len(batches) == self._how.num_ranks and len({one.num_rows for one in batches}) == 1

    def _even(self, batches: list[_Batch]) -> Step:
        if self._slice_fn is None and not self._how.split:
            return _as_they_are(batches)
        whole = self._joined(batches)
        return self._step(whole, whole.num_rows // self._how.num_ranks, whole.num_rows)

    def _whole(self, batches: list[Data], counts: list[int | None]) -> Iterator[Step]:
        """Batches that are not cut: they differ in size by design, or have no rows."""
        how = self._how
        if how.even and len(self._beginning) < how.num_ranks:
            self._beginning.extend(batches)
        missing = 0 if how.split else how.num_ranks - len(batches)
        if missing and how.drop_last:
            return
        if how.split:
            yield Step(batches * how.num_ranks, None, None)
            return
        filling = list(islice(cycle(self._beginning), missing)) if how.even else [NOTHING] * missing
        sizes = [*counts, *(0 if one is NOTHING else self._count(one) for one in filling)]
        genuine = [count for count in counts if count is not None]
        known = [size for size in sizes if size is not None]
        is_known = len(known) == how.num_ranks
        yield Step([*batches, *filling], sum(genuine) if is_known else None, tuple(known) if is_known else None)

    def _uneven(self, batches: list[_Batch], source: _Source) -> Iterator[Step]:
        """A step that is not filled: some ranks get less, or nothing."""
        if not (self._how.drop_last and source.is_exhausted()):
            missing = self._how.num_ranks - len(batches)
            yield _as_they_are([*batches, *self._counted([NOTHING] * missing, [0] * missing)])

    def _shared(self, batches: list[_Batch], source: _Source) -> Iterator[Step]:
        """A step that does not come out even: its rows are shared equally, and the rest is carried to the next."""
        how, is_last = self._how, source.is_exhausted()
        carried, self._carried = self._carried, None
        if is_last and how.drop_last:
            return
        try:
            whole = self._joined([carried, *batches] if carried else batches)
        except CannotJoin:
            if carried:
                yield self._last([carried])
            yield self._last(batches) if is_last or how.split else _as_they_are(batches)
            return
        full = how.step_size or how.num_ranks
        if whole.num_rows > full or (not is_last and whole.num_rows >= how.num_ranks):
            part_size = min(whole.num_rows, full) // how.num_ranks
            num_dealt = part_size * how.num_ranks
            yield self._step(whole, part_size, num_dealt)
            whole = whole.rows(num_dealt, whole.num_rows)
        if is_last:
            yield self._last([whole])
        elif whole.num_rows:
            self._carried = whole

    def _last(self, batches: list[_Batch]) -> Step:
        """All `batches`, shared so that every rank is given equally much if that is wanted."""
        how = self._how
        num_genuine = sum(one.num_rows for one in batches)
        if not how.even:
            whole = self._joined(batches)
            bounds = [split_bounds(num_genuine, how.num_ranks, rank) for rank in range(how.num_ranks)]
            parts = [self._part(whole, *bound, rank) for rank, bound in enumerate(bounds)]
            return Step(parts, num_genuine, tuple(stop - start for start, stop in bounds))
        part_size = -(-num_genuine // how.num_ranks)
        try:
            whole = self._filled(batches, part_size * how.num_ranks)
        except CannotJoin:
            return self._filled_apart(batches)
        return self._step(whole, part_size, num_genuine)

    def _filled(self, batches: list[_Batch], num_wanted: int) -> _Batch:
        """`batches` joined, with rows of the beginning behind them up to `num_wanted`."""
        num_missing = num_wanted - sum(one.num_rows for one in batches)
        filling = self._first_rows or batches[0]
        return self._joined([*batches, *_repeated(filling, num_missing)])

    def _filled_apart(self, batches: list[_Batch]) -> Step:
        """A last step of batches that cannot be joined: each part is filled with its own batch's rows."""
        num_ranks = self._how.num_ranks
        num_genuine = sum(one.num_rows for one in batches)
        if len(batches) == 1:
            size = -(-num_genuine // num_ranks)
            return self._step(self._joined(list(_repeated(batches[0], size * num_ranks))), size, num_genuine)
        size = max(one.num_rows for one in batches)
        of_ranks = [*batches, *batches[:1] * num_ranks][:num_ranks]
        parts = [self._joined(list(_repeated(one, size))).data for one in of_ranks]
        return Step(parts, num_genuine, (size,) * num_ranks)

    def _step(self, whole: _Batch, part_size: int, num_genuine: int) -> Step:
        """The first rows of `whole`, `part_size` for each rank."""
        num_ranks = self._how.num_ranks
        parts = [self._part(whole, rank * part_size, (rank + 1) * part_size, rank) for rank in range(num_ranks)]
        return Step(parts, num_genuine, (part_size,) * num_ranks)

    def _part(self, whole: _Batch, start: int, stop: int, rank: int) -> Data:
        if start == stop:
            return NOTHING
        if self._slice_fn is None:
            return whole.rows(start, stop).data
        return self._slice_fn(whole.data, slice(start, stop), process_index=rank, num_processes=self._how.num_ranks)

    def _joined(self, batches: Sequence[_Batch]) -> _Batch:
        try:
            data = join([one.data for one in batches], [one.num_rows for one in batches], self._row_counter.row_lists)
        except CannotJoin:
            if self._slice_fn is None:
                raise
            raise TrainingError(
                "slice_fn_for_dispatch is given all rows of a step, but the batches of this step cannot be joined: "
                "their structures, dtypes or shapes differ. Let collate_fn pad them to one shape, or split_batches."
            ) from None
        return _Batch(data, sum(one.num_rows for one in batches), self._row_counter)

    def _remember_first_rows(self, batches: list[_Batch]) -> None:
        if self._first_rows is not None or not self._how.even or self._how.drop_last:
            return
        kept: list[_Batch] = []
        for batch in batches:
            num_wanted = self._how.num_ranks - sum(one.num_rows for one in kept)
            kept.append(batch.rows(0, min(num_wanted, batch.num_rows)))
        try:
            rows = self._joined([one for one in kept if one.num_rows])
        except CannotJoin:
            rows = kept[0]
        # A copy: it keeps no batch alive, and nobody can change it.
        self._first_rows = replace(rows, data=map_tensors(torch.clone, rows.data))


def _as_they_are(batches: list[_Batch]) -> Step:
    return Step(
        [one.data for one in batches], sum(one.num_rows for one in batches), tuple(one.num_rows for one in batches)
    )


def _repeated(batch: _Batch, num_wanted: int) -> Iterator[_Batch]:
    """`num_wanted` rows: those of `batch`, over and over."""
    while num_wanted > 0:
        yield batch.rows(0, min(num_wanted, batch.num_rows))
        num_wanted -= batch.num_rows
