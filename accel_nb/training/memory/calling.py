"""The function of a search and how it may be called."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def name_of(function: Function) -> str:
    """Alike on all ranks: nothing that says where an object lies in memory."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def whole_number(name: str, value: object) -> int:
    """`value` of the argument `name`, also NumPy's. TypeError for anything else."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # that is what is found out
    except TypeError:
        raise TypeError(f"{name}={value!r} must be a whole number.") from None


def check_function(function: Function, name: str) -> None:
    """TypeError for what computes only after it has returned, and for a method that its class has not bound yet."""
    later = {
        "a generator": inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function),
        "a coroutine": inspect.iscoroutinefunction(function),
    }
    for what, is_so in later.items():
        if is_so:
            raise TypeError(
                f"{name} gives {what}, which computes only after {name} has returned: nothing could be tried. Decorate "
                "a plain function."
            )
    parameters = _parameters_of(function)
    if parameters and parameters[0].name == "self":
        raise TypeError(
            f"{name} takes `self` first, but find_executable_batch_size passes the batch size first. Decorate no "
            f"methods; call find_executable_batch_size(self.{name}, ...)() instead."
        )


def check_left_out(function: Function, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise TypeError when the call holds a batch size of its own. Other wrong arguments are for Python to report."""
    parameters = _parameters_of(function)
    if parameters is None:
        return
    places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    takes_any_number = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    if not places and not takes_any_number:
        raise TypeError(f"{name} must take the batch size as its first argument.")
    too_many = not takes_any_number and len(args) + 1 > len(places)
    by_name = bool(places) and places[0].name in kwargs
    if not too_many and not by_name:
        return
    kept = args[1:] if too_many else args
    shown = [f"{place.name}={value!r}" for place, value in zip(places[1:], kept, strict=False)]
    shown += [f"{key}={value!r}" for key, value in kwargs.items() if not (by_name and key == places[0].name)]
    raise TypeError(
        f"Batch size was passed into `{name}` when it was called, but find_executable_batch_size passes it. "
        f"Leave it out: `{name}({', '.join(shown)})`."
    )


def _parameters_of(function: Function) -> list[inspect.Parameter] | None:
    """None: written in C, it does not say."""
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return None
