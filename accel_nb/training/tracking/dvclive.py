"""DVCLive."""

from __future__ import annotations

from typing import Any

from .plain_values import plain, tell_left_out
from .tracker import OpenedTracker, on_main_process


class DVCLiveTracker(OpenedTracker):
    """DVCLive: `live` if given, else ``dvclive.Live(**kwargs)``. It has no run name: `run_name` is not used."""

    name = "dvclive"
    requires_logging_directory = False

    def __init__(self, run_name: str | None = None, live: Any = None, **kwargs: Any) -> None:  # noqa: ANN401
        del run_name
        super().__init__()
        self._given = live
        self.init_kwargs = kwargs

    @property
    def live(self) -> Any:  # noqa: ANN401  DVCLive's
        return self.tracker

    @on_main_process
    def start(self) -> None:
        from dvclive import Live

        self._opened = Live(**self.init_kwargs) if self._given is None else self._given

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.live.log_params(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        """What DVCLive calls a metric. Without `step`, the step after the last one."""
        from dvclive.plots import Metric

        if step is not None:
            self.live.step = step
        for name, given in values.items():
            value = plain(given)
            if Metric.could_log(value):
                self.live.log_metric(name, value, **kwargs)
            else:
                tell_left_out(self.name, name, value)
        self.live.next_step()

    @on_main_process
    def finish(self) -> None:
        self.live.end()
