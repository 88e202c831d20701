"""`DataLoaderDispatcher`: rank 0 reads the data and sends every rank its own part of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sized
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe

from ...errors import TrainingError
from ..operations.nested import Data
from ..ranks.state import PartialState
from .dealing import SliceFunction, deal
from .loader import refuse_mesh
from .moving import Mover
from .order import DataOrder, generator_of
from .position import Position
from .prepared import PreparedLoader
from .rows import count_rows
from .scatter import Arrival, Pass, Scatter
from .sharding import Sharing, num_shares

if TYPE_CHECKING:
    from .preparing import Preparation


Item = TypeVar("Item")


class DataLoaderDispatcher(PreparedLoader):
    """A DataLoader that only rank 0 reads. It sends each rank its part of every step.

    Without `split_batches` a step is one batch per rank, given out as it was read; with it, it is one batch, cut into
    slices. Where rows do not come out even, as at the end, they are shared equally, and the last step is filled with
    rows from the beginning; batches that cannot be joined, such as texts of unequal length, stay apart. In a batch,
    tensors, arrays and lists with one entry per row are cut; all else goes to every rank. A batch may hold whatever can
    be pickled. The dataset and its iterator are made on every rank, as pipes that agree on a seed there need it, but
    read on rank 0 alone, in its main thread: its random draws and the training's come in one order. Of a stream that
    gives each of several workers all samples, each worker keeps its own batches, which is told.

    What the data raises is raised on every rank, by rank 0 as it is and by others as TrainingError with rank 0's
    traceback.

    Args:
        dataset: as DataLoader's.
        split_batches: a batch is that of all ranks together, cut into slices.
        skip_batches: of this rank's, to leave out at the beginning of every pass.
        use_stateful_dataloader: read through torchdata's StatefulDataLoader.
        slice_fn: ``f(batch, slice, process_index=, num_processes=)`` makes each rank's part, of all rows of a step
            joined. It runs on rank 0.
        torch_device_mesh: TrainingError unless None: all ranks share the data.
        iteration: number of the first pass.
        even_batches: fill the last step. False: some ranks get less, or no batch at all.
        rng_types: generators to synchronise before each pass, besides the sampler's own.
        kwargs: DataLoader's.
    """

    _left_behind = (*PreparedLoader._left_behind, "_scatter", "_pass")  # noqa: SLF001  of our base

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401  torch's own parameter
        split_batches: bool = False,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        slice_fn: SliceFunction | None = None,
        torch_device_mesh: object = None,
        iteration: int = 0,
        *,
        even_batches: bool = True,
        rng_types: Collection[str] | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        refuse_mesh(torch_device_mesh)
        super().__init__(dataset, use_stateful_dataloader=use_stateful_dataloader, **kwargs)
        state = PartialState()
        self.dispatch(
            device=state.device, split_batches=split_batches, even_batches=even_batches, rng_types=rng_types,
            drop_last=_drop_last, non_blocking=_non_blocking, slice_fn=slice_fn, iteration=iteration,
        )  # fmt: skip
        self.skip_batches = skip_batches

    def dispatch(
        self,
        *,
        device: torch.device | None,
        split_batches: bool,
        even_batches: bool,
        rng_types: Collection[str] | None = None,
        drop_last: bool = False,
        non_blocking: bool = False,
        slice_fn: SliceFunction | None = None,
        iteration: int = 0,
    ) -> None:
        """Set up what this class adds to a DataLoader; once, by whoever made this one `around` another.

        All ranks together: they open the group that their batches travel in.
        """
        state = PartialState()
        self.split_batches, self.slice_fn = split_batches, slice_fn
        self.rng_types = tuple(rng_types or ())
        self._set_up(
            device=device,
            non_blocking=non_blocking,
            num_processes=state.num_processes,
            process_index=state.process_index,
            order=DataOrder(self, generator_of(self)),
            source_batch_size=getattr(self.index_sampler, "batch_size", self.batch_size),
            iteration=iteration,
        )
        self.sharing = Sharing(
            num_ranks=self.num_processes,
            rank=self.process_index,
            batch_size=self._source_batch_size,
            drop_last=drop_last or getattr(self.index_sampler, "drop_last", self.drop_last),
            split=split_batches and self.num_processes > 1,
            even=even_batches,
        )
        self._pass: Pass | None = None
        self._scatter: Scatter | None = Scatter(self.process_index) if self.num_processes > 1 else None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator, as for upstream's loaders
        """One pass. Every rank must begin it, with its first batch, and rank 0 must not leave it before the others."""
        parts: Pass | None = None
        try:
            for batch in super().__iter__():
                parts = parts or self._pass
                yield batch
        finally:
            if parts is not None:
                parts.leave()

    def __len__(self) -> int:
        """Batches of one pass. TypeError when that is not known."""
        num_batches = super(PreparedLoader, self).__len__()
        return max(0, num_shares(num_batches, self.sharing) - self.skip_batches)

    @property
    def varies_in_size(self) -> bool:
        """Whether ranks may be given unequally much in any step, rather than in the last one alone."""
        short_ones_anywhere = isinstance(self.dataset, IterableDataset) and not self.sharing.even
        return self._source_batch_size is None or short_ones_anywhere

    @property
    def total_batch_size(self) -> int | None:
        return self.sharing.step_size

    def _begin_pass(self) -> None:
        if self.num_processes > 1:
            self._position.iteration = self._order.agree(self.rng_types, self._position.iteration)
            self._position.order = self._order.state()

    def _open(self, resumed: Position | None) -> Iterator[Any]:
        self._pass = None
        num_skipped = self.skip_batches if resumed is None else resumed.num_source_batches // self._batches_per_step
        self._position.num_batches = num_skipped
        num_samples = self._num_samples()
        if resumed is not None and self.base_is_stateful:
            num_skipped = 0  # that one goes to its place by itself
            if num_samples is not None:
                num_samples = max(0, num_samples - (resumed.num_samples or 0))
        if self.num_processes == 1 and self.slice_fn is None:  # nothing to deal out
            return self._without(num_skipped, self._read())
        dealt = deal(self._source(), self.sharing, self.slice_fn, self._count_of_items(), num_samples)
        steps = self._without(num_skipped, dealt)
        if self.num_processes == 1:
            return (step.parts[0] for step in steps)
        # A loader that was unpickled has none.
        self._scatter = self._scatter or Scatter(self.process_index)
        self._pass = self._scatter.begin(steps)
        return self._pass

    def _without(self, num_skipped: int, steps: Iterator[Item]) -> Iterator[Item]:
        """`steps` but for the first, which rank 0 reads now, on the generators of when the pass began."""
        if self.process_index > 0:
            return steps
        try:
            for _ in range(num_skipped):
                next(steps, None)
        except Exception as error:
            if self.num_processes == 1:
                raise
            return _Raising(error)
        else:
            return steps

    def _source(self) -> Iterator[Data]:
        """Batches of the loader below, to be read on rank 0. On the others it starts no workers, if it can do without:
        a pipe's workers are started by something that all ranks do together.
        """
        reading = self
        if self.process_index > 0 and self.num_workers > 0 and not isinstance(self.dataset, IterDataPipe | MapDataPipe):
            reading = copy.copy(self)
            reading.__dict__.update(num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0)
        try:
            return reading._read()  # noqa: SLF001  of this class
        except Exception as error:
            if self.process_index > 0 or self.num_processes == 1:
                raise
            return _Raising(error)

    def _mover(self) -> Mover:
        mover = super()._mover()
        return mover if self.process_index == 0 else _Taking(mover)

    def _num_samples(self) -> int | None:
        """Of a pass; None: not known."""
        source: object = self.dataset if isinstance(self.dataset, IterableDataset) else self.get_sampler()
        try:
            return len(source) if isinstance(source, Sized) else None
        except TypeError:  # a wrapper around something without a length
            return None

    def _count_of_items(self) -> Callable[[Data], int | None] | None:
        """Counts the rows of what is not batched, but read item by item: one each; None: it is batched."""
        if self.batch_sampler is not None or self._source_batch_size is not None:
            return None
        return (lambda item: count_rows(item) or 1) if isinstance(self.dataset, IterableDataset) else (lambda _: 1)

    def _num_in_last_step(self) -> int | None:
        if self._pass is None:
            return self.local_batch_size
        return None if self._pass.rows is None else self._pass.rows.num_genuine

    def _sizes_in_last_step(self) -> tuple[int, ...] | None:
        rows = None if self._pass is None else self._pass.rows
        return None if rows is None or rows.num_genuine is None else rows.sizes

    def _num_rows(self, batch: Data) -> int | None:
        sizes = self._sizes_in_last_step()
        if sizes is not None:
            return sizes[self.process_index]
        count = self._count_of_items()
        return count_rows(batch, self._source_batch_size) if count is None else count(batch)

    @property
    def _batches_per_step(self) -> int:
        return 1 if self.sharing.split else self.num_processes


def dispatch(loader: DataLoader[Any], how: Preparation) -> DataLoaderDispatcher:
    """`loader`, read by rank 0 for all. TrainingError for other ranks than those of this launch."""
    state = PartialState()
    if (how.num_processes, how.process_index) != (state.num_processes, state.process_index):
        raise TrainingError(
            f"rank {how.process_index} of {how.num_processes} was asked for, but batches are dispatched among the "
            f"{state.num_processes} ranks of this launch, of which this is rank {state.process_index}. Leave "
            "num_processes and process_index out, or use dispatch_batches=False."
        )
    prepared = DataLoaderDispatcher.around(loader)
    prepared.dispatch(
        device=how.device,
        split_batches=how.split_batches,
        even_batches=how.even_batches,
        rng_types=how.rng_types,
        non_blocking=how.non_blocking,
        slice_fn=how.slice_fn,
    )
    return prepared


class _Taking:
    """Takes a part in when it is needed, so that it may arrive during the work on the one before."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    def start(self, batch: Arrival) -> Arrival:
        return batch

    def finish(self, started: Arrival) -> Data:
        return self._mover.finish(self._mover.start(started.batch()))


class _Raising(Iterator[Any]):
    """Batches or steps that cannot be read: raised where a pass tells all ranks."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __next__(self) -> NoReturn:
        raise self._error
