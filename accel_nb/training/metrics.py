"""Gather what metrics are computed from, each sample once.

The ranks' parts of the last step may hold samples that only fill it up; what is gathered is cut to the genuine ones.
Where ranks hold unequally much (`even_batches` off, batches that differ in size), parts are gathered one by one, and
only among the ranks that have one: the others have left the loop already.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import torch

from .data.prepared import DataLoaderStateMixin, PreparedLoader
from .operations.nested import Data, is_container, is_namedtuple, leaves, map_children
from .operations.partial_gather import gather_among
from .operations.transport import Collectives
from .ranks.state import GradientState
from .steps.windows import MicroBatches


def gather_for_metrics(data: Data, ranks: Collectives, progress: GradientState, *, as_objects: bool = False) -> Data:
    """`data` of all ranks, joined by rank, without the rows that fill up the active loader's last step.

    Tensors anywhere in `data` are joined along dimension 0. A list without any tensor, such as one of strings, holds
    one item per sample and is joined with the other ranks' lists; a tuple of such lists, as ``(predictions, labels)``,
    holds one list per field. None stays None. `as_objects`: treat `data` as a list with one item per sample, whatever
    it holds. TypeError for any other value.

    Every rank that has a batch in this step calls this. At an uneven end, those that have none get nothing of it.
    """
    step = _Step.now(ranks.num_ranks, progress)
    return _gathered_list(data, ranks, step) if as_objects else _gathered(data, ranks, step)


class MetricMean:
    """The mean over all samples that a prepared loader gives, each counted once, however they are spread over ranks.

    `update` is called in the loop, on every rank, with one value per sample of the batch; `compute` by all ranks
    together. Nothing travels before that.
    """

    def __init__(self, ranks: Collectives, rank: int, progress: GradientState) -> None:
        self._ranks, self._rank, self._progress = ranks, rank, progress
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._total = self._weight = torch.zeros((), dtype=torch.float64)

    def update(self, values: torch.Tensor | float, weights: torch.Tensor | float | None = None) -> None:
        """Add this rank's `values`: along dimension 0 one per sample, or as many for each.

        A 0-d value is the mean of the batch, and counts as much as that has samples; it warns for a last batch that is
        filled up, whose mean cannot be corrected. `weights`: of the same shape; None: all alike. ValueError for
        weights of another shape, and for a 0-d value without a weight where batches differ in size.
        """
        step = _Step.now(self._ranks.num_ranks, self._progress)
        values = torch.as_tensor(values)
        kept = step.kept_rows_of(self._rank, values)
        if weights is None:
            weights = torch.full_like(values, 1 if values.dim() else self._weight_of_batch(step), dtype=torch.float64)
        weights = torch.as_tensor(weights)
        if weights.shape != values.shape:
            raise ValueError(
                f"metric_mean needs one weight per value: values has the shape {list(values.shape)}, weights "
                f"{list(weights.shape)}. Give update() weights of the shape of values, or leave them out."
            )
        if values.dim():
            values, weights = values[:kept], weights[:kept]
        exact, exact_weights = (one.detach().to("cpu", torch.float64) for one in (values, weights))
        self._total = self._total + (exact * exact_weights).sum()
        self._weight = self._weight + exact_weights.sum()

    def _weight_of_batch(self, step: _Step) -> int:
        loader = self._progress.active_dataloader
        if step.num_own_samples is not None or not isinstance(loader, PreparedLoader):
            return step.num_own_samples or 1
        if loader.total_batch_size is None:
            raise ValueError(
                "the mean of a batch counts as much as the batch has samples, and this loader's batches differ in "
                "size. Give update() one value per sample, or weights= with the number of samples."
            )
        return loader.total_batch_size // self._ranks.num_ranks

    def compute(self) -> float:
        """The mean so far, over all ranks; NaN when there was nothing. Every rank must call this."""
        total, weight = self._ranks.reduce(torch.stack([self._total, self._weight]), "sum", 1.0).tolist()
        return float(total / weight) if weight else float("nan")


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What is known of the step that is worked on."""

    num_own_samples: int | None = None
    """In this rank's batch. None: not known, as it is before the last step."""
    sizes: tuple[int, ...] = ()
    """Samples of each rank, by rank. Empty: not known."""
    num_genuine: int = 0
    """Of all ranks' samples, those that do not fill the step up. 0: all."""
    varies: bool = False
    """Whether ranks may hold unequally much in any step."""

    @classmethod
    def now(cls, num_ranks: int, progress: GradientState) -> Self:
        loader = progress.active_dataloader
        if loader is None:
            return cls()
        source = loader.batches_of if isinstance(loader, MicroBatches) else loader
        ours = source if isinstance(source, DataLoaderStateMixin) else DataLoaderStateMixin()
        varies = num_ranks > 1 and ours.varies_in_size
        if loader.local_batch_size is None:  # known for steps that may be filled only
            return cls(varies=varies)
        return cls(
            num_own_samples=loader.local_batch_size,
            sizes=ours.last_sizes or (loader.local_batch_size,) * num_ranks,
            num_genuine=max(0, loader.remainder),
            varies=varies,
        )

    @property
    def is_filled(self) -> bool:
        return 0 < self.num_genuine < sum(self.sizes)

    @property
    def is_uneven(self) -> bool:
        return self.varies or len(set(self.sizes)) > 1

    def members(self, num_ranks: int) -> list[int]:
        """The ranks that have a batch."""
        return [rank for rank, size in enumerate(self.sizes or (1,) * num_ranks) if size]

    def rows_to_keep(self, num_own_rows: int | None) -> int | None:
        """How many of all ranks' rows to keep; None: all. `num_own_rows`: this rank's, None for a 0-d tensor."""
        if not self.is_filled:
            return None
        rows_per_sample = self._rows_per_sample(num_own_rows)
        return None if rows_per_sample is None else self.num_genuine * rows_per_sample

    def kept_rows_of(self, rank: int, values: torch.Tensor) -> int | None:
        """How many rows of `values`, those of `rank`, to keep; None: all."""
        if not self.is_filled:
            return None
        rows_per_sample = self._rows_per_sample(values.shape[0] if values.dim() else None)
        before = sum(self.sizes[:rank])
        return None if rows_per_sample is None else max(0, self.num_genuine - before) * rows_per_sample

    def _rows_per_sample(self, num_own_rows: int | None) -> int | None:
        """A model may give several rows per sample, as a beam search does. None, after a warning: it cannot be said."""
        num_samples = self.num_own_samples or 1
        if num_own_rows is None and num_samples == 1:
            return 1
        if num_own_rows and num_own_rows % num_samples == 0:
            return num_own_rows // num_samples
        _warn_of_filling("a single value" if num_own_rows is None else f"{num_own_rows} rows", num_samples)
        return None

    def genuine(self, parts: list[Any]) -> list[Any]:
        """The `parts` of the ranks that have a batch, without the rows that fill the step. Ranks may have unequally
        many rows per sample. All rows, after a warning, where it cannot be said.
        """
        if not self.is_filled:
            return parts
        kept = []
        num_left = self.num_genuine
        for part, num_samples in zip(parts, filter(None, self.sizes), strict=True):
            rows_per_sample, rest = divmod(len(part), num_samples)
            if rest:
                _warn_of_filling(f"{len(part)} rows", num_samples)
                return parts
            kept.append(part[: min(num_left, num_samples) * rows_per_sample])
            num_left -= min(num_left, num_samples)
        return kept


def _warn_of_filling(given: str, num_samples: int) -> None:
    warnings.warn(
        f"gather_for_metrics was given {given} for a last batch of {num_samples} samples, some of which only fill "
        "it up; they are counted all the same. Gather one row per sample, and reduce afterwards.",
        stacklevel=2,
    )


def _gathered(data: Data, ranks: Collectives, step: _Step) -> Data:
    if isinstance(data, torch.Tensor):
        return _gathered_tensor(data, ranks, step)
    if isinstance(data, list | tuple) and not _has_fields(data):
        return _gathered_list(data, ranks, step)
    if data is None or is_container(data):
        return map_children(lambda child: _gathered(child, ranks, step), data)
    raise TypeError(
        f"gather_for_metrics cannot gather a {type(data).__name__} ({data!r}). Give tensors, or lists with one item "
        "per sample; for one value per rank use gather_object([value])."
    )


def _has_fields(data: Data) -> bool:
    """Whether a list or tuple holds several things per sample, rather than one item per sample."""
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves(data)) or is_namedtuple(data):
        return True
    return isinstance(data, tuple) and bool(data) and all(isinstance(item, list) for item in data)


def _gathered_tensor(tensor: torch.Tensor, ranks: Collectives, step: _Step) -> torch.Tensor:
    if step.is_uneven:
        own = tensor.detach().reshape(tensor.shape or (1,)).cpu()
        joined: torch.Tensor = torch.cat(step.genuine(_parts(own, ranks, step))).to(tensor.device)
        return joined
    rows: torch.Tensor = ranks.gather(tensor)
    return rows[: step.rows_to_keep(tensor.shape[0] if tensor.dim() else None)]


def _gathered_list(items: Data, ranks: Collectives, step: _Step) -> list[object]:
    if not isinstance(items, list | tuple):
        raise TypeError(f"gather_for_metrics with use_gather_object=True joins lists, got {type(items).__name__}.")
    return [item for part in step.genuine(_parts(list(items), ranks, step)) for item in part]


def _parts(own: Any, ranks: Collectives, step: _Step) -> list[Any]:  # noqa: ANN401
    """What each rank that has a batch gave."""
    members = step.members(ranks.num_ranks)
    return gather_among(own, members) if len(members) < ranks.num_ranks else ranks.gather_object(own)
