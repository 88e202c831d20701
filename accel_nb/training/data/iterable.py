"""Iterable datasets of which every rank reads its own share (`dispatch_batches` off)."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, IterDataPipe, MapDataPipe

from ..operations.nested import Data
from ..ranks.state import PartialState
from .adapter import DataLoaderAdapter
from .loader import DataLoaderShard
from .moving import Mover
from .order import HasEpoch
from .sharding import Share, Sharing, share_batches
from .streams import Streams, on_streams
from .worker_watch import WatchedWorkerInfo, Watching, watched_worker

if TYPE_CHECKING:
    from .preparing import Preparation

Sample = TypeVar("Sample")


class IterableDatasetShard(IterableDataset[Sample], Generic[Sample]):
    """The share of rank `process_index` of an iterable dataset: every rank reads all of it and keeps its own samples.

    Parameters are those of ``accelerate.data_loader.IterableDatasetShard`` (1.15), and `even_batches`: fill the last
    step from the beginning. ValueError for a batch that cannot be split.

    In a DataLoader's workers, a dataset that shares its samples among them does so as ever, and each worker's are
    shared among the ranks; of one that gives every worker the same, each worker of each rank keeps its own steps.
    """

    def __init__(
        self,
        dataset: IterableDataset[Sample],
        batch_size: int = 1,
        drop_last: bool = False,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        self.dataset = dataset
        self.batch_size, self.drop_last = batch_size, drop_last
        self.num_processes, self.process_index = num_processes, process_index
        self.split_batches, self.even_batches = split_batches, even_batches
        self.sharing = Sharing(
            num_ranks=num_processes,
            rank=process_index,
            batch_size=batch_size,
            drop_last=drop_last,
            split=split_batches,
            even=even_batches,
        )
        self.order_seed: int | None = None
        """Of the next pass, for a dataset that draws from the process's own generators; alike on all ranks."""
        self.newest: Share[Sample] | None = None
        """What was given out last."""
        self.told_as: str | None = None
        """What a worker calls the dataset when it tells that it gives all workers the same; None: nothing is told."""
        self._num_passes = 0
        """Of a worker's copy."""

    def __iter__(self) -> Iterator[Sample]:
        self.newest = None
        worker = watched_worker()
        draws = _SharedDraws(self._seed_of_pass(worker))
        if worker is not None:
            worker.seed_of_pass = draws.seed
            worker.when_asked = draws.end if self.num_processes == 1 else None
            self._num_passes += 1  # a worker that lives on is not told of new seeds
        for index, share in enumerate(share_batches(self._batches(draws), self.sharing)):
            if worker is not None and not worker.was_asked_for_number and index % worker.number_unasked != worker.id:
                continue
            self.newest = share
            yield from share.samples
            if self.told_as is not None and worker is not None and not worker.was_asked_for_number:
                self._tell(worker)

    def __len__(self) -> int:
        """Samples of this rank. TypeError when the dataset has no length."""
        full, rest = divmod(self.total_length, self.sharing.step_size or 1)
        size = self.sharing.part_size or 1
        if self.drop_last:
            return full * size
        if self.even_batches:
            return (full + (rest > 0)) * size
        return full * size + max(0, min(size, rest - self.process_index * size))

    @property
    def total_length(self) -> int:
        """Samples of all ranks. TypeError when the dataset has no length."""
        return len(self.dataset)  # type: ignore[arg-type]  # it need not have one

    def set_epoch(self, epoch: int) -> None:
        if isinstance(self.dataset, HasEpoch):
            self.dataset.set_epoch(epoch)

    @property
    def generator(self) -> torch.Generator | None:
        """What the dataset draws its order from, by torch's convention; None: something else, or nothing."""
        return getattr(self.dataset, "generator", None)

    def _seed_of_pass(self, worker: WatchedWorkerInfo | None) -> int | None:
        """Of what is drawn from the process's generators while the dataset is read; None: they are left alone."""
        if self.order_seed is not None:
            return self.order_seed + self._num_passes
        # One rank's workers need to agree on an order only while it is not known that they share it by themselves.
        if self.num_processes > 1 or worker is None or worker.was_asked_for_number:
            return None
        return worker.base_seed + self._num_passes

    def _tell(self, worker: WatchedWorkerInfo) -> None:
        name, self.told_as = self.told_as, None
        if worker.id == 0:
            print(  # noqa: T201  for the user of the rank
                f"The stream {name} gives all of its samples to each of {worker.number_unasked} DataLoader workers, so "
                "it is shared by sample: each worker reads all of it and keeps its own batches. To have each sample "
                "read by one worker only, let its __iter__ deal them out by torch.utils.data.get_worker_info().",
                flush=True,
            )

    def _batches(self, draws: _SharedDraws) -> Iterator[list[Sample]]:
        with draws.in_use():
            samples = iter(self.dataset)
        while draws.are_needed:
            with draws.in_use():
                batch = list(islice(samples, self.batch_size))
            if not batch:
                return
            yield batch
        while batch := list(islice(samples, self.batch_size)):
            yield batch


class _SharedDraws:
    """The process's random generators on streams of their own, alike on all ranks, while the dataset is read.

    Only while the dataset's first reads are watched are all of them exchanged; after that, those that it drew from.
    """

    NUM_WATCHED = 3

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._streams = None if seed is None else Streams.seeded(seed)
        self._num_left = self.NUM_WATCHED
        self._drawn_from: set[str] = set()
        self._are_in_use = False

    @property
    def are_needed(self) -> bool:
        return self._streams is not None

    def end(self) -> None:
        """From now on the process's own are drawn from, also for the rest of a block that is `in_use`."""
        streams, self._streams = self._streams, None
        if streams is not None and self._are_in_use:
            streams.swap()
            streams.python = streams.numpy = streams.torch = None  # so that the end of the block changes nothing

    @contextmanager
    def in_use(self) -> Iterator[None]:
        streams, self._are_in_use = self._streams, True
        before = replace(streams) if streams is not None and self._num_left else None
        try:
            with on_streams(streams):
                yield
        finally:
            self._are_in_use = False
        if before is None or self._streams is None:
            return
        # Looking at the process's generators again would take longer than a small batch: NumPy's 25 us.
        self._drawn_from |= before.differing(self._streams)
        self._num_left -= 1
        if not self._num_left:
            kept = {name: getattr(self._streams, name) for name in self._drawn_from}
            self._streams = Streams(**kept) if kept else None


Counted = namedtuple("Counted", ["batch", "num_genuine", "sizes"])  # noqa: PYI024  torch pins the memory of plain ones
"""A batch on its way from a worker, with what the worker knows of its step."""


class Counting:
    """A `collate_fn` that adds to each batch what is known of its step, in a worker."""

    def __init__(self, collate_fn: Callable[[Any], Data]) -> None:
        self.collate_fn = collate_fn

    def __call__(self, samples: Any) -> Counted:  # noqa: ANN401  a list, or one sample without batching
        worker = watched_worker()
        share = None if worker is None else worker.shared_dataset.newest
        batch = self.collate_fn(samples)
        return Counted(batch, None, None) if share is None else Counted(batch, share.num_genuine, share.sizes)


class StreamShard(DataLoaderShard):
    """A loader over an `IterableDatasetShard`."""

    _num_passes_of_workers: int
    """Passes of the workers that live on, before this one."""

    @property
    def stream(self) -> IterableDatasetShard[Any]:
        stream: IterableDatasetShard[Any] = self.dataset  # type: ignore[assignment]  # ours, see `share_stream`
        return stream

    @property
    def total_batch_size(self) -> int | None:
        return self.stream.sharing.step_size

    @property
    def varies_in_size(self) -> bool:
        return not self.is_batched

    def _begin_pass(self) -> None:
        self._counted = Counted(None, None, None)
        if self.num_processes > 1:
            self._seed_stream()
        super()._begin_pass()

    def _seed_stream(self) -> None:
        """Workers that live on have a copy of the stream, which counts up from the seed that they began with."""
        is_given = self._order.seed is not None
        seed, first = self._order.agree_on_seed(), self.stream.order_seed
        if seed is None or first is None or self._iterator is None:
            self.stream.order_seed, self._num_passes_of_workers = seed, 0
            return
        self._num_passes_of_workers += 1
        if not is_given:
            self._order.seed = first + self._num_passes_of_workers
        elif seed != first + self._num_passes_of_workers:
            self._iterator = None  # they end: those of a pass that is resumed begin with its seed
            self.stream.order_seed, self._num_passes_of_workers = seed, 0

    def _mover(self) -> Mover:
        mover = super()._mover()
        return _Telling(mover, self) if isinstance(self.collate_fn, Counting) else mover

    def given_out(self, counted: Counted) -> None:
        """A batch is about to be worked on. With workers any step may be filled: each fills its own last one."""
        self._counted = counted
        is_filled = counted.sizes is not None and counted.num_genuine < sum(counted.sizes)
        self.last_sizes = counted.sizes if is_filled else None
        self.local_batch_size = counted.sizes[self.process_index] if is_filled else None
        self.remainder = counted.num_genuine if is_filled else -1

    def _num_in_last_step(self) -> int | None:
        share = self.stream.newest
        return self._counted.num_genuine if share is None else share.num_genuine

    def _sizes_in_last_step(self) -> tuple[int, ...] | None:
        share = self.stream.newest
        return self._counted.sizes if share is None else share.sizes

    @property
    def _batches_per_step(self) -> int:
        return 1 if self.stream.split_batches else self.num_processes


class _Telling:
    """Takes batches out of what workers count, and tells the loader of each that is given out."""

    def __init__(self, mover: Mover, loader: StreamShard) -> None:
        self._mover, self._loader = mover, loader

    def start(self, batch: Counted) -> Counted:
        return batch._replace(batch=self._mover.start(batch.batch))

    def finish(self, started: Counted) -> Data:
        self._loader.given_out(started)
        return self._mover.finish(started.batch)


@runtime_checkable
class HasShards(Protocol):
    """A stream of the package `datasets`, or one like it."""

    n_shards: int

    def shard(self, num_shards: int, index: int) -> IterableDataset[Any]: ...


def each_sample_once(loader: DataLoaderAdapter, *, tells: bool) -> dict[str, Any]:
    """The attributes with which workers of `loader` do not all give the samples of an iterable dataset, if it does not
    share them among workers by itself; none where it surely does, or where torch would not recognise a pipe any more,
    nor torchdata a dataset that keeps a state of its own. `tells`: that is said once it is known.
    """
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDatasetShard | HasShards | IterDataPipe | MapDataPipe):
        return {}
    if loader.base_is_stateful and hasattr(dataset, "state_dict"):
        return {}
    shard: IterableDatasetShard[Any] = IterableDatasetShard(
        dataset, loader.batch_size or 1, loader.drop_last, even_batches=False
    )
    shard.told_as = type(dataset).__name__ if tells else None
    return {"dataset": shard, "worker_init_fn": Watching(loader.worker_init_fn)}


def is_shared_stream(dataset: object) -> bool:
    """Whether each rank's reads that rank's part already: ``datasets.distributed.split_dataset_by_node`` made it."""
    return isinstance(dataset, HasShards) and getattr(dataset, "_distributed", None) is not None


def share_stream(loader: DataLoader[Any], how: Preparation) -> DataLoaderShard:
    """A loader that reads one rank's share of an iterable dataset. Says once how it is shared."""
    shards = loader.dataset.n_shards if isinstance(loader.dataset, HasShards) and not how.split_batches else 0
    if shards and shards % how.num_processes == 0:
        own = loader.dataset.shard(num_shards=how.num_processes, index=how.process_index)  # type: ignore[attr-defined]
        num_own = shards // how.num_processes
        _say(
            loader,
            f"by shard: each of {how.num_processes} ranks reads its own {num_own} of {shards}, and one whose shards "
            "hold less ends earlier (accelerator.join_uneven_inputs with even_batches=False lets the others go on)",
        )
        return DataLoaderShard.shared(loader, how, {"dataset": own})
    _say(loader, f"by sample: each of {how.num_processes} ranks reads all of it and keeps its own batches")
    shard: IterableDatasetShard[Any] = IterableDatasetShard(
        loader.dataset,  # type: ignore[arg-type]  # it is an IterableDataset
        batch_size=loader.batch_size or 1,
        drop_last=loader.drop_last,
        num_processes=how.num_processes,
        process_index=how.process_index,
        split_batches=how.split_batches,
        even_batches=how.even_batches,
    )
    replaced: dict[str, Any] = {"dataset": shard}
    if loader.batch_size is not None:
        part_size = shard.sharing.part_size or 1
        replaced |= {
            "batch_size": part_size,
            "batch_sampler": BatchSampler(loader.sampler, part_size, loader.drop_last),
        }
    if loader.num_workers:
        replaced["worker_init_fn"] = Watching(loader.worker_init_fn)
        if type(loader).__iter__ is DataLoader.__iter__:  # one of the user's would find what it does not know
            replaced["collate_fn"] = Counting(loader.collate_fn)
    return StreamShard.shared(loader, how, replaced)


def _say(loader: DataLoader[Any], decision: str) -> None:
    state = PartialState()
    if state.is_main_process:
        state.print(f"The stream {type(loader.dataset).__name__} is shared {decision}.")
