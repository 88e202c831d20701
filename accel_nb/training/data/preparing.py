"""`prepare_data_loader`: the loader that `Accelerator.prepare` makes of a plain one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

from ...errors import TrainingError
from ..operations.nested import Data
from ..ranks.randomness import draw_seed
from ..ranks.state import PartialState
from .adapter import as_stateful
from .batch_sampler import BatchSamplerShard, SamplerShard
from .iterable import is_shared_stream, share_stream
from .loader import DataLoaderShard, refuse_mesh
from .order import SeedableRandomSampler, generator_of
from .prepared import PreparedLoader
from .worker_pickling import teach_multiprocessing

Loader = TypeVar("Loader", bound="DataLoader[Any]")
_MARK = "_accel_nb_is_sharded"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How a loader is prepared, once defaults are filled in."""

    num_processes: int
    process_index: int
    device: torch.device | None
    """Where batches go; None: they stay."""
    split_batches: bool
    even_batches: bool
    rng_types: Sequence[str]
    non_blocking: bool
    data_seed: int | None
    use_seedable_sampler: bool
    slice_fn: Callable[..., Data] | None


def prepare_data_loader(
    dataloader: DataLoader[Any],
    device: torch.device | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: Collection[str] | None = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Callable[..., Data] | None = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
    torch_device_mesh: object = None,
) -> PreparedLoader:
    """A loader over the same data that gives rank `process_index`'s share. One that is prepared comes back as it is.

    Parameters and their meaning are those of ``accelerate.data_loader.prepare_data_loader`` (1.15).

    Args:
        dataloader: stays as it is. Data that is shared already, by a DistributedSampler or because
            `mark_as_sharded` says so, is not shared again.
        device: where batches go, with `put_on_device`; None: this rank's.
        num_processes: None: that of this launch; so for `process_index`.
        split_batches: a batch is that of all ranks together, cut into slices.
        rng_types: generators to synchronise before each pass, besides the sampler's own.
        dispatch_batches: rank 0 reads and sends the others their part. None: for iterable datasets, when batches are
            put on the device.
        even_batches: fill the last step from the beginning, so that all ranks read equally much.
        slice_fn_for_dispatch: ``f(batch, slice, process_index=, num_processes=)`` cuts batches that rank 0 dispatches.
        use_seedable_sampler: a RandomSampler's order then depends on seed and number of the pass only.
        data_seed: of that order; None: torch's seed.
        non_blocking: the host does not wait until batches are on the device.
        use_stateful_dataloader: read through torchdata's StatefulDataLoader.

    Raises ValueError for batches that cannot be split and for arguments that contradict each other, TrainingError for
    what this version cannot do.
    """
    if isinstance(dataloader, PreparedLoader):
        return dataloader
    refuse_mesh(torch_device_mesh)
    teach_multiprocessing()
    state = PartialState()
    how = Preparation(
        num_processes=state.num_processes if num_processes is None else num_processes,
        process_index=state.process_index if process_index is None else process_index,
        device=(state.device if device is None else device) if put_on_device else None,
        split_batches=split_batches,
        even_batches=even_batches,
        rng_types=tuple(rng_types or ()),
        non_blocking=non_blocking,
        data_seed=data_seed,
        use_seedable_sampler=use_seedable_sampler,
        slice_fn=slice_fn_for_dispatch,
    )
    dispatches = _is_dispatched(dataloader, how, dispatch_batches)
    _check(dataloader, how, dispatches=dispatches)
    base = as_stateful(dataloader) if use_stateful_dataloader else dataloader
    if use_seedable_sampler:
        base = _with_seedable_sampler(base, data_seed)
    if dispatches:
        from .dispatcher import dispatch

        return dispatch(base, how)
    if how.num_processes > 1 and isinstance(base.dataset, IterableDataset) and not _is_sharded(base, how):
        return share_stream(base, how)
    return _sharded(base, how)


def mark_as_sharded(dataloader: Loader) -> Loader:
    """`dataloader`, marked: each rank's reads that rank's data only, so `prepare` must not share it again.

    Device placement, synchronised generators and the end of the data are seen to all the same.
    """
    setattr(dataloader, _MARK, True)
    return dataloader


def get_sampler(dataloader: DataLoader[Any]) -> Sampler[int] | None:
    """What gives single indices: the batch sampler's sampler, also of a batch sampler that is used as `sampler`.

    None when the batch sampler has none.
    """
    batched = dataloader.sampler if isinstance(dataloader.sampler, BatchSampler) else dataloader.batch_sampler
    return getattr(batched, "sampler", None)


def _is_dispatched(loader: DataLoader[Any], how: Preparation, asked: bool | None) -> bool:
    is_shared = getattr(loader, _MARK, False) or is_shared_stream(loader.dataset)
    if asked is None:
        is_stream = isinstance(loader.dataset, IterableDataset) and not is_shared
        return how.device is not None and is_stream
    if asked and is_shared and how.num_processes > 1:
        raise ValueError(
            "dispatch_batches=True lets rank 0 read the data for all ranks, but this loader's data are shared among "
            "them already: the others' would be lost. Leave dispatch_batches out, or do not share the data before."
        )
    if asked and how.device is None:
        raise ValueError(
            "dispatch_batches=True sends batches to the ranks' devices, so it needs put_on_device=True "
            "(device_placement=True)."
        )
    return asked


def _check(loader: DataLoader[Any], how: Preparation, *, dispatches: bool) -> None:
    if how.data_seed is not None and not how.use_seedable_sampler:
        raise ValueError(
            f"data_seed={how.data_seed!r} is the seed of the seedable sampler, which is off. Add "
            "use_seedable_sampler=True, or leave data_seed out and seed everything with set_seed."
        )
    if how.slice_fn is not None and not dispatches and how.num_processes > 1:
        raise ValueError(
            "slice_fn_for_dispatch cuts batches that rank 0 dispatches, and these are not dispatched: every rank reads "
            "its own. Add dispatch_batches=True, or leave slice_fn_for_dispatch out."
        )
    unbatched = loader.batch_sampler is None and not isinstance(loader.sampler, BatchSampler)
    if how.split_batches and how.num_processes > 1 and unbatched:
        raise ValueError(
            f"split_batches cuts each batch into {how.num_processes} equal slices, but this loader has no batches "
            "(batch_size=None). Give it a batch_size, or leave split_batches off."
        )


def _sharded(loader: DataLoader[Any], how: Preparation) -> DataLoaderShard:
    """`loader` with this rank's share of a map-style dataset's indices, or, in one process, with all of them."""
    is_ours = False
    replaced: dict[str, Any] = {}
    if how.num_processes > 1 and not _is_sharded(loader, how):
        is_ours = _give_generator(loader)
        replaced = _shared_sampler(loader, how)
    return DataLoaderShard.shared(loader, how, replaced, generator_is_ours=is_ours)


def _shared_sampler(loader: DataLoader[Any], how: Preparation) -> dict[str, Any]:
    """The attributes of `loader` that let it read this rank's share."""
    ranks = (how.num_processes, how.process_index)
    if loader.batch_sampler is not None:
        shard = BatchSamplerShard(loader.batch_sampler, *ranks, how.split_batches, how.even_batches)  # type: ignore[arg-type]
        return {"batch_sampler": shard, "batch_size": shard.sharing.part_size}
    if isinstance(loader.sampler, BatchSampler):
        return {"sampler": BatchSamplerShard(loader.sampler, *ranks, how.split_batches, how.even_batches)}
    return {"sampler": SamplerShard(loader.sampler, *ranks, how.even_batches)}


def _is_sharded(loader: DataLoader[Any], how: Preparation) -> bool:
    """Whether each rank's loader reads that rank's data already; says so if nobody said it before."""
    if getattr(loader, _MARK, False) or is_shared_stream(loader.dataset):
        return True
    candidates = (loader.sampler, loader.batch_sampler, get_sampler(loader))
    sampler = next((one for one in candidates if isinstance(one, DistributedSampler) and one.num_replicas > 1), None)
    if sampler is None:
        return False
    if sampler.num_replicas != how.num_processes:
        raise TrainingError(
            f"the loader's DistributedSampler shares the data among {sampler.num_replicas} ranks, but "
            f"{how.num_processes} ranks read it. Prepare a loader with an ordinary sampler (shuffle=True)."
        )
    PartialState().print(
        f"prepare leaves the loader over {type(loader.dataset).__name__} as it is shared: its DistributedSampler deals "
        f"the data out to {sampler.num_replicas} ranks; the samples that it repeats at the end count in "
        "gather_for_metrics, so prepare a loader with an ordinary sampler (shuffle=True) for exact metrics."
    )
    return True


def _give_generator(loader: DataLoader[Any]) -> bool:
    """Let a sampler that would draw from torch's own generator have its own, which ranks can synchronise.

    As upstream (1.15): seeded from torch's. Whether that was needed.
    """
    if generator_of(loader) is not None or isinstance(get_sampler(loader), SeedableRandomSampler):
        return False
    samplers: tuple[Any, ...] = (loader.batch_sampler, get_sampler(loader), loader.sampler)
    for sampler in samplers:
        if sampler is not None and getattr(sampler, "generator", sampler) is None:
            sampler.generator = torch.Generator().manual_seed(draw_seed(None) % 2**63)
            return True
    return False


def _with_seedable_sampler(loader: DataLoader[Any], data_seed: int | None) -> DataLoader[Any]:
    """`loader` with a seedable sampler where it has a random one; otherwise the same."""
    sampler = get_sampler(loader) or loader.sampler
    if not isinstance(sampler, RandomSampler):
        return loader
    seedable = SeedableRandomSampler(
        sampler.data_source,
        replacement=sampler.replacement,
        num_samples=sampler._num_samples,  # noqa: SLF001  None: as many as there are, whatever their number will be
        generator=sampler.generator,
        data_seed=data_seed,
    )
    replaced: dict[str, Any] = {"sampler": seedable}
    batched = "sampler" if isinstance(loader.sampler, BatchSampler) else "batch_sampler"
    if getattr(loader, batched) is not None:
        replaced[batched] = copy.copy(getattr(loader, batched))
        replaced[batched].sampler = seedable
    changed = copy.copy(loader)
    changed.__dict__.update(replaced, _iterator=None)  # torch forbids this for loaders that were used
    return changed
