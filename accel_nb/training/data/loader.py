"""`DataLoaderShard`: every rank reads its own share of the data."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from ...errors import TrainingError
from ..operations.nested import Data
from ..ranks.randomness import draw_seed
from ..ranks.state import PartialState
from .batch_sampler import BatchSamplerShard, SamplerShard, SkipBatchSampler, SkipOnce
from .order import DataOrder, generator_of
from .position import Position
from .prepared import PreparedLoader

if TYPE_CHECKING:
    from .preparing import Preparation


class DataLoaderShard(PreparedLoader):
    """A DataLoader that reads one rank's share, which its batch sampler or dataset deals out.

    Args:
        dataset: as DataLoader's.
        device: where the batches go; None: they stay.
        rng_types: generators to synchronise before each pass over the data, besides the sampler's own.
        synchronized_generator: the sampler's own; None: the one that it has, if any.
        skip_batches: of this rank's, to leave out at the beginning of every pass.
        use_stateful_dataloader: read through torchdata's StatefulDataLoader.
        torch_device_mesh: TrainingError unless None: all ranks share the data.
        iteration: number of the first pass.
        kwargs: DataLoader's.
    """

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401  torch's own parameter
        device: torch.device | None = None,
        rng_types: Collection[str] | None = None,
        synchronized_generator: torch.Generator | None = None,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        torch_device_mesh: object = None,
        iteration: int = 0,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        refuse_mesh(torch_device_mesh)
        super().__init__(dataset, use_stateful_dataloader=use_stateful_dataloader, **kwargs)
        state = PartialState()
        self.share(
            num_processes=state.num_processes, process_index=state.process_index, device=device, rng_types=rng_types,
            non_blocking=_non_blocking, synchronized_generator=synchronized_generator, iteration=iteration,
        )  # fmt: skip
        self._drop_last = _drop_last or self.drop_last
        if skip_batches and self._has_indices:
            self.replace_index_sampler(SkipBatchSampler(self.index_sampler, skip_batches))
        else:
            self.skip_batches = skip_batches

    @classmethod
    def shared(
        cls,
        loader: DataLoader[Any],
        how: Preparation,
        replaced: dict[str, Any],
        *,
        generator_is_ours: bool = False,
    ) -> Self:
        """`loader` made anew with the attributes `replaced`, which let it read this rank's share.

        `generator_is_ours`: the sampler's generator was given to it for this.
        """
        made = cls.around(loader, **replaced)
        made.share(
            num_processes=how.num_processes,
            process_index=how.process_index,
            device=how.device,
            rng_types=how.rng_types,
            non_blocking=how.non_blocking,
            generator_is_ours=generator_is_ours,
        )
        return made

    def share(
        self,
        *,
        num_processes: int,
        process_index: int,
        device: torch.device | None,
        rng_types: Collection[str] | None,
        non_blocking: bool = False,
        synchronized_generator: torch.Generator | None = None,
        generator_is_ours: bool = False,
        iteration: int = 0,
    ) -> None:
        """Set up what this class adds to a DataLoader; once, by whoever made this one `around` another."""
        self.rng_types = tuple(rng_types or ())
        self.synchronized_generator = synchronized_generator or generator_of(self)
        self._own_generator = self.generator
        self._num_passes = 0
        self._set_up(
            device=device,
            non_blocking=non_blocking,
            num_processes=num_processes,
            process_index=process_index,
            order=DataOrder(self, self.synchronized_generator, is_ours=generator_is_ours),
            source_batch_size=self._size_of_source_batches(),
            iteration=iteration,
        )

    @property
    def total_batch_size(self) -> int | None:
        shard = self.shard
        if shard is not None:
            return shard.sharing.step_size
        size = getattr(self.index_sampler, "batch_size", self.batch_size)
        return None if size is None else size * self.num_processes

    @property
    def shard(self) -> BatchSamplerShard | None:
        """What deals out the indices; None: nothing does, as in one process, or for data that is shared already."""
        part: object = self.index_sampler
        while isinstance(part, SkipBatchSampler | SkipOnce):
            part = part.batch_sampler
        if isinstance(part, SamplerShard):
            return part.shard
        return part if isinstance(part, BatchSamplerShard) else None

    def skipping(self, num_batches: int) -> Self:
        if not self._has_indices or not isinstance(self.index_sampler, BatchSampler):
            return super().skipping(num_batches)
        skipping = super().skipping(0)
        skipping.replace_index_sampler(SkipBatchSampler(self.index_sampler, num_batches))
        return skipping

    def set_sampler(self, sampler: Sampler[int]) -> None:
        super().set_sampler(sampler)
        self.synchronized_generator = generator_of(self)

    @property
    def varies_in_size(self) -> bool:
        return self.shard is not None and (self.shard.batch_size is None or not self.is_batched)

    def _begin_pass(self) -> None:
        if self.num_processes > 1:
            self._position.iteration = self._order.agree(self.rng_types, self._position.iteration)
            if self.shard is not None:
                self.shard.order_seed = self._order.agree_on_seed()
            self._position.order = self._order.state()  # what they agreed on: it serves any rank
            self._seed_workers()
        self._num_passes += 1

    def _open(self, resumed: Position | None) -> Iterator[Any]:
        if self.base_is_stateful and resumed is not None:
            self._position.num_batches = resumed.num_source_batches // self._batches_per_step
            return self._read()  # that one goes to its place by itself
        if not self._has_indices:
            return super()._open(resumed)
        if resumed is not None:
            self._position.num_batches = self._go_on_at(resumed)
        elif isinstance(self.index_sampler, SkipBatchSampler):
            self._position.num_batches = self.index_sampler.skip_batches
        batches = self._read()
        # What is left out is drawn now, on the generators of when the pass began.
        if isinstance(self.index_sampler, SkipOnce):
            self.index_sampler.skip()
        elif self.shard is not None:
            self.shard.skip()
        return batches

    def _size_of_source_batches(self) -> int | None:
        size: int | None = getattr(self.index_sampler, "batch_size", self.batch_size)
        return size if self.is_batched else 1

    def _go_on_at(self, resumed: Position) -> int:
        """Let the samplers skip what was read before; the number of this rank's batches that this is."""
        num_skipped = resumed.num_source_batches // self._batches_per_step
        if isinstance(self.index_sampler, SkipBatchSampler):
            self.index_sampler.pauses = True
        if self.shard is not None:
            self.shard.start_after = resumed
            return num_skipped
        if isinstance(self.index_sampler, SkipOnce):
            self.index_sampler.num_left = num_skipped
        else:
            self.replace_index_sampler(SkipOnce(self.index_sampler, num_skipped))
        return num_skipped

    def _num_in_last_step(self) -> int | None:
        if self.shard is not None:
            return None if self.shard.newest is None else self.shard.newest.num_genuine
        return self.local_batch_size if self.num_processes == 1 else None

    def _sizes_in_last_step(self) -> tuple[int, ...] | None:
        return None if self.shard is None or self.shard.newest is None else self.shard.newest.sizes

    def _num_rows(self, batch: Data) -> int | None:
        # Samples, where they are known: a batch of texts has no rows, and a collate_fn may make several of a sample.
        sizes = self._sizes_in_last_step()
        return super()._num_rows(batch) if sizes is None else sizes[self.process_index]

    @property
    def _batches_per_step(self) -> int:
        return 1 if self.shard is not None and self.shard.split_batches else self.num_processes

    @property
    def _has_indices(self) -> bool:
        """Whether batches can be skipped by their indices alone: each comes from one item of the sampler."""
        return not isinstance(self.dataset, IterableDataset) and self.reads_plainly

    def _seed_workers(self) -> None:
        """Let this rank's workers differ from the other ranks' (accelerate#786).

        The base seed is drawn from where a plain loader would draw it, so that what is drawn afterwards, the order of
        the data above all, is the same as in one process.
        """
        if self.persistent_workers and self._num_passes:
            return  # workers that live on are not seeded again
        self.generator = torch.Generator().manual_seed((draw_seed(self._own_generator) + self.process_index) % 2**63)


def refuse_mesh(mesh: object) -> None:
    """TrainingError for a device mesh, along whose other dimensions ranks would read the same data."""
    if mesh is not None:
        raise TrainingError(
            "torch_device_mesh lets some ranks read the same data, for tensor or context parallelism, which this "
            "version of accel_nb has not got: all ranks share the data. Leave torch_device_mesh out."
        )
