"""Which batch size is tried after another: pure, the same on every rank that is told the same."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Literal, Protocol

Reduction = Literal["halve", "bisect"] | float | Callable[[int], int]
"""How a batch size that did not fit becomes the next one. A number: what it is multiplied with, rounded down. A
function is given the size that failed.
"""

DEFAULT_REDUCTION = 0.9
"""accelerate.utils.memory 1.15: "the batch size is multiplied by 0.9"."""

BISECTION_PART = 32
"""Bisection ends when the largest size that fits is known to this part of the first one: 4 for 128."""

_NAMES = ("halve", "bisect")


class Policy(Protocol):
    """Of one search."""

    def after_failure(self, size: int) -> int | None:
        """What to try after `size` did not fit; None: nothing is left. TypeError for what is no whole number."""
        ...

    def after_fit(self, size: int) -> int | None:
        """A larger size worth a try after `size` fitted; None: `size` is what was looked for."""
        ...


class Factor:
    """Multiplies, rounds down, and does not go below the smallest size."""

    def __init__(self, factor: float, minimum: int) -> None:
        self._factor = factor
        self._minimum = minimum

    def after_failure(self, size: int) -> int | None:
        return max(int(size * self._factor), self._minimum) if size > self._minimum else None

    def after_fit(self, size: int) -> int | None:
        del size
        return None


class Bisection:
    """Halves the range between the largest size that fitted and the smallest that did not."""

    def __init__(self, start: int, minimum: int) -> None:
        self._fits = minimum - 1
        """What is not known to fail: below the smallest allowed nothing is tried."""
        self._fails: int | None = None
        self._smallest_step = max(1, start // BISECTION_PART)
        self._has_fitted = False

    def after_failure(self, size: int) -> int | None:
        self._fails = size if self._fails is None else min(self._fails, size)
        return self._middle()

    def after_fit(self, size: int) -> int | None:
        self._has_fitted = True
        self._fits = max(self._fits, size)
        return self._middle()

    def _middle(self) -> int | None:
        if self._fails is None:
            return None
        # As long as nothing has fitted, down to the very smallest.
        step = self._smallest_step if self._has_fitted else 1
        middle = (self._fits + self._fails) // 2
        return middle if self._fails - self._fits > step and middle > self._fits else None


class Called:
    """Asks a function of the user's. Below the smallest size it has ended the search."""

    def __init__(self, reduce: Callable[[int], int], name: str, minimum: int) -> None:
        self._reduce = reduce
        self._name = name
        self._minimum = minimum

    def after_failure(self, size: int) -> int | None:
        following = self._reduce(size)
        try:
            following = operator.index(following)
        except TypeError:
            raise TypeError(
                f"{self._name} must return the next batch size, a whole number; it returned {following!r}."
            ) from None
        return following if following >= self._minimum else None

    def after_fit(self, size: int) -> int | None:
        del size
        return None


def check_reduction(reduction: Reduction | None, reduce_batch_size_fn: Callable[[], int] | None) -> None:
    """ValueError for a reduction that there is not, and for two at once."""
    if reduction is not None and reduce_batch_size_fn is not None:
        raise ValueError("find_executable_batch_size takes reduction= or reduce_batch_size_fn=, not both.")
    is_factor = isinstance(reduction, float) and 0 < reduction < 1
    if not (reduction is None or callable(reduction) or is_factor or reduction in _NAMES):
        names = ", ".join(map(repr, _NAMES))
        raise ValueError(
            f"reduction={reduction!r} is none that there is; it may be {names}, a factor between 0 and 1 such as 0.9, "
            "or a function that takes the batch size that failed and returns the next one."
        )


def choose_policy(
    reduction: Reduction | None, reduce_batch_size_fn: Callable[[], int] | None, *, start: int, minimum: int
) -> Policy:
    """How a search that begins with `start` goes on."""
    if reduce_batch_size_fn is not None:
        without_size = reduce_batch_size_fn
        return Called(lambda _: without_size(), "reduce_batch_size_fn", minimum)
    match reduction:
        case None:
            return Factor(DEFAULT_REDUCTION, minimum)
        case "halve":
            return Factor(0.5, minimum)
        case "bisect":
            return Bisection(start, minimum)
        case float():
            return Factor(reduction, minimum)
    assert callable(reduction)
    return Called(reduction, "reduction", minimum)
