"""Stand-ins for the libraries of tracking services: modules that record what they are asked for."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest


class Recorder:
    """Takes every call and every item, and remembers them as text in `calls`, which its parts share."""

    def __init__(self, path: str, calls: list[str]) -> None:
        self._path = path
        self._calls = calls

    def __getattr__(self, name: str) -> Recorder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Recorder(f"{self._path}.{name}", self._calls)

    def __call__(self, *args: object, **kwargs: object) -> Recorder:
        given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
        self._calls.append(f"{self._path}({', '.join(given)})")
        return Recorder(f"{self._path}()", self._calls)

    def __setitem__(self, key: str, value: object) -> None:
        self._calls.append(f"{self._path}[{key!r}] = {value!r}")

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            self._calls.append(f"{self._path}.{name} = {value!r}")
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"<{self._path}>"


def install(monkeypatch: pytest.MonkeyPatch, name: str, *members: str, **values: object) -> list[str]:
    """Make ``import name`` find a module with recording `members` and with `values`; gives the list of calls."""
    calls: list[str] = []
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, loader=None)
    for member in members:
        setattr(module, member, Recorder(f"{name}.{member}", calls))
    for member, value in values.items():
        setattr(module, member, value)
    monkeypatch.setitem(sys.modules, name, module)
    return calls
