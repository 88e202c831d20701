"""What every experiment tracker offers, and which ranks it works on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from ..ranks.state import PartialState

_Method = TypeVar("_Method", bound=Callable[..., Any])


def on_main_process(function: _Method) -> _Method:
    """A method that does nothing, and gives None, on ranks other than the main one if its object says
    ``main_process_only = True``. Who is what is asked when it is called; that makes a `PartialState`.
    """

    @functools.wraps(function)
    def guarded(self: object, *args: object, **kwargs: object) -> object:
        if getattr(self, "main_process_only", False) and not PartialState().is_main_process:
            return None
        return function(self, *args, **kwargs)

    return cast("_Method", guarded)


class GeneralTracker:
    """Base of trackers, one's own included (contract of ``accelerate.tracking.GeneralTracker`` 1.15).

    A subclass defines, in the class or as properties: `name`; `requires_logging_directory`, whether it writes files;
    `tracker`, the library's own object. Else NotImplementedError is raised when it is made. It overrides those methods
    that its library has something for. They are called in the order of this class, on the main process only if
    `main_process_only`, else on every rank.
    """

    name: str
    requires_logging_directory: bool
    main_process_only: ClassVar[bool] = True
    if TYPE_CHECKING:

        @property
        def tracker(self) -> Any: ...  # noqa: ANN401  the library's

    def __init__(self, _blank: bool = False) -> None:
        """`_blank`: one that does nothing."""
        needed = ("name", "requires_logging_directory", "tracker")
        missing = [] if _blank else [name for name in needed if name not in dir(self)]
        if missing:
            raise NotImplementedError(
                f"{type(self).__name__} lacks {', '.join(missing)}: a tracker defines name, requires_logging_directory "
                "and tracker in its class."
            )

    def start(self) -> None:
        """Open the run. Comes after the process group: the constructor must not ask who this rank is."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep `values`, the settings of the run."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        """Record `values`; `kwargs` are for the library."""

    def finish(self) -> None:
        """Close the run."""


class ElsewhereObject:
    """Stands on other ranks for a library's object that exists on the main process only: calls do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: None


class OpenedTracker(GeneralTracker):
    """Base of our own trackers: `start` sets `_opened`, the library's object."""

    _opened: Any = None

    def __init__(self) -> None:
        super().__init__()

    @property
    def tracker(self) -> Any:  # noqa: ANN401  the library's
        """The library's object. On ranks that the tracker does not work on, one that does nothing.

        RuntimeError before `start`.
        """
        if self._opened is not None:
            return self._opened
        if self.main_process_only and not PartialState().is_main_process:
            return ElsewhereObject()
        raise RuntimeError(f"the tracker {self.name!r} was not started: call accelerator.init_trackers first.")
