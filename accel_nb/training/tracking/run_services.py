"""Services whose library has one run per process: ``init``, a run with ``log`` and ``finish``, a ``config``.

Weights & Biases, and two that offer the same functions: trackio and SwanLab. As in ``accelerate.tracking`` (1.15) each
rank has a run of its own; ``WandBTracker.main_process_only = True`` gives one of the main process only.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from .plain_values import plain
from .tracker import OpenedTracker, on_main_process


class _RunService(OpenedTracker):
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str, **kwargs: Any) -> None:  # noqa: ANN401  those of the library's init
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs

    @property
    def _library(self) -> ModuleType:
        return import_module(self.name)

    @property
    def run(self) -> Any:  # noqa: ANN401  the library's
        return self.tracker

    @on_main_process
    def start(self) -> None:
        self._opened = self._library.init(project=self.run_name, **self.init_kwargs)

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._library.config.update(values, allow_val_change=True)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        self.run.log({name: plain(value) for name, value in values.items()}, step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        self.run.finish()


class _ImageService(_RunService):
    """One whose library has a class ``Image``."""

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        """`values`: name -> images, as arrays or PIL's."""
        for name, images in values.items():
            self.log({name: [self._library.Image(image) for image in images]}, step=step, **kwargs)


class WandBTracker(_ImageService):
    """Weights & Biases. `run_name` is the project; `kwargs` are those of ``wandb.init``."""

    name = "wandb"

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
        """A table given as `columns` and `data`, or as `dataframe`."""
        table = self._library.Table(columns=columns, data=data, dataframe=dataframe)
        self.log({table_name: table}, step=step, **kwargs)


class TrackioTracker(_RunService):
    """trackio. `run_name` is the project; `kwargs` are those of ``trackio.init``."""

    name = "trackio"


class SwanLabTracker(_ImageService):
    """SwanLab. `run_name` is the project; `kwargs` are those of ``swanlab.init``."""

    name = "swanlab"
