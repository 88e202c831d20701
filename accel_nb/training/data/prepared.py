"""What all prepared loaders do: give one rank's batches on its device, one read ahead, with the end known in time.

A subclass says where batches come from. One pass is

    begin -> _begin_pass (all ranks together) -> _open -> next, next, ... -> _end_pass, seen by the last batch -> end

and a batch is read, and its copy to the device begun, before the batch before it is given out: that is how the last
one is known to be the last while it is worked on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch.utils.data import IterableDataset, Sampler

from ...errors import TrainingError
from ..operations.nested import Data, ignorant_find_batch_size
from ..ranks.randomness import separate_noise_again
from ..ranks.state import GradientState
from .adapter import DataLoaderAdapter
from .awaiting import next_batch
from .moving import Mover, mover_to
from .order import DataOrder, generator_of
from .position import Position
from .streams import Draws, FetchStreams, Streams, on_streams
from .worker_pickling import teach_multiprocessing

_END = object()
_ADDED_KEY = "accel_nb"
"""Of what we add to a StatefulDataLoader's state."""


class DataLoaderStateMixin:
    """Where a prepared loader stands in its pass, for `GradientState`."""

    end_of_dataloader: bool = False
    """True from when the last batch of a pass is given out until the next pass."""
    remainder: int = -1
    """Samples of the last step, all ranks together, without those that fill it up; 0: it is full; -1: not known."""
    local_batch_size: int | None = None
    """Rows of this rank's last batch; None until it has come, or when it has none."""

    last_sizes: tuple[int, ...] | None = None
    """Samples of each rank in the last step, by rank, 0 for one that has no batch in it; None: all have as many."""
    pass_token: object = None
    """Another one in each pass; None before the first."""

    @property
    def gradient_state(self) -> GradientState:
        return GradientState()

    @property
    def varies_in_size(self) -> bool:
        """Whether ranks' batches may differ in size in any step."""
        return False

    def reset(self) -> None:
        self.end_of_dataloader, self.remainder = False, -1
        self.local_batch_size = self.last_sizes = None

    def begin(self) -> None:
        """A pass begins: this is the active loader."""
        self.reset()
        self.pass_token = object()
        self.gradient_state.begin(self)

    def end(self) -> None:
        """A pass is over, or was left; also said by hand by code that breaks out of a loop. Any number of times."""
        self.gradient_state.end(self)


class PreparedLoader(DataLoaderAdapter, DataLoaderStateMixin, ABC):
    """Base of `DataLoaderShard`, `DataLoaderDispatcher` and `SkipDataLoader`.

    A subclass says how ranks agree before a pass (`_begin_pass`), where its batches come from (`_read`; or `_open`, if
    it can skip without reading), how many samples its last step has (`_num_in_last_step`), and how many batches of the
    user's loader make a step (`_batches_per_step`).
    """

    _left_behind: ClassVar[tuple[str, ...]] = ("_iterator", "_fetches", "pass_token")
    iteration: int
    """Number of the next pass, handed to samplers and datasets whose order depends on it."""
    skip_batches: int
    """Of this rank's batches, left out at the beginning of every pass."""
    num_processes: int
    process_index: int
    _has_told = False
    """That workers share a stream."""

    def _set_up(
        self,
        *,
        device: torch.device | None,
        non_blocking: bool,
        num_processes: int,
        process_index: int,
        order: DataOrder,
        source_batch_size: int | None,
        skip_batches: int = 0,
        iteration: int = 0,
    ) -> None:
        """Called once by a constructor, or by whoever made this loader `around` another.

        `source_batch_size`: samples in a full batch of the user's loader; None: its batches differ in size.
        """
        self.device = device
        self.num_processes, self.process_index = num_processes, process_index
        self.skip_batches, self.iteration = skip_batches, iteration
        self._non_blocking = non_blocking
        self._order = order
        self._source_batch_size = source_batch_size
        self._position = Position(iteration=iteration)
        self._resumed: Position | None = None
        self._draws = Draws()
        self._fetches: FetchStreams | None = None
        self._keeps_base_state = self.base_is_stateful
        self._base_state: dict[str, Any] | None = None
        self._num_skipped = self._num_source_skipped = 0
        self._order_to_restore: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator, as for upstream's loaders
        """One pass, or the rest of the one whose state was loaded. Every rank must begin it, with its first batch."""
        mover = self._mover()
        self.begin()
        try:
            batches, first = self._start()
            position = self._position
            ahead = first if first is _END else mover.start(first)
            while ahead is not _END:
                batch = mover.finish(ahead)
                position.num_batches += 1
                if self._keeps_base_state:
                    self._base_state = self.base_state_dict()
                ahead = next_batch(batches, _END)
                if ahead is _END:
                    self._end_pass(batch)
                else:
                    ahead = mover.start(ahead)
                yield batch
        finally:
            self.end()

    def __len__(self) -> int:
        """Batches of one pass. TypeError when that is not known."""
        return max(0, super().__len__() - self.skip_batches)

    def __repr__(self) -> str:
        """Who reads what in which order."""
        length = len(self.dataset) if isinstance(self.dataset, Sized) else "any number of"
        size = "any number" if self.total_batch_size is None else str(self.total_batch_size)
        return (
            f"{type(self).__name__}(rank {self.process_index} of {self.num_processes}, {type(self.dataset).__name__} "
            f"with {length} samples, {self._order}, {f'{size} samples per step' if self.is_batched else 'not batched'})"
        )

    def get_sampler(self) -> Sampler[int] | None:
        """What gives the batch sampler single indices; None when there is no such thing."""
        return getattr(self.index_sampler, "sampler", None) if self.is_batched else None

    def set_sampler(self, sampler: Sampler[int]) -> None:
        """From the next pass on, `sampler` gives single indices; ranks agree on its order. To be called on all ranks.

        It takes its place in the user's own batch sampler. TrainingError when that takes none.
        """
        if isinstance(self.dataset, IterableDataset) or self.get_sampler() is None:
            raise TrainingError(
                f"set_sampler has no place for a {type(sampler).__name__}: this loader is not read by a batch sampler "
                "that takes its indices from another. Make a DataLoader with sampler= and batch_size=; prepare that."
            )
        self.index_sampler.sampler = sampler
        self._order = DataOrder(self, generator_of(self))

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be number `epoch`: its order then depends on this number and the seed alone.

        Samplers and datasets with a ``set_epoch`` are told. A shuffling sampler without one, as torch's RandomSampler,
        is seeded anew from its first seed and `epoch`.
        """
        if self._resumed is not None and self._resumed.iteration != epoch:
            self._resumed = None
        self.iteration = epoch
        self._order.choose_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands: after the batch that was given out last. Small values and tensors.

        That of one rank serves another rank and another number of ranks, too; only the noise of what reads data in the
        rank's own process is the rank's own. A loader over a StatefulDataLoader gives that one's state with ours added;
        one that was constructed, not prepared, gives that one's alone, for other StatefulDataLoaders to load.
        """
        if not self.base_is_stateful:
            return self._current_position().to_dict()
        state = dict(self._base_state or {})
        return state if self.is_constructed else {**state, _ADDED_KEY: self._current_position().to_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass go on where `state_dict` was taken. TrainingError for a state of something else."""
        rank = (self.process_index, self.num_processes)
        state = dict(state_dict)
        if self.base_is_stateful:
            added = state.pop(_ADDED_KEY, None)
            self._base_state = state
            self.load_base_state_dict(state)
            self._resumed = None if added is None else Position.from_dict(added, rank=rank)
        else:
            self._resumed = Position.from_dict(state, rank=rank)
        if self._resumed is not None:
            self.iteration = self._resumed.iteration

    def skipping(self, num_batches: int) -> Self:
        """A loader like this one that leaves out the first `num_batches` of this rank's at the beginning of each pass.

        It takes over a place that was loaded to go on from: whoever skips by hand knows where that is. Its order is
        that of the pass that was left.
        """
        order_to_restore = None if self._resumed is None else self._resumed.order
        self._resumed = None
        skipping = self.around(self, _position=Position(iteration=self.iteration), _order_to_restore=order_to_restore)
        skipping.skip_batches = self.skip_batches + num_batches
        skipping.reset()
        return skipping

    @property
    def num_batches_given(self) -> int:
        """Batches of this pass that were given out, those that were skipped included."""
        return self._position.num_batches

    @property
    def resumes_at(self) -> Position | None:
        """Where the next pass begins because a state was loaded; None: at its beginning."""
        return self._resumed

    @abstractmethod
    def _begin_pass(self) -> None:
        """All ranks together, before a pass: agree on the order of the data, seed the workers."""

    def _open(self, resumed: Position | None) -> Iterator[Any]:
        """This rank's batches, without those to be skipped; sets `_position.num_batches` to the number of these."""
        num_skipped = self.skip_batches if resumed is None else resumed.num_source_batches // self._batches_per_step
        batches = self._read()
        for _ in range(num_skipped):
            next(batches, None)
        self._position.num_batches = num_skipped
        return batches

    def _read(self) -> Iterator[Any]:
        """The batches of the loader below, which a loader class of the user's may make."""
        if self.num_workers < 2 or not isinstance(self.dataset, IterableDataset) or not self.reads_plainly:  # noqa: PLR2004
            return iter(super().__iter__())
        from .iterable import each_sample_once

        # Only while workers are started, which take them along: the loader's own stay what the user gave.
        for_workers = each_sample_once(self, tells=not self._has_told and self.process_index == 0)
        before = {name: self.__dict__[name] for name in for_workers}
        self.__dict__.update(for_workers)
        try:
            return iter(super().__iter__())
        finally:
            self.__dict__.update(before, _has_told=True)

    def _mover(self) -> Mover:
        """What takes the batches of `_open` to the device."""
        return mover_to(self.device, non_blocking=self._non_blocking)

    @abstractmethod
    def _num_in_last_step(self) -> int | None:
        """Samples of the last step, all ranks together, without those that fill it; None: not known."""

    def _sizes_in_last_step(self) -> tuple[int, ...] | None:
        """Rows of each rank in the last step, by rank, 0 for one that has no batch in it; None: all have as many."""
        return None

    @property
    @abstractmethod
    def _batches_per_step(self) -> int:
        """Batches of the user's loader that all ranks read at once."""

    @property
    @abstractmethod
    def total_batch_size(self) -> int | None:
        """Samples in a full step of all ranks together; None when batches differ in size."""

    @property
    def total_dataset_length(self) -> int:
        """Samples of the dataset, all ranks together. TypeError when it has no length."""
        length: int = getattr(self.dataset, "total_length", None) or len(self.dataset)  # type: ignore[arg-type]
        return length

    def _start(self) -> tuple[Iterator[Any], Any]:
        """Begin a pass; its batches, and the first of them."""
        if self.num_workers:
            teach_multiprocessing()
        separate_noise_again()
        resumed, self._resumed = self._resumed, None
        rank = (self.process_index, self.num_processes)
        self._position = Position(iteration=self.iteration, rank=rank, batch_size=self._source_batch_size)
        with on_streams(None if resumed is None else resumed.streams):
            self._position.streams = Streams.of_process()
            self._order.begin(self.iteration, self._order_to_restore if resumed is None else resumed.order)
            self._order_to_restore = None
            self._position.order = self._order.state()
            if self.num_processes == 1:
                self._position.order["drawn_seed"] = self._order.seed_to_be_drawn()
            self._begin_pass()
            batches = self._open(resumed)
        self._num_skipped = self._position.num_batches
        self._num_source_skipped = self._num_skipped * self._batches_per_step
        if resumed is not None:
            self._num_source_skipped = resumed.num_source_batches
        if self.num_workers == 0:
            self._fetches = FetchStreams(batches, self._draws)
            batches = self._fetches.rest
        with on_streams(None if resumed is None else resumed.fetch_streams):
            return batches, next_batch(batches, _END)

    def _end_pass(self, last_batch: Data) -> None:
        self.end_of_dataloader = True
        self.iteration = self._position.iteration + 1
        self.local_batch_size = self._num_rows(last_batch)
        self.last_sizes = self._sizes_in_last_step()
        num_samples = self._num_in_last_step()
        if num_samples is not None:
            self.remainder = 0 if num_samples == self.total_batch_size else num_samples
        if self._keeps_base_state:
            self._base_state = self.base_state_dict()

    def _num_rows(self, batch: Data) -> int | None:
        return ignorant_find_batch_size(batch)

    def _current_position(self) -> Position:
        if self._resumed is not None:
            return self._resumed
        if self.end_of_dataloader or self._position.num_batches == 0:
            rank = (self.process_index, self.num_processes)
            size = self._source_batch_size
            return Position(iteration=self.iteration, rank=rank, batch_size=size, order=self._order.state())
        num_read = self._position.num_batches - self._num_skipped
        return replace(
            self._position,
            num_source_batches=self._num_source_skipped + num_read * self._batches_per_step,
            fetch_streams=None if self._fetches is None else self._fetches.before,
        )
