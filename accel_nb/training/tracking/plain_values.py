"""Logged values as plain Python: tensors and array scalars become numbers, nested names are joined."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterator, Mapping
from typing import SupportsIndex

import torch

_dropped: set[tuple[str, str]] = set()
"""(tracker, name) of values that were told to be left out: once each."""


def plain(value: object) -> object:
    """`value` as a Python number if it is a tensor or NumPy's, of one element; else as it is."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value
    # Not imported: what is NumPy's tells so itself, and torch works without NumPy.
    if type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1:
        return value.item()  # type: ignore[attr-defined]
    return value


def flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """(name, plain value) of all `values`; names within mappings are joined by slashes."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", plain(value)


def is_number(value: object) -> bool:
    return isinstance(value, int | float)


def finite_or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def plain_step(step: SupportsIndex | None) -> int | None:
    """`step` as an int; TypeError for what is no whole number."""
    return None if step is None else operator.index(step)


def tell_left_out(tracker: str, name: str, value: object) -> None:
    """Warn, once per name, that `tracker` cannot record a value of this kind."""
    if (tracker, name) not in _dropped:
        _dropped.add((tracker, name))
        warnings.warn(
            f"{tracker} cannot record {name!r}: its value is a {type(value).__name__}. It is left out.", stacklevel=2
        )
