"""Loops that cut batches into micro-batches, or look at all micro-batches of a step before they work on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

from ..data.prepared import DataLoaderStateMixin
from ..operations.transport import Collectives
from ..ranks.state import GradientState, Loader

Item = TypeVar("Item")
_END = object()


class MicroBatches(Generic[Item]):
    """Micro-batches of an iterable whose end is the end of the data, if the loop around it is at its end, too.

    So the last optimizer step comes with the last micro-batch: inside a loop over a prepared loader, for the pieces
    that one batch is cut into, and around anything that is no prepared loader. One item is read ahead.

    Of pieces nobody knows which rows only fill the last step up: `gather_for_metrics` is for whole batches.
    """

    end_of_dataloader = False

    def __init__(
        self, items: Iterable[Item], progress: GradientState, batches_of: DataLoaderStateMixin | None = None
    ) -> None:
        """`batches_of`: the prepared loader that all `items` are whole batches of; None: they are pieces, or come from
        elsewhere.
        """
        self._items = items
        self._progress = progress
        self._outer: Loader | None = batches_of
        self.batches_of = batches_of
        """Metrics of the last item are those of this loader's last step."""
        self.pass_token: object = None

    @property
    def remainder(self) -> int:
        return self._outer.remainder if self._outer is not None and self._is_last_batch else -1

    @property
    def local_batch_size(self) -> int | None:
        return self._outer.local_batch_size if self._outer is not None and self._is_last_batch else None

    @property
    def _is_last_batch(self) -> bool:
        """Whether a whole batch is worked on, and it is the last of the data."""
        return self.batches_of is not None and self.end_of_dataloader

    def __len__(self) -> int:
        """TypeError when the items have no length."""
        return len(self._items)  # type: ignore[arg-type]  # raises where it has none

    def __iter__(self) -> Iterator[Item]:
        if self.batches_of is None:
            self._outer = self._progress.active_dataloader
        self.end_of_dataloader, self.pass_token = False, object()
        with self._progress.reading(self):
            items = iter(self._items)
            ahead = next(items, _END)
            while ahead is not _END:
                item, ahead = ahead, next(items, _END)
                if ahead is _END:
                    self.end_of_dataloader = self._outer is None or self._outer.end_of_dataloader
                yield item  # type: ignore[misc]  # it is no longer _END


def accumulation_windows(
    loader: Iterable[Item], num_steps: int, count_items: Callable[[Item], int | torch.Tensor], ranks: Collectives,
    progress: GradientState,
) -> Iterator[tuple[MicroBatches[Item], torch.Tensor]]:  # fmt: skip
    """`loader` in windows of `num_steps` batches, the last as long as it is; with each window the number of items in
    all its batches on all ranks, by `count_items`, as a tensor on the device of the counts.

    Every rank must read as many windows. ValueError for `num_steps` below 1.
    """
    if num_steps < 1:
        raise ValueError(f"a window of {num_steps!r} batches is none; it needs at least 1.")
    window: list[Item] = []
    prepared = loader if isinstance(loader, DataLoaderStateMixin) else None
    batches = iter(loader)
    while True:
        window = [batch for _, batch in zip(range(num_steps), batches, strict=False)]
        if not window:
            return
        yield MicroBatches(window, progress, prepared), _total(window, count_items, ranks)


def _total(
    window: Sequence[Item], count_items: Callable[[Item], int | torch.Tensor], ranks: Collectives
) -> torch.Tensor:
    own = torch.stack([torch.as_tensor(count_items(batch)) for batch in window]).sum()
    return ranks.reduce(own, "sum", 1.0)
