"""Comet."""

from __future__ import annotations

from typing import Any

from .plain_values import is_number, plain, tell_left_out
from .tracker import OpenedTracker, on_main_process


class CometMLTracker(OpenedTracker):
    """An experiment of Comet. `run_name` is the project; `kwargs` are those of ``comet_ml.start`` (since 3.41), or of
    ``comet_ml.Experiment``. Keys are in Comet's own configuration.
    """

    name = "comet_ml"
    requires_logging_directory = False

    def __init__(self, run_name: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs

    @property
    def writer(self) -> Any:  # noqa: ANN401  Comet's
        return self.tracker

    @on_main_process
    def start(self) -> None:
        import comet_ml

        open_experiment = getattr(comet_ml, "start", comet_ml.Experiment)
        self._opened = open_experiment(project_name=self.run_name, **self.init_kwargs)

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.writer.log_parameters(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        """Numbers and mappings as metrics, texts as other values."""
        if step is not None:
            self.writer.set_step(step)
        for name, given in values.items():
            value = plain(given)
            if isinstance(value, dict):
                self.writer.log_metrics(value, step=step, **kwargs)
            elif isinstance(value, str):
                self.writer.log_other(name, value, **kwargs)
            elif is_number(value):
                self.writer.log_metric(name, value, step=step, **kwargs)
            else:
                tell_left_out(self.name, name, value)

    @on_main_process
    def finish(self) -> None:
        self.writer.end()
