"""Which trackers there are, by name, and which of them can work here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from importlib.util import find_spec

from ...errors import TrainingError
from ..choices import LoggerType
from .aim import AimTracker
from .clearml import ClearMLTracker
from .comet import CometMLTracker
from .dvclive import DVCLiveTracker
from .files import JsonlTracker, TensorBoardTracker
from .mlflow import MLflowTracker
from .notebook import NotebookTracker
from .run_services import SwanLabTracker, TrackioTracker, WandBTracker
from .tracker import GeneralTracker

LOGGER_TYPE_TO_CLASS: dict[str, type[GeneralTracker]] = {
    "aim": AimTracker,
    "comet_ml": CometMLTracker,
    "mlflow": MLflowTracker,
    "tensorboard": TensorBoardTracker,
    "wandb": WandBTracker,
    "clearml": ClearMLTracker,
    "dvclive": DVCLiveTracker,
    "swanlab": SwanLabTracker,
    "trackio": TrackioTracker,
    "jsonl": JsonlTracker,
    "notebook": NotebookTracker,
}
"""Name -> class, those registered by `register_tracker_class` included."""
_OURS = dict(LOGGER_TYPE_TO_CLASS)

_PACKAGES: dict[str, tuple[tuple[str, ...], str]] = {
    "aim": (("aim",), "aim"),
    "comet_ml": (("comet_ml",), "comet-ml"),
    "mlflow": (("mlflow",), "mlflow"),
    "tensorboard": (("tensorboard", "tensorboardX"), "tensorboard"),
    "wandb": (("wandb",), "wandb"),
    "clearml": (("clearml",), "clearml"),
    "dvclive": (("dvclive",), "dvclive"),
    "swanlab": (("swanlab",), "swanlab"),
    "trackio": (("trackio",), "trackio"),
}
"""Tracker -> modules one of which it needs, and what pip calls the first. Others need none."""

Tracker = str | LoggerType | GeneralTracker


def get_available_trackers() -> list[str]:
    """Names of the trackers whose package is installed, and of those that need none, as things are now."""
    return [name for name in LOGGER_TYPE_TO_CLASS if _is_installed(name)]


def register_tracker_class(tracker_class: type[GeneralTracker]) -> None:
    """Let `log_with` know `tracker_class` by its `name`.

    It is made with the project's name, then the logging directory if it requires one, then its `init_kwargs`.
    ValueError for what is no subclass of `GeneralTracker`, or has no `name` or no `requires_logging_directory`. Warns
    when the name was taken; it is taken over.
    """
    given: object = tracker_class
    if not (isinstance(given, type) and issubclass(given, GeneralTracker)):
        raise ValueError(  # noqa: TRY004  upstream's kind
            f"register_tracker_class needs a subclass of GeneralTracker, got {tracker_class!r}."
        )
    name = getattr(tracker_class, "name", None)
    if not name or not isinstance(name, str):
        raise ValueError(f"{tracker_class.__name__} must define a name, by which log_with finds it.")
    if not hasattr(tracker_class, "requires_logging_directory"):
        raise ValueError(f"{tracker_class.__name__} must define requires_logging_directory: True or False.")
    if name in LOGGER_TYPE_TO_CLASS:
        before = LOGGER_TYPE_TO_CLASS[name].__name__
        warnings.warn(f"log_with={name!r} now means {tracker_class.__name__} instead of {before}.", stacklevel=2)
    LOGGER_TYPE_TO_CLASS[name] = tracker_class


def filter_trackers(
    log_with: Tracker | Sequence[Tracker] | None, logging_dir: str | os.PathLike[str] | None = None
) -> list[str | GeneralTracker]:
    """`log_with` as a list without repetitions: names, and trackers that were made already.

    "all" stands for every tracker that can work here: its package is installed, and there is a `logging_dir` if it
    needs one. ValueError for an unknown name, or for one that needs a `logging_dir` when there is none; TrainingError
    when its package is not installed.
    """
    if log_with is None:
        return []
    asked = list(log_with) if isinstance(log_with, list | tuple) else [log_with]
    chosen: list[str | GeneralTracker] = [one for one in asked if isinstance(one, GeneralTracker)]
    names = [_name(one) for one in asked if not isinstance(one, GeneralTracker)]
    if "all" in names:
        return chosen + [name for name in get_available_trackers() if logging_dir is not None or not _writes(name)]
    for name in dict.fromkeys(names):
        _check(name, logging_dir)
        chosen.append(name)
    return chosen


def _name(asked: object) -> str:
    if isinstance(asked, str | LoggerType):
        return str(asked)
    if isinstance(asked, type) and issubclass(asked, GeneralTracker):
        raise ValueError(  # noqa: TRY004  as for any other choice
            f"log_with holds the class {asked.__name__}: give an object of it, or its name after "
            f"register_tracker_class({asked.__name__})."
        )
    raise ValueError(f"Unsupported logging capability: {asked!r}. Choose between {_choices()}, or give a tracker.")


def _check(name: str, logging_dir: str | os.PathLike[str] | None) -> None:
    if name not in LOGGER_TYPE_TO_CLASS:
        raise ValueError(f"Unsupported logging capability: {name!r}. Choose between {_choices()}.")
    if not _is_installed(name):
        _, package = _PACKAGES[name]
        raise TrainingError(f"log_with={name!r} needs a package that is not installed: pip install {package}")
    if _writes(name) and logging_dir is None:
        raise ValueError(
            f"Logging with `{name}` requires a `logging_dir`: give Accelerator a project_dir, or a "
            "ProjectConfiguration with a logging_dir."
        )


def _choices() -> list[str]:
    return ["all", *LOGGER_TYPE_TO_CLASS]


def _writes(name: str) -> bool:
    return LOGGER_TYPE_TO_CLASS[name].requires_logging_directory


def _is_installed(name: str) -> bool:
    if LOGGER_TYPE_TO_CLASS.get(name) is not _OURS.get(name):
        return True  # the user's own, under whatever name
    modules, _ = _PACKAGES.get(name, ((), ""))
    return not modules or any(find_spec(module) is not None for module in modules)
