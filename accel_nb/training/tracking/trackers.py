"""The trackers of one `Accelerator`: started together, given the same values, finished together."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..ranks.state import PartialState
from .registry import LOGGER_TYPE_TO_CLASS, Tracker, filter_trackers
from .tracker import ElsewhereObject, GeneralTracker

_Options = Mapping[str, Mapping[str, Any]]


class Trackers:
    """Belongs to one `Accelerator` and is used by its thread.

    A tracker that is for the main process only is never called on other ranks, whether or not its class says so itself.
    """

    def __init__(
        self, log_with: Tracker | Sequence[Tracker] | None, logging_dir: str | os.PathLike[str] | None
    ) -> None:
        """Raises what `filter_trackers` raises."""
        self.chosen = filter_trackers(log_with, logging_dir)
        self.made: list[GeneralTracker] = []
        """Those of the last `start`, also when they are finished."""
        self._logging_dir = logging_dir
        self._is_started = False
        self._open: list[GeneralTracker] = []
        """Those that work on this rank, from their start to their finish."""
        self._warned = False

    def start(
        self, project_name: str, config: Mapping[str, Any] | None = None, init_kwargs: _Options | None = None
    ) -> None:
        """Make and start all trackers, after finishing those that are open. `config` is kept as the run's settings.

        `init_kwargs`: tracker's name -> arguments of its constructor. ValueError for a name that no tracker has, or for
        one that was given to `log_with` ready-made.
        """
        options = init_kwargs or {}
        self._check_names("init_kwargs", options)
        self.finish()
        self.made = [self._make(one, project_name, options) for one in self.chosen]
        self._is_started, self._warned = True, False
        for tracker in self.made:
            if _works_here(tracker):
                tracker.start()
                self._open.append(tracker)
        for tracker in self._open if config is not None else ():
            tracker.store_init_configuration(dict(config or {}))

    def log(self, values: Mapping[str, Any], step: int | None = None, log_kwargs: _Options | None = None) -> None:
        """Give `values` to every tracker. `log_kwargs`: tracker's name -> further arguments of its `log`.

        Warns once when there are trackers but none was started, or all are finished.
        """
        options = log_kwargs or {}
        self._check_names("log_kwargs", options)
        if self.chosen and not self._is_started and not self._warned:
            self._warned = True
            when = "after accelerator.end_training" if self.made else "before accelerator.init_trackers"
            warnings.warn(f"accelerator.log was called {when}: its values are not recorded.", stacklevel=4)
        for tracker in self._open:
            # Each its own: a tracker that changes its values must not change another's.
            tracker.log(dict(values), step=step, **options.get(tracker.name, {}))

    def get(self, name: str, unwrap: bool = False) -> Any:  # noqa: ANN401  with `unwrap`, the library's object
        """The tracker `name`, or with `unwrap` its library's object.

        On ranks that it does not work on, that object does nothing. Where no tracker was started at all, a tracker that
        does nothing. ValueError for a name that none has.
        """
        if not self.made:
            return GeneralTracker(_blank=True)
        for tracker in self.made:
            if tracker.name == name:
                if not unwrap:
                    return tracker
                return tracker.tracker if _works_here(tracker) else ElsewhereObject()
        raise ValueError(
            f"{name!r} is not among the trackers of this Accelerator, which are "
            f"{', '.join(repr(tracker.name) for tracker in self.made)}."
        )

    def finish(self) -> None:
        """Close all that is open; every one is closed, then the first error is raised."""
        self._is_started = False
        finished, self._open = self._open, []
        errors = [error for tracker in finished if (error := _error_of(tracker.finish)) is not None]
        if errors:
            raise errors[0]

    def _make(self, one: str | GeneralTracker, project_name: str, options: _Options) -> GeneralTracker:
        if isinstance(one, GeneralTracker):
            return one
        tracker_class: Callable[..., GeneralTracker] = LOGGER_TYPE_TO_CLASS[one]
        arguments = (
            (project_name, self._logging_dir)
            if LOGGER_TYPE_TO_CLASS[one].requires_logging_directory
            else (project_name,)
        )
        return tracker_class(*arguments, **options.get(one, {}))

    def _check_names(self, argument: str, options: _Options) -> None:
        """Names of trackers that exist but are not used here are fine: scripts choose `log_with` at run time."""
        if not options:
            return
        made = {one.name for one in self.chosen if isinstance(one, GeneralTracker)}
        for name in options:
            if name in made and argument == "init_kwargs":
                raise ValueError(f"init_kwargs names {name!r}, but log_with holds that tracker ready-made.")
            if name not in made and name not in LOGGER_TYPE_TO_CLASS:
                known = ", ".join(map(repr, [*LOGGER_TYPE_TO_CLASS, *made]))
                raise ValueError(f"{argument} names {name!r}, which is no tracker; known are {known}.")


def _works_here(tracker: GeneralTracker) -> bool:
    return not tracker.main_process_only or PartialState().is_main_process


def _error_of(function: Callable[[], object]) -> Exception | None:
    try:
        function()
    except Exception as error:  # noqa: BLE001  the others must be closed, too; the caller raises it
        return error
    return None
