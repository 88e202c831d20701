"""The process's random generators as streams that can be put aside and taken up again.

Reading data and training draw from the same generators of Python, NumPy and torch. Whoever repeats the reading alone,
a rank that resumes in the middle of a pass or one whose sampler must do as the other ranks' do, does so on streams of
its own, and the process's are left where they were.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from torch import Tensor, default_generator

Item = TypeVar("Item")


@dataclass
class Streams:
    """States of generators that are not in use now. None: this stream is left alone."""

    python: Any = None
    numpy: Any = None
    torch: Tensor | None = None

    @classmethod
    def of_process(cls, *, python: bool = True, numpy: bool = True, torch: bool = True) -> Self:
        """Those in use now. While NumPy is not imported, nothing can have drawn from it."""
        module = sys.modules.get("numpy") if numpy else None
        return cls(
            random.getstate() if python else None,
            _numpy_state(module) if module is not None else None,
            default_generator.get_state() if torch else None,
        )

    @classmethod
    def seeded(cls, seed: int) -> Self:
        """Streams that begin at `seed`."""
        before = cls.of_process()
        random.seed(seed)
        module = sys.modules.get("numpy")
        if module is not None:
            module.random.seed(seed % 2**32)
        default_generator.manual_seed(seed)
        before.swap()
        return before

    def swap(self) -> None:
        """Exchange these states with those of the process."""
        current = self.of_process(
            python=self.python is not None, numpy=self.numpy is not None, torch=self.torch is not None
        )
        if self.python is not None:
            version, numbers, gauss = self.python
            random.setstate((version, tuple(numbers), gauss))
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        if self.torch is not None:
            default_generator.set_state(self.torch)
        self.python, self.numpy, self.torch = current.python, current.numpy, current.torch

    def elsewhere(self) -> set[str]:
        """Names of the streams that are not where the process's are."""
        return self.differing(self.of_process())

    def differing(self, other: Streams) -> set[str]:
        """Names of the streams that are not where those of `other` are."""
        same_torch = self.torch is not None and other.torch is not None and self.torch.equal(other.torch)
        unequal = {"python": self.python != other.python, "numpy": self.numpy != other.numpy, "torch": not same_torch}
        return {name for name, differs in unequal.items() if differs}


def _numpy_state(module: Any) -> Any:  # noqa: ANN401  a module that may not be there
    name, keys, *rest = module.random.get_state()
    return (name, keys.tolist(), *rest)


@contextmanager
def on_streams(streams: Streams | None) -> Iterator[None]:
    """Draw from `streams` within the block, which moves them on; None: from the process's own."""
    if streams is None:
        yield
        return
    streams.swap()
    try:
        yield
    finally:
        streams.swap()


def on_shared_streams(items: Iterable[Item], seed: int) -> Iterator[Item]:
    """`items`, drawn while Python's, NumPy's and torch's CPU generators are on streams that begin at `seed`.

    For samplers that have no `generator` to synchronise: one that calls ``torch.randperm``, `random` or NumPy would
    order the data differently on each rank, and the ranks' shares would overlap. Between two items the generators are
    where the caller left them, so that the noise of each rank stays its own.
    """
    streams = Streams.seeded(seed)
    iterator = iter(items)
    while True:
        with on_streams(streams):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


class Draws:
    """Which of the process's generators reading an item of a loader draws from, learned from its first items.

    They are not looked at again: noting where all of them are takes 0.1 ms, longer than reading a small item.
    """

    NUM_WATCHED = 3

    def __init__(self) -> None:
        self.drawn_from = {"python": False, "numpy": False, "torch": False}
        self.num_watched = 0

    @property
    def is_known(self) -> bool:
        return self.num_watched >= self.NUM_WATCHED

    @property
    def are_any(self) -> bool:
        return any(self.drawn_from.values())

    def watch(self, items: Iterator[Any], *, first: bool) -> tuple[Streams, Any]:
        """The next of `items`, and where the generators were before it. `first`: of a pass."""
        before = Streams.of_process()
        item = next(items)
        for name in self.drawn_from.keys() & before.elsewhere():
            # With the first item the sampler draws its seed from torch, once.
            self.drawn_from[name] |= name != "torch" or not first
        self.num_watched += 1
        return before, item


class FetchStreams(Iterator[Any]):
    """Notes where the process's generators were before the newest item was read, for items read in this process."""

    def __init__(self, items: Iterator[Any], draws: Draws) -> None:
        self._items = items
        self._draws = draws
        self._is_first = True
        self.before: Streams | None = None
        """None: reading does not draw, or nothing was read."""

    def __next__(self) -> Any:  # noqa: ANN401
        if not self._draws.is_known:
            self.before, item = self._draws.watch(self._items, first=self._is_first)
            self._is_first = False
            return item
        self.before = Streams.of_process(**self._draws.drawn_from) if self._draws.are_any else None
        return next(self._items)

    @property
    def rest(self) -> Iterator[Any]:
        """What still comes, with nothing between where there is nothing to note."""
        return self._items if self._draws.is_known and not self._draws.are_any else self
