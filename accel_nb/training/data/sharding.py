"""Index arithmetic of sharing: which samples of which batches belong to which rank. Pure: no torch, no process group.

A *step* is what all ranks read at once. Without splitting it is `num_ranks` consecutive batches of the source, rank r
taking the r-th; with splitting it is one batch, rank r taking the r-th slice. Either way the ranks' parts, put one
after the other, are the source in its own order: that is what lets gathered results be cut to each sample once.

    source   [0 1] [2 3] [4 5] [6]          batches of 2, 2 ranks
    step 0   rank 0: [0 1]   rank 1: [2 3]
    step 1   rank 0: [4 5]   rank 1: [6 0]  the last step is filled by wrapping around
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import Generic, NamedTuple, TypeVar

Sample = TypeVar("Sample")


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How a stream of batches is shared."""

    num_ranks: int
    rank: int
    batch_size: int | None
    """Samples in a full batch of the source; None: its batches differ in size."""
    drop_last: bool = False
    """Leave out the last step when it is not full."""
    split: bool = False
    """A step is one batch of the source, cut into slices."""
    even: bool = True
    """Fill the last step from the beginning of the source, so that all ranks read equally much.
    False: some ranks get less, or no batch at all."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"rank={self.rank!r} is not one of {self.num_ranks} ranks (0 to {self.num_ranks - 1}).")
        if self.split:
            _check_splittable(self.batch_size, self.num_ranks)

    @property
    def step_size(self) -> int | None:
        """Samples in a full step; None when batches differ in size."""
        if self.batch_size is None:
            return None
        return self.batch_size if self.split else self.batch_size * self.num_ranks

    @property
    def part_size(self) -> int | None:
        """Samples of a full step that one rank reads; None when batches differ in size."""
        return None if self.step_size is None else self.step_size // self.num_ranks


class Share(NamedTuple, Generic[Sample]):
    """What one rank reads in one step."""

    samples: Sequence[Sample]
    num_genuine: int
    """Samples of the whole step, all ranks together, that are not there to fill it."""
    sizes: tuple[int, ...]
    """Samples of each rank in this step, by rank; 0: it has no share."""


def share_batches(
    batches: Iterable[Sequence[Sample]], how: Sharing, beginning: Iterable[Sequence[Sample]] = ()
) -> Iterator[Share[Sample]]:
    """The shares of rank `how.rank`, step by step. Reads one step ahead only after a step that is not full.

    `beginning`: batches of the source that come before `batches` and are left out, those from its very beginning at
    least; the last step may be filled from them.
    """
    beginning = list(islice(beginning, how.num_ranks))
    held: list[Sequence[Sample]] | None = None
    full_size, sizes = how.step_size, (how.part_size or 0,) * how.num_ranks
    for step in _steps(batches, 1 if how.split else how.num_ranks):
        if held is not None:
            yield from _share(held, how, beginning, last=False)
            held = None
        if len(beginning) < how.num_ranks:
            beginning.extend(step)
        if full_size is None and len(step) == how.num_ranks:
            yield from _share(step, how, beginning, last=False)
        elif full_size is not None and sum(map(len, step)) == full_size:
            # What `_share` gives, in a fifth of the time: all steps but the last are full.
            own = step[0][how.rank * sizes[0] : (how.rank + 1) * sizes[0]] if how.split else step[how.rank]
            yield Share(own, full_size, sizes)
        else:
            held = step
    if held is not None and not how.drop_last:
        yield from _share(held, how, beginning, last=True)


def num_shares(num_batches: int, how: Sharing, *, last_batch_size: int | None = None) -> int:
    """How many shares `share_batches` gives for a source of `num_batches` batches, of which only the last is short.

    `last_batch_size` matters only for an uneven split; None: a full batch.
    """
    if not how.split:
        full, rest = divmod(num_batches, how.num_ranks)
        if how.drop_last:
            return full
        return full + (how.rank < rest if not how.even else rest > 0)
    if how.even or last_batch_size is None or how.part_size is None:
        return num_batches
    return num_batches - (last_batch_size <= how.part_size * how.rank)


def split_bounds(length: int, num_ranks: int, rank: int) -> tuple[int, int]:
    """Where the contiguous part of `rank` begins and ends; lengths differ by one at most, the longer parts first."""
    size, extra = divmod(length, num_ranks)
    start = rank * size + min(rank, extra)
    return start, start + size + (rank < extra)


def _steps(batches: Iterable[Sequence[Sample]], batches_per_step: int) -> Iterator[list[Sequence[Sample]]]:
    iterator = iter(batches)
    while step := list(islice(iterator, batches_per_step)):
        yield step


def _share(
    step: list[Sequence[Sample]], how: Sharing, beginning: list[Sequence[Sample]], *, last: bool
) -> Iterator[Share[Sample]]:
    """This rank's share of `step`; nothing when there is none for it."""
    parts = _slices(step[0], how) if how.split else [list(batch) for batch in step]
    if how.even and (last or how.split):
        parts = _filled(parts, how, beginning)
    if how.rank < len(parts) and parts[how.rank]:
        sizes = [len(part) for part in parts] + [0] * (how.num_ranks - len(parts))
        yield Share(parts[how.rank], sum(map(len, step)), tuple(sizes))


def _slices(batch: Sequence[Sample], how: Sharing) -> list[list[Sample]]:
    size = how.part_size or 1
    return [list(batch[start : start + size]) for start in range(0, len(batch), size)]


def _filled(parts: list[list[Sample]], how: Sharing, beginning: list[Sequence[Sample]]) -> list[list[Sample]]:
    """`parts` brought to one full part per rank with samples, or whole batches, from the beginning of the source."""
    missing = how.num_ranks - len(parts)
    if how.part_size is None:
        return parts + [list(batch) for batch in islice(cycle(beginning), missing)]
    filler = cycle(chain.from_iterable(beginning))
    all_parts = parts + [[] for _ in range(missing)]
    return [part + list(islice(filler, how.part_size - len(part))) for part in all_parts]


def _check_splittable(batch_size: int | None, num_ranks: int) -> None:
    if batch_size is None:
        raise ValueError(
            f"split_batches cuts each batch into {num_ranks} equal slices, but this loader's batch sampler has no "
            "`batch_size`. Give it one, or leave split_batches off."
        )
    if batch_size % num_ranks:
        below, above = batch_size // num_ranks * num_ranks, -(-batch_size // num_ranks) * num_ranks
        nearest = " or ".join(str(size) for size in (below, above) if size)
        raise ValueError(
            f"split_batches cuts each batch into {num_ranks} equal slices, but batch_size={batch_size!r} is no "
            f"round multiple of {num_ranks}. Use {nearest}."
        )
