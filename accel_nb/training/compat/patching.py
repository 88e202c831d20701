"""Other environment variables for a while, under the names of ``accelerate.utils.environment`` (1.15)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeVar, cast

from ...protocol import environment

Decorated = TypeVar("Decorated", bound=Callable[..., Any] | type)

_PREFIX = "ACCELERATE_"
_FORBIDDEN = frozenset(";\n<> ")
_logger = logging.getLogger(__name__)


def patch_environment(**kwargs: object) -> AbstractContextManager[None]:
    """Within the block the environment has a variable for each keyword, its name in upper case, its value as text.
    Afterwards the whole environment is as it was.
    """
    return environment.changed({name.upper(): str(value) for name, value in kwargs.items()})


def clear_environment() -> AbstractContextManager[None]:
    """Within the block the environment is empty. Afterwards it is as it was."""
    return environment.changed({}, cleared=True)


def purge_accelerate_environment(func_or_cls: Decorated) -> Decorated:
    """Decorator: after a call of the function, ``ACCELERATE_*`` variables are as they were before.

    Of a class, and of those derived from it, each method whose name begins with "test" is decorated.
    """
    if not isinstance(func_or_cls, type):
        return cast("Decorated", _purging(func_or_cls))
    _purge_tests(func_or_cls)
    inherited = func_or_cls.__init_subclass__

    def purge_derived(cls: type, /, **kwargs: Any) -> None:  # noqa: ANN401  those of the class statement
        inherited(**kwargs)
        _purge_tests(cls)

    func_or_cls.__init_subclass__ = classmethod(purge_derived)  # type: ignore[assignment]  # it is implicitly one
    return func_or_cls


def convert_dict_to_env_variables(current_env: Mapping[str, str]) -> list[str]:
    """A line ``NAME=value`` for each variable; those that a shell would misread are left out, with a warning."""
    lines = []
    for name, value in current_env.items():
        if name and value and not _FORBIDDEN & set(name + value):
            lines.append(f"{name}={value}\n")
        else:
            _logger.warning(
                "the variable %r with the value %r is left out: both need text without ; < > blanks and line ends.",
                name,
                value,
            )
    return lines


def _purging(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def purging(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  those of the function
        with environment.restored(_PREFIX):
            return function(*args, **kwargs)

    purging.restores_accelerate_variables = True  # type: ignore[attr-defined]
    return purging


def _purge_tests(cls: type) -> None:
    for name in dir(cls):
        method = getattr(cls, name)
        if name.startswith("test") and callable(method) and not hasattr(method, "restores_accelerate_variables"):
            setattr(cls, name, _purging(method))
