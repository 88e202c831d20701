"""DataLoader workers and what was typed in a notebook's cell: classes and functions that no module can be asked for.

Spawned workers get the dataset, and workers of every kind send samples back, through multiprocessing's own pickler,
which knows classes and functions by name only. It is taught to send those without a home by value, with their lines, so
that a worker's traceback shows them. All else stays its business: torch's tensors go through shared memory because of
what that pickler knows, so it must not be replaced.
"""

from __future__ import annotations

import io
import linecache
import sys
from collections.abc import Callable
from functools import cache
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle

from ...errors import TrainingError
from .worker_stacks import answering_loop

Sources = dict[str, str]
"""File name of a code object -> its text, of those that are no files."""

_pickled_classes: WeakKeyDictionary[type, tuple[bytes, Sources]] = WeakKeyDictionary()


class _SourcedPickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # published without type information
    """cloudpickle's, but code keeps the name of its file (3.1.3 writes ``<dynamic-code>``), and its text is noted."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.sources: Sources = {}

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        constructor, arguments = self.dispatch_table[CodeType](obj)
        position = next(index for index, value in enumerate(arguments) if isinstance(value, str))  # co_filename
        name = obj.co_filename
        lines = [] if Path(name).is_file() else linecache.getlines(name)
        if lines:
            self.sources[name] = "".join(lines)
        return constructor, (*arguments[:position], name, *arguments[position + 1 :])


@cache
def teach_multiprocessing() -> None:
    """From now on this process, and the workers that it starts, send by value what has no name. Once is enough."""
    before: Callable[[ForkingPickler, Any], Any] | None = getattr(ForkingPickler, "reducer_override", None)

    def reducer_override(pickler: ForkingPickler, obj: Any) -> Any:  # noqa: ANN401
        if isinstance(obj, type | FunctionType) and not _has_a_home(obj):
            return _by_value(obj)
        if (loop := answering_loop(obj)) is not None:
            return loop
        return NotImplemented if before is None else before(pickler, obj)

    # The C pickler looks for this method; tables of reducers, which ForkingPickler.register fills, it does not ask
    # about classes and functions (Python 3.11 to 3.13).
    setattr(ForkingPickler, "reducer_override", reducer_override)  # noqa: B010  its type forbids to assign a method


def function_by_value(pickled: bytes, sources: Sources) -> Callable[..., Any]:
    """Called while a pickle is loaded, in a worker first."""
    teach_multiprocessing()
    _show_in_tracebacks(sources)
    function: Callable[..., Any] = cloudpickle.loads(pickled)
    return function


def class_by_value(tracker_id: str, pickled: bytes, sources: Sources) -> type:
    """Called while a pickle is loaded: this process's own class when it is one of its that comes back."""
    teach_multiprocessing()
    _show_in_tracebacks(sources)
    # Loading would write the contents anew into a class that is here, to which its id leads by no public way.
    known: type | None = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker_id)  # noqa: SLF001
    return cloudpickle.loads(pickled) if known is None else known


def _by_value(obj: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:  # noqa: ANN401
    try:
        if not isinstance(obj, type):
            return function_by_value, _dumped(obj)
        if obj not in _pickled_classes:
            _pickled_classes[obj] = _dumped(obj)
        tracker_id = cloudpickle.cloudpickle._get_or_create_tracker_id(obj)  # noqa: SLF001  see above
        return class_by_value, (tracker_id, *_pickled_classes[obj])
    except Exception as error:
        raise TrainingError(
            f"{obj.__qualname__}, which was typed in a notebook, cannot be sent to DataLoader workers: {error} Use "
            "num_workers=0, or keep what it refers to out of it."
        ) from error


def _dumped(obj: object) -> tuple[bytes, Sources]:
    file = io.BytesIO()
    pickler = _SourcedPickler(file)
    pickler.dump(obj)
    return file.getvalue(), pickler.sources


def _show_in_tracebacks(sources: Sources) -> None:
    """Without a time of modification, `linecache.checkcache` keeps them."""
    for name, text in sources.items():
        if name not in linecache.cache:
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _has_a_home(obj: type | FunctionType) -> bool:
    """Whether another process finds `obj` by its name. Only a notebook, or its rank, has its ``__main__``."""
    module = sys.modules.get(getattr(obj, "__module__", None) or "")
    if module is None or (module.__name__ == "__main__" and not _is_run_again(module)):
        return False
    found: Any = module
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def _is_run_again(main: Any) -> bool:  # noqa: ANN401
    """Whether multiprocessing lets workers run this ``__main__``, as it does with a script's (its `spawn` module)."""
    return getattr(main, "__spec__", None) is not None or getattr(main, "__file__", None) is not None
