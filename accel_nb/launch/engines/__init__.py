"""What starts ranks, one file per engine. A new file that ends in ``ENGINE = ...`` is found without any list, and so is
what another package offers as an entry point.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from functools import lru_cache
from importlib.metadata import entry_points

from ...errors import InvalidArgument
from .engine import Engine, KeepsWarm

ENTRY_POINTS = "accel_nb.engines"
DEFAULT = "local"
"""What ``backend="auto"`` means."""


@lru_cache(maxsize=1)
def find_engines() -> dict[str, Engine]:
    """The engines of this folder and of other packages, by name. Imports none of what they build on.

    Warns about another package's engine that cannot be loaded, or whose name is taken, and leaves it out.
    """
    modules = [importlib.import_module(module.name) for module in pkgutil.iter_modules(__path__, f"{__name__}.")]
    found: dict[str, Engine] = {module.ENGINE.name: module.ENGINE for module in modules if hasattr(module, "ENGINE")}
    for offer in entry_points(group=ENTRY_POINTS):
        try:
            engine = offer.load()
        except Exception as error:  # noqa: BLE001  another package's import may raise anything; it is reported
            warnings.warn(f"The engine {offer.value!r} cannot be loaded: {type(error).__name__}: {error}", stacklevel=2)
            continue
        if engine.name in found:
            warnings.warn(f"{offer.value!r} is left out: an engine {engine.name!r} exists already.", stacklevel=2)
            continue
        found[engine.name] = engine
    return found


def find_engine(name: str) -> Engine:
    """The engine that ``backend=name`` means. Raises InvalidArgument for a name that no engine has."""
    engines = find_engines()
    wanted = DEFAULT if name == "auto" else name
    if wanted not in engines:
        allowed = ", ".join(map(repr, ("auto", *sorted(engines))))
        raise InvalidArgument(f"backend={name!r} is not known; allowed: {allowed}.")
    return engines[wanted]


def let_go() -> list[str]:
    """End what engines keep for the next launch, and is not in use; what it was, for people."""
    keeping = [engine for engine in find_engines().values() if isinstance(engine, KeepsWarm)]
    return [text for engine in keeping if (text := engine.let_go())]
