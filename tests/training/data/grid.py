"""The grid that sharing and dealing are tested on, exhaustively and without a process."""

from __future__ import annotations

from itertools import product

GRID = [
    (batch_size, num_ranks, even, drop_last, split)
    for batch_size, num_ranks, even, drop_last, split in product(
        range(1, 8), range(1, 4), (True, False), (True, False), (True, False)
    )
    if not split or batch_size % num_ranks == 0
]
"""Batch size, ranks, even_batches, drop_last, split_batches."""
LENGTHS = range(41)


def source(length: int, batch_size: int, *, drop_last: bool = False) -> list[list[int]]:
    """The numbers below `length` in batches, as a plain loader gives them."""
    batches = [list(range(start, min(start + batch_size, length))) for start in range(0, length, batch_size)]
    return [batch for batch in batches if len(batch) == batch_size or not drop_last]


def num_kept(length: int, batch_size: int, num_ranks: int, *, drop_last: bool, split: bool) -> int:
    """How many of them are given out."""
    step_size = batch_size if split else batch_size * num_ranks
    return length // step_size * step_size if drop_last else length
