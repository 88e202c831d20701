"""Small operations on plain Python values, under the names of ``accelerate.utils.other`` (1.15)."""

from __future__ import annotations

import functools
from typing import Any

_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def merge_dicts(source: dict[Any, Any], destination: dict[Any, Any]) -> dict[Any, Any]:
    """Put the items of `source` into `destination`, dictionaries within them likewise; returns `destination`."""
    for key, value in source.items():
        if isinstance(value, dict):
            merge_dicts(value, destination.setdefault(key, {}))
        else:
            destination[key] = value
    return destination


def convert_bytes(size: float) -> str:
    """`size` in bytes, in the largest unit (steps of 1024) that leaves at least 1: ``1.5 GB``."""
    for unit in _UNITS:
        if size < 1024:  # noqa: PLR2004  the step
            return f"{round(size, 2)} {unit}"
        size /= 1024
    return f"{round(size, 2)} PB"


def recursive_getattr(obj: object, attr: str) -> Any:  # noqa: ANN401  whatever the attribute is
    """The attribute at the end of a path such as "layer.weight.grad". AttributeError where it breaks off."""
    return functools.reduce(getattr, attr.split("."), obj)


def get_pretty_name(obj: object) -> str:
    """The qualified name of a function or class, or of the class of an object."""
    named = obj if hasattr(obj, "__qualname__") or hasattr(obj, "__name__") else type(obj)
    return str(getattr(named, "__qualname__", None) or named.__name__)  # type: ignore[attr-defined]  # it has one
