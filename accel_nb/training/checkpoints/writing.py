"""Writes the parts of a checkpoint into a folder: what is alike on all ranks, and what each rank has of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..steps.optimizer import AcceleratedOptimizer
from . import names, random_states
from .durable import sync_file
from .manifest import SavedFile, describe_file
from .parts import HasState, Parts
from .weights import write_tensors


def write_shared(parts: Parts, weights: Sequence[dict[str, Any]], folder: Path, *, safe: bool) -> dict[str, SavedFile]:
    """Models, optimizers, schedulers, scaler and registered objects; `weights`: the states of the models."""
    states = shared_states(parts.optimizers, parts.schedulers, parts.custom, parts.scaler)
    return write_models(weights, folder, safe=safe) | write_states(states, folder)


def write_models(weights: Sequence[dict[str, Any]], folder: Path, *, safe: bool) -> dict[str, SavedFile]:
    files = {names.weights(index, safe=safe): state for index, state in enumerate(weights)}
    if not safe:
        return write_states(files, folder)
    for name, state in files.items():
        write_tensors(state, folder / name)
    return _described(files, folder)


def shared_states(
    optimizers: Sequence[AcceleratedOptimizer],
    schedulers: Sequence[HasState],
    custom: Sequence[HasState],
    scaler: HasState | None,
) -> dict[str, Any]:
    """States by the names of their files."""
    states = {names.optimizer(index): one.state_dict() for index, one in enumerate(optimizers)}
    states |= {names.scheduler(index): one.state_dict() for index, one in enumerate(schedulers)}
    states |= {names.custom(index): one.state_dict() for index, one in enumerate(custom)}
    return states if scaler is None else states | {names.SCALER_NAME: scaler.state_dict()}


def write_own(parts: Parts, folder: Path, *, rank: int, device: torch.device) -> dict[str, SavedFile]:
    """Random generators, positions of the loaders, and gradients that wait for an optimizer step."""
    states: dict[str, Any] = {
        names.random_states(rank): random_states.collect(parts.progress.num_accumulated, device),
        names.progress(rank): {
            "loaders": [loader.state_dict() for loader in parts.loaders],
            "loop": parts.progress.state_dict(),
        },
    }
    gradients = [parameter.grad for parameter in parts.parameters()]
    if any(gradient is not None for gradient in gradients):
        states[names.gradients(rank)] = gradients
    return write_states(states, folder)


def write_states(states: Mapping[str, Any], folder: Path) -> dict[str, SavedFile]:
    """Each by torch.save in the file of its name."""
    for name, state in states.items():
        torch.save(state, folder / name)
    return _described(states, folder)


def _described(files: Iterable[str], folder: Path) -> dict[str, SavedFile]:
    """What is on the disk when this returns."""
    for name in files:
        sync_file(folder / name)
    return {name: describe_file(folder / name) for name in files}
