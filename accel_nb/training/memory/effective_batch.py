"""Keeps the number of samples per optimizer step when the batch gets smaller: more micro-batches make a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from weakref import WeakKeyDictionary

from ..settings import GradientAccumulationPlugin
from . import held

_factor: ContextVar[int] = ContextVar("accumulation factor", default=1)


def factor_for(size: int, first_size: int) -> int:
    """How many batches of `size` are, to the nearest whole number, one of `first_size`."""
    return max(1, round(first_size / size))


def adapted(plugin: GradientAccumulationPlugin) -> GradientAccumulationPlugin:
    """`plugin` as an `Accelerator` made now is to obey it: within a try, with more micro-batches per step."""
    factor = _factor.get()
    return plugin if factor == 1 else replace(plugin, num_steps=(plugin.num_steps or 1) * factor)


_multiplied: WeakKeyDictionary[held.Holder, tuple[int, int]] = WeakKeyDictionary()
"""What a search has set, and what that was before: the next one, or the next call, begins with the latter again."""


class Steps:
    """The numbers of micro-batches per step that the `Accelerator`s known at the beginning of a search have."""

    def __init__(self) -> None:
        self._before = [(one, one.gradient_accumulation_steps) for one in held.holders()]
        # Within a try of another search those are what that one has set.
        is_outermost = _factor.get() == 1
        self._asked_for = [(one, _asked_for(one, now) if is_outermost else now) for one, now in self._before]

    def restore(self) -> None:
        """As they were: no batch size was found."""
        for accelerator, steps in self._before:
            if accelerator.gradient_accumulation_steps != steps:
                accelerator.gradient_accumulation_steps = steps

    @contextmanager
    def multiplied(self, factor: int) -> Iterator[None]:
        """Within the block all `Accelerator`s, also those made in it, take `factor` times as many. Those that were
        there before keep that afterwards: training may go on with the batch size that was found.
        """
        for accelerator, steps in self._asked_for:
            if accelerator.gradient_accumulation_steps != steps * factor:
                accelerator.gradient_accumulation_steps = steps * factor
                _multiplied[accelerator] = steps * factor, steps
        token = _factor.set(factor)
        try:
            yield
        finally:
            _factor.reset(token)
            known = [accelerator for accelerator, _ in self._asked_for]
            for made in held.holders():
                if made not in known and made.gradient_accumulation_steps % factor == 0:
                    steps = made.gradient_accumulation_steps
                    _multiplied[made] = steps, steps // factor


def _asked_for(accelerator: held.Holder, steps: int) -> int:
    """What it was before a search set it to `steps`; `steps` if that was the user."""
    set_last, before = _multiplied.get(accelerator, (steps, steps))
    return before if set_last == steps else steps
