"""Leave out the first batches of a loader, to go on in the middle of a pass by hand."""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from .batch_sampler import SkipBatchSampler
from .order import DataOrder, generator_of
from .prepared import PreparedLoader


class SkipDataLoader(PreparedLoader):
    """A DataLoader of one process that leaves out the first `skip_batches` batches of every pass.

    Other arguments are DataLoader's. Batches that are left out are read all the same: `skip_first_batches` does better
    where it can.
    """

    def __init__(
        self,
        dataset: Any,  # noqa: ANN401  torch's own parameter
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(dataset, use_stateful_dataloader=use_stateful_dataloader, **kwargs)
        self.read_alone()
        self.skip_batches = skip_batches

    def read_alone(self) -> None:
        """Set up what this class adds to a DataLoader; once, by whoever made this one `around` another."""
        self._set_up(
            device=None,
            non_blocking=False,
            num_processes=1,
            process_index=0,
            order=DataOrder(self, generator_of(self)),
            source_batch_size=getattr(self.batch_sampler, "batch_size", self.batch_size),
        )

    @property
    def total_batch_size(self) -> int | None:
        return self._source_batch_size

    def _begin_pass(self) -> None:
        """Nobody else to agree with."""

    def _num_in_last_step(self) -> int | None:
        return self.local_batch_size

    @property
    def _batches_per_step(self) -> int:
        return 1


def skip_first_batches(dataloader: DataLoader[Any], num_batches: int = 0) -> DataLoader[Any]:
    """A loader like `dataloader` that leaves out the first `num_batches`, which it reads only where it has to.

    Of a prepared loader: the first of each rank's. `dataloader` itself stays as it is, but for a place that was loaded
    into it to go on from: that is now the new loader's business. ValueError for a negative number.
    """
    if num_batches < 0:
        raise ValueError(f"num_batches={num_batches!r} cannot be skipped; give 0 or more.")
    if isinstance(dataloader, PreparedLoader):
        return dataloader.skipping(num_batches)
    if isinstance(dataloader.dataset, IterableDataset) or dataloader.batch_sampler is None:
        skipping = SkipDataLoader.around(dataloader)
        skipping.read_alone()
        skipping.skip_batches = num_batches
        return skipping
    plain = copy.copy(dataloader)
    sampler = SkipBatchSampler(dataloader.batch_sampler, num_batches)  # type: ignore[arg-type]
    plain.__dict__.update(batch_sampler=sampler, _iterator=None)  # torch forbids this for loaders that were used
    return plain
