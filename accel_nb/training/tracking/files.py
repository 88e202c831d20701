"""Trackers that write files: TensorBoard's, and lines of JSON."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from .plain_values import flat, is_number, plain, plain_step, tell_left_out
from .tracker import OpenedTracker, on_main_process


class TensorBoardTracker(OpenedTracker):
    """Event files for TensorBoard in ``logging_dir/run_name``. `kwargs` are those of ``SummaryWriter``."""

    name = "tensorboard"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str], **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__()
        self.run_name = run_name
        self.logging_dir = os.path.join(logging_dir, run_name)  # noqa: PTH118  a text, as in upstream's
        self.init_kwargs = kwargs

    @on_main_process
    def start(self) -> None:
        self._opened = _summary_writer()(self.logging_dir, **self.init_kwargs)

    @property
    def writer(self) -> Any:  # noqa: ANN401  a SummaryWriter
        return self.tracker

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """TensorBoard's hyperparameters, and a file ``hparams.yml``. What is neither number nor text becomes text."""
        settings = {name: value if _is_setting(value) else str(value) for name, value in flat(values)}
        self.writer.add_hparams(settings, metric_dict={})
        self.writer.flush()
        folder = Path(self.logging_dir, str(time.time()))
        folder.mkdir(parents=True, exist_ok=True)
        # JSON is YAML (1.2), so that nothing else is needed to write it.
        (folder / "hparams.yml").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        """Numbers as scalars, texts as texts, mappings as several scalars in one plot."""
        step = plain_step(step)
        for name, given in values.items():
            value = plain(given)
            if isinstance(value, dict):
                self.writer.add_scalars(name, dict(flat(value)), global_step=step, **kwargs)
            elif isinstance(value, str):
                self.writer.add_text(name, value, global_step=step, **kwargs)
            elif is_number(value):
                self.writer.add_scalar(name, value, global_step=step, **kwargs)
            else:
                tell_left_out(self.name, name, value)
        self.writer.flush()

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:  # noqa: ANN401
        """Batches of images, as ``SummaryWriter.add_images`` takes them."""
        for name, images in values.items():
            self.writer.add_images(name, images, global_step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        self.writer.close()


class JsonlTracker(OpenedTracker):
    """Lines of JSON in ``logging_dir/run_name/metrics.jsonl``, which needs no package and every tool can read.

    A line holds ``_step`` (null when none was given), ``_time_s`` (seconds since the epoch) and the values by name;
    nested names are joined by slashes. Numbers that are not finite are texts ("nan", "inf", "-inf"): JSON has none.
    Settings are in ``config.json`` beside it. A run of the same name goes on writing at the end.
    """

    name = "jsonl"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str]) -> None:
        super().__init__()
        self.run_name = run_name
        self.folder = Path(logging_dir, run_name)

    @on_main_process
    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Whole lines at once, so that what reads along never sees half a line.
        self._opened = (self.folder / "metrics.jsonl").open("a", encoding="utf-8", buffering=1)

    @property
    def file(self) -> IO[str]:
        file: IO[str] = self.tracker
        return file

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        text = json.dumps({name: _json_value(value) for name, value in flat(values)}, indent=2)
        (self.folder / "config.json").write_text(text + "\n", encoding="utf-8")

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None) -> None:  # type: ignore[override]  # it has no options
        line: dict[str, object] = {"_step": plain_step(step), "_time_s": time.time()}
        line |= {name: _json_value(value) for name, value in flat(values)}
        self.file.write(json.dumps(line) + "\n")

    @on_main_process
    def finish(self) -> None:
        self.file.close()


def _summary_writer() -> Callable[..., Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:  # tensorboardX writes the same files without TensorBoard
        import tensorboardX

        writer: Callable[..., Any] = tensorboardX.SummaryWriter
        return writer
    return SummaryWriter


def _is_setting(value: object) -> bool:
    """Whether TensorBoard takes it as a hyperparameter (``torch.utils.tensorboard.summary.hparams``)."""
    return isinstance(value, bool | int | float | str)


def _json_value(value: object) -> object:
    """`value`, or the text of what JSON has no form for."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    tolist = getattr(value, "tolist", None)  # tensors and arrays
    if callable(tolist):
        value = tolist()
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return str(value)
