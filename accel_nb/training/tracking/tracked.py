"""What `Accelerator` offers for experiment trackers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tracker import GeneralTracker
from .trackers import Trackers


class Tracked:
    """Base of `Accelerator`. Names and parameters are upstream's (accelerate 1.15)."""

    _trackers: Trackers

    @property
    def log_with(self) -> list[str | GeneralTracker]:
        """Names of trackers, and those that were given ready-made."""
        return self._trackers.chosen

    @property
    def trackers(self) -> list[GeneralTracker]:
        """Those of the last `init_trackers`."""
        return self._trackers.made

    def init_trackers(
        self,
        project_name: str,
        config: Mapping[str, Any] | None = None,
        init_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Start a run with every tracker of `log_with`; one that is still open is finished before. On every rank.

        Args:
            project_name: the run's name, and that of its folder for trackers that write files.
            config: the settings of the run, to be kept with it.
            init_kwargs: name of a tracker -> further arguments of its constructor. ValueError for a name that no
                tracker has.
        """
        self._trackers.start(project_name, config, init_kwargs)

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Give `values` (name -> number, text, tensor of one element, or a mapping of such) to every tracker.

        The ranks' values are not combined: gather or reduce them before. `log_kwargs`: name of a tracker -> further
        arguments of its `log`.
        """
        self._trackers.log(values, step, log_kwargs)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:  # noqa: ANN401  with `unwrap`, the library's object
        """The tracker `name` as a `GeneralTracker`, or with `unwrap` its library's own object.

        On ranks where that does not exist, the object does nothing. ValueError for a name that no started tracker has.
        """
        return self._trackers.get(name, unwrap)
