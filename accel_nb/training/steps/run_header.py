"""Tells the run what its optimizer steps are made of, as the first of them were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...protocol import sink
from ...protocol.events import RunHeader
from ..data.prepared import PreparedLoader
from ..ranks.randomness import last_seed
from ..ranks.state import GradientState
from .optimizer import AcceleratedOptimizer

MAX_RATES = 4


def announce(
    optimizers: Sequence[AcceleratedOptimizer], progress: GradientState, num_ranks: int, precision: str,
    before: RunHeader | None, *, fills_up: bool,
) -> RunHeader | None:  # fmt: skip
    """Called in a backward of rank 0 in a launch: the header once it is known, None before.

    It is sent unless it is equal to `before`. `fills_up`: the last step of an epoch comes with its last batch.
    """
    optimizer = optimizers[0]
    assert optimizer.pace is not None
    loader = _innermost(progress)
    num_of_all = sum(one.num_steps_asked for one in optimizers)
    optimizer.pace.look(loader, optimizer.num_steps_asked, num_of_all)
    if not optimizer.pace.is_known:
        return None
    batches = optimizer.pace.batches_per_step
    total = None if loader is None else loader.total_batch_size
    header = RunHeader(
        num_ranks=num_ranks,
        batch_size=None if total is None else total // num_ranks,
        batches_per_update=batches,
        updates_per_epoch=_updates(loader, batches, fills_up=fills_up),
        precision=precision,
        learning_rates=tuple(_learning_rates(optimizers))[:MAX_RATES],
        seed=last_seed(),
    )
    if header != before:
        sink.emit(header)
    return header


def _innermost(progress: GradientState) -> PreparedLoader | None:
    """The prepared loader that is being read; what wraps its batches is passed over."""
    return next((one for one in reversed(progress.loaders) if isinstance(one, PreparedLoader)), None)


def _updates(loader: PreparedLoader | None, batches: int | None, *, fills_up: bool) -> int | None:
    if loader is None or batches is None or loader.skip_batches:
        return None
    try:
        num_batches = len(loader)
    except TypeError:  # a stream
        return None
    full, rest = divmod(num_batches, batches)
    return full + (rest > 0) if fills_up or not rest else None


def _learning_rates(optimizers: Iterable[AcceleratedOptimizer]) -> Iterable[float]:
    """Each once, as they were before schedulers changed them."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    rates = (group.get("initial_lr", group.get("lr")) for group in groups)
    return dict.fromkeys(float(rate) for rate in rates if rate is not None)
