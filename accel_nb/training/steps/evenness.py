"""Change for a while what prepared loaders do about a last step that is not full."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from ..data.batch_sampler import BatchSamplerShard, SamplerShard


@contextmanager
def set_for(loaders: Iterable[DataLoader[Any]], *, even: bool) -> Iterator[None]:
    """Within the block the last step of `loaders` is filled up, or is not. Warns of loaders whose share is not decided
    by a sampler, such as those over iterable datasets: these stay as they are.
    """
    shards = {id(loader): _shard_of(loader) for loader in loaders}
    before = [(shard, shard.even_batches) for shard in shards.values() if shard is not None]
    if len(before) < len(shards):
        warnings.warn(
            f"even_batches={even} holds for prepared loaders over map-style datasets alone; "
            f"{len(shards) - len(before)} of {len(shards)} prepared loaders stay as they are.",
            stacklevel=5,
        )
    try:
        for shard, _ in before:
            shard.even_batches = even
        yield
    finally:
        for shard, value in before:
            shard.even_batches = value


def _shard_of(loader: DataLoader[Any]) -> BatchSamplerShard | None:
    for sampler in (loader.batch_sampler, loader.sampler):
        if isinstance(sampler, BatchSamplerShard):
            return sampler
        if isinstance(sampler, SamplerShard):
            return sampler.shard
    return None
