"""Arguments of `Accelerator`: each is honoured or refused, never ignored."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, SupportsIndex

from ..errors import TrainingError
from ..protocol import environment
from .settings import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
    ProjectConfiguration,
    TorchDynamoPlugin,
)

_INSTEAD = "Several ranks train with DistributedDataParallel."


def refuse_absent(**given: object) -> None:
    """Raise TrainingError for an argument of upstream's that has not landed. None means "not given"."""
    for name, value in given.items():
        if value is not None:
            raise TrainingError(f"Accelerator({name}={value!r}) is not part of this version of accel_nb. {_INSTEAD}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, choices))}.")


@dataclass(frozen=True)
class Handlers:
    """What `kwargs_handlers` says, by what it is about. The defaults are torch's."""

    ddp: DistributedDataParallelKwargs | None = None
    scaler: GradScalerKwargs | None = None
    process_group: InitProcessGroupKwargs | None = None
    autocast: AutocastKwargs | None = None
    profile: ProfileKwargs | None = None

    def of_process_group(self) -> dict[str, Any]:
        return {} if self.process_group is None else self.process_group.to_kwargs()


_HANDLERS: Mapping[type[KwargsHandler], str] = dict(
    zip(
        (DistributedDataParallelKwargs, GradScalerKwargs, InitProcessGroupKwargs, AutocastKwargs, ProfileKwargs),
        (one.name for one in fields(Handlers)),
        strict=True,
    )
)


def choose_handlers(given: Iterable[KwargsHandler] | None) -> Handlers:
    """TypeError for an object that is none of these settings, ValueError for two of a kind."""
    chosen: dict[str, KwargsHandler] = {}
    for handler in given or ():
        name = _HANDLERS.get(type(handler))
        if name is None:
            known = ", ".join(kind.__name__ for kind in _HANDLERS)
            raise TypeError(f"kwargs_handlers holds {handler!r}; it may hold one of each of {known}.")
        if name in chosen:
            raise ValueError(f"kwargs_handlers holds more than one {type(handler).__name__}; give one.")
        chosen[name] = handler
    return Handlers(**chosen)  # type: ignore[arg-type]  # the table pairs names and kinds


def choose_accumulation(num_steps: int, plugin: GradientAccumulationPlugin | None) -> GradientAccumulationPlugin:
    """How micro-batches are counted, its `num_steps` set: what is given, else what the launch says, else 1.

    ValueError for both arguments at once, and for a number below 1.
    """
    if plugin is not None and num_steps != 1:
        raise ValueError(
            f"gradient_accumulation_steps={num_steps!r} and gradient_accumulation_plugin={plugin!r} exclude each "
            "other; give the plugin num_steps=."
        )
    if plugin is None:
        plugin = GradientAccumulationPlugin(environment.gradient_accumulation_steps() if num_steps == 1 else num_steps)
    chosen = replace(plugin, num_steps=1 if plugin.num_steps is None else plugin.num_steps)
    check_accumulation_steps(chosen.num_steps)
    return chosen


def check_accumulation_steps(num_steps: object) -> None:
    """ValueError for what is no whole number from 1 on."""
    if not isinstance(num_steps, SupportsIndex) or operator.index(num_steps) < 1:
        raise ValueError(f"gradient_accumulation_steps={num_steps!r} must be at least 1, a whole number.")


def choose_compilation(backend: str | None, plugin: TorchDynamoPlugin | None) -> TorchDynamoPlugin:
    if backend is not None and plugin is not None:
        raise ValueError(
            f"dynamo_backend={backend!r} and dynamo_plugin={plugin!r} exclude each other; give the plugin backend=."
        )
    return plugin or TorchDynamoPlugin(backend=backend)


def choose_loading(split_batches: bool, configuration: DataLoaderConfiguration | None) -> DataLoaderConfiguration:
    """`split_batches` may be said in either place (upstream 1.15 ignores the argument)."""
    chosen = configuration or DataLoaderConfiguration()
    return replace(chosen, split_batches=True) if split_batches and not chosen.split_batches else chosen


def choose_project(
    folder: str | os.PathLike[str] | None, configuration: ProjectConfiguration | None
) -> ProjectConfiguration:
    """`configuration` itself, with `folder` for its `project_dir` if it has none. ValueError for two folders."""
    path = None if folder is None else os.fspath(folder)
    chosen = configuration or ProjectConfiguration()
    if path is None or chosen.project_dir == path:
        return chosen
    if chosen.project_dir is not None:
        raise ValueError(
            f"project_dir={path!r} contradicts project_config.project_dir={chosen.project_dir!r}; give one of them."
        )
    chosen.set_directories(path)
    return chosen


def names_of(rng_types: Sequence[object] | None) -> tuple[str, ...]:
    """Names of generators, given as such or as `RNGType`; by default the sampler's own alone."""
    return ("generator",) if rng_types is None else tuple(str(one) for one in rng_types)
