"""Upstream's functions of ``accelerate.checkpointing`` (1.15): one rank's part of saving and loading, without a folder
that appears at once, a manifest, and a word to the other ranks, all of which `Accelerator.save_state` has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..ranks.state import PartialState
from ..steps.optimizer import AcceleratedOptimizer
from . import loading, names, random_states, writing
from .loading import Source
from .parts import HasState
from .reading import read_file

Folder = str | os.PathLike[str]


def save_accelerator_state(
    output_dir: Folder,
    model_states: Sequence[dict[str, Any]],
    optimizers: Sequence[AcceleratedOptimizer],
    schedulers: Sequence[HasState],
    dataloaders: Sequence[HasState],
    process_index: int,
    step: int,
    scaler: HasState | None = None,
    save_on_each_node: bool = False,
    safe_serialization: bool = True,
) -> Path:
    """Write random generators and positions of the loaders on every rank, and on the main process, or with
    `save_on_each_node` on the first of each machine, the rest. Gives the folder, which must exist.
    """
    folder, state = Path(output_dir), PartialState()
    if state.is_local_main_process if save_on_each_node else state.is_main_process:
        writing.write_models(model_states, folder, safe=safe_serialization)
        writing.write_states(writing.shared_states(optimizers, schedulers, (), scaler), folder)
    own = {names.random_states(process_index): random_states.collect(step, state.device)}
    if dataloaders:
        own[names.progress(process_index)] = {"loaders": [one.state_dict() for one in dataloaders], "loop": None}
    writing.write_states(own, folder)
    return folder


def load_accelerator_state(
    input_dir: Folder,
    models: Sequence[nn.Module],
    optimizers: Sequence[AcceleratedOptimizer],
    schedulers: Sequence[HasState],
    dataloaders: Sequence[HasState],
    process_index: int,
    scaler: HasState | None = None,
    map_location: str | None = None,
    load_kwargs: Mapping[str, Any] | None = None,
    **load_model_func_kwargs: Any,  # noqa: ANN401  load_state_dict's
) -> dict[str, int]:
    """Read what `save_accelerator_state`, ours or upstream's, wrote. Gives ``{"step": ...}`` if that is known.

    TypeError for a `map_location` that is not "cpu" or "on_device"; CheckpointError for a file that cannot be read.
    """
    device = PartialState().device
    source = Source(
        folder=Path(input_dir),
        rank=process_index,
        num_ranks=PartialState().num_processes,
        saved_ranks=process_index + 1,
        device=device,
        map_location=loading.chosen_location(map_location, device),
        load_kwargs=load_kwargs or {},
    )
    loading.check_enough(models, optimizers, schedulers, source)
    loading.load_models(models, source, load_model_func_kwargs)
    loading.load_states(optimizers, schedulers, source)
    loading.load_scaler(scaler, source)
    progress = source.folder / names.progress(process_index)
    if dataloaders and progress.exists():
        loading.load_positions(dataloaders, read_file(progress, **source.load_kwargs)["loaders"], source)
    states = loading.load_random_states(source)
    return {"step": states["step"]} if "step" in states else {}


def save_custom_state(obj: HasState, path: Folder, index: int = 0, save_on_each_node: bool = False) -> None:
    """Write the state of `obj` to ``custom_checkpoint_{index}.pkl`` in the folder `path`, on the main process, or with
    `save_on_each_node` on the first of each machine.
    """
    state = PartialState()
    if state.is_local_main_process if save_on_each_node else state.is_main_process:
        writing.write_states({names.custom(index): obj.state_dict()}, Path(path))


def load_custom_state(obj: HasState, path: Folder, index: int = 0) -> None:
    """Let `obj` load what `save_custom_state` wrote. The file may run code: load those only that you trust."""
    obj.load_state_dict(read_file(Path(path) / names.custom(index), weights_only=False))
