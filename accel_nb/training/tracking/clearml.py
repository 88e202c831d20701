"""ClearML."""

from __future__ import annotations

from typing import Any

from ...protocol import environment
from .plain_values import is_number, plain, tell_left_out
from .tracker import OpenedTracker, on_main_process

_SERIES = ("eval", "test", "train")
"""A name that begins with one of these and an underscore belongs to that series; others to the last."""


class ClearMLTracker(OpenedTracker):
    """A task of ClearML: the one that is running, else a new one. `kwargs` are those of ``Task.init``.

    ``CLEARML_PROJECT`` and ``CLEARML_TASK`` take the place of `run_name`.
    """

    name = "clearml"
    requires_logging_directory = False

    def __init__(self, run_name: str | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__()
        self.user_provided_run_name = run_name
        self.init_kwargs = kwargs
        self._is_ours = False

    @property
    def task(self) -> Any:  # noqa: ANN401  ClearML's
        return self.tracker

    @on_main_process
    def start(self) -> None:
        from clearml import Task

        self._opened = Task.current_task()
        self._is_ours = self._opened is None
        if self._is_ours:
            project, task = environment.clearml_names()
            names = {
                "project_name": project or self.user_provided_run_name,
                "task_name": task or self.user_provided_run_name,
            }
            self._opened = Task.init(**{**names, **self.init_kwargs})

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.task.connect_configuration(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        """Numbers: as points of a plot with `step`, else as single values."""
        logger = self.task.get_logger()
        for name, given in values.items():
            value = plain(given)
            if not is_number(value):
                tell_left_out(self.name, name, value)
            elif step is None:
                logger.report_single_value(name=name, value=value, **kwargs)
            else:
                logger.report_scalar(**_title_and_series(name), value=value, iteration=step, **kwargs)

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        for name, image in values.items():
            self.task.get_logger().report_image(**_title_and_series(name), iteration=step, image=image, **kwargs)

    @on_main_process
    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,  # noqa: ANN401  pandas'
        step: int | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """A table given as `dataframe`, or as `data` with `columns` or with its first row as their names.

        ValueError when neither is given.
        """
        if dataframe is None and data is None:
            raise ValueError("ClearMLTracker.log_table needs data= or dataframe=.")
        rows = [columns, *data] if columns and data is not None else data
        table = rows if dataframe is None else dataframe
        self.task.get_logger().report_table(
            **_title_and_series(table_name), table_plot=table, iteration=step, **kwargs
        )  # fmt: skip

    @on_main_process
    def finish(self) -> None:
        """Close the task, unless it was running before."""
        if self._is_ours:
            self.task.close()


def _title_and_series(name: str) -> dict[str, str]:
    for series in _SERIES:
        if name.startswith(f"{series}_"):
            return {"title": name.removeprefix(f"{series}_"), "series": series}
    return {"title": name, "series": _SERIES[-1]}
