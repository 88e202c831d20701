"""The notebook's own plot: values go to the launch, as events of the run."""

from __future__ import annotations

import warnings
from typing import Any

from ...protocol import sink
from ...protocol.events import MetricsLogged, SettingsLogged
from .plain_values import finite_or_none, flat, plain_step
from .tracker import OpenedTracker, on_main_process


class NotebookTracker(OpenedTracker):
    """Shows values in the cell that launched this rank, and keeps them in the run's ``run.jsonl``.

    In a process that `notebook_launcher` did not start it warns once, at the start, and shows nothing.
    """

    name = "notebook"
    requires_logging_directory = False

    def __init__(self, run_name: str) -> None:
        super().__init__()
        self.run_name = run_name

    @on_main_process
    def start(self) -> None:
        self._opened = self
        if not sink.is_open():
            warnings.warn(
                'log_with="notebook" shows metrics in the cell of a notebook_launcher call; this process was not '
                "started by one, so they are not shown.",
                stacklevel=2,
            )

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        settings = {name: str(value) for name, value in flat(values)}
        sink.emit(SettingsLogged(project=self.run_name, settings=settings))

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None) -> None:  # type: ignore[override]  # it has no options
        numbers: dict[str, float | None] = {}
        texts: dict[str, str] = {}
        for name, value in flat(values):
            if isinstance(value, int | float):
                numbers[name] = finite_or_none(value)
            else:
                texts[name] = str(value)
        sink.emit(MetricsLogged(values=numbers, step=plain_step(step), texts=texts))
