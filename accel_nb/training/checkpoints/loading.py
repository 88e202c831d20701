"""Brings the parts of a checkpoint, ours or upstream's, back from a folder that is known to be complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import CheckpointError
from ..steps.optimizer import AcceleratedOptimizer
from . import names, random_states
from .parts import HasState, Parts, name_of
from .reading import read_file
from .weights import load_weights, read_weights


@dataclass(frozen=True, kw_only=True)
class Source:
    """The checkpoint as this rank reads it."""

    folder: Path
    rank: int
    """This one."""
    num_ranks: int
    saved_ranks: int
    """How many ranks saved it."""
    device: torch.device
    """This rank's."""
    map_location: torch.device | str = "cpu"
    """Where models and optimizers are read to, before they go where their parameters are."""
    load_kwargs: Mapping[str, Any]
    """torch.load's."""

    @property
    def same_ranks(self) -> bool:
        return self.num_ranks == self.saved_ranks

    @property
    def origin(self) -> int:
        """The rank whose own files this rank takes: its own, or the main process's when it did not exist."""
        return self.rank if self.rank < self.saved_ranks else 0


def chosen_location(name: object, device: torch.device) -> torch.device | str:
    """What `map_location` means, with upstream's exception (accelerate 1.15) for other names."""
    if name not in (None, "cpu", "on_device"):
        raise TypeError(
            f"Unsupported optimizer map location passed: {name!r}; choose one of None, 'cpu' and 'on_device'."
        )
    return device if name == "on_device" else "cpu"


def load(
    parts: Parts, source: Source, *, models: Sequence[nn.Module], load_model_kwargs: Mapping[str, Any]
) -> list[str]:
    """Everything; `models`: those that no hook has loaded. Gives sentences for the user.

    CheckpointError, before anything is loaded, when the checkpoint holds less than `parts` needs, or other registered
    objects; torch's errors when states do not fit.
    """
    check_enough(models, parts.optimizers, parts.schedulers, source)
    _check_custom(parts.custom, source)
    load_models(models, source, load_model_kwargs)
    load_states(parts.optimizers, parts.schedulers, source)
    sentences = [*_about_ranks(source), *load_scaler(parts.scaler, source), *_load_own(parts, source)]
    _load_custom(parts.custom, source)
    states = load_random_states(source)  # last: what comes before may draw
    if not states:
        sentences.append(
            f"{source.folder} has no random states of rank {source.rank}: its generators stay as they are."
        )
    if not (source.folder / names.progress(source.origin)).exists():  # upstream's
        parts.progress.take_up(states.get("step", 0))
    return sentences


def check_enough(
    models: Sequence[nn.Module], optimizers: Sequence[object], schedulers: Sequence[object], source: Source
) -> None:
    """CheckpointError for more of them than were saved. A program may have fewer, as one that only evaluates."""
    for index in range(len(models)):
        _weights_file(source.folder, index)
    _check_enough("optimizers", optimizers, names.optimizer, source.folder)
    _check_enough("schedulers", schedulers, names.scheduler, source.folder)


def load_models(models: Sequence[nn.Module], source: Source, load_model_kwargs: Mapping[str, Any]) -> None:
    for index, model in enumerate(models):
        load_weights(model, read_weights(_weights_file(source.folder, index), source.map_location), **load_model_kwargs)


def load_states(optimizers: Sequence[AcceleratedOptimizer], schedulers: Sequence[HasState], source: Source) -> None:
    for index, optimizer in enumerate(optimizers):
        optimizer.load_state_dict(_read(source, names.optimizer(index)))
    for index, scheduler in enumerate(schedulers):
        scheduler.load_state_dict(_read(source, names.scheduler(index)))


def load_scaler(scaler: HasState | None, source: Source) -> list[str]:
    """Gives sentences for the user."""
    if scaler is None:
        return []
    if (source.folder / names.SCALER_NAME).exists():
        scaler.load_state_dict(_read(source, names.SCALER_NAME))
        return []
    sentence = (
        f"{source.folder} has no {names.SCALER_NAME}: it was not saved in fp16. The gradient scaler begins anew, "
        "so the first updates may be skipped until its scale fits."
    )
    return [sentence]


def _load_own(parts: Parts, source: Source) -> list[str]:
    """Positions of the loaders, state of the loop, gradients."""
    file = source.folder / names.progress(source.origin)
    if not file.exists():
        return []
    saved = read_file(file, **source.load_kwargs)
    parts.progress.load_state_dict(saved["loop"])
    _load_gradients(parts, source)
    return [*load_positions(parts.loaders, saved["loaders"], source), *_about_positions(parts)]


def load_positions(loaders: Sequence[HasState], saved: Sequence[Any], source: Source) -> list[str]:
    """Gives sentences for the user."""
    if len(loaders) != len(saved):
        sentence = (
            f"the positions of {len(saved)} loaders are in {source.folder}, and {len(loaders)} are prepared now: "
            "loaders begin anew. To continue where they were, prepare the same ones before load_state."
        )
        return [sentence]
    for loader, state in zip(loaders, saved, strict=True):
        loader.load_state_dict(state)
    return []


def _load_custom(objects: Sequence[HasState], source: Source) -> None:
    """Registered objects, whose states may be of any class: as upstream (1.15), loading them may run their code."""
    for index, one in enumerate(objects):
        one.load_state_dict(read_file(source.folder / names.custom(index), weights_only=False))


def _check_custom(objects: Sequence[HasState], source: Source) -> None:
    found = sum(1 for path in source.folder.glob("custom_checkpoint_*.pkl"))
    if found != len(objects):
        raise CheckpointError(_counted("registered objects", objects, found, source.folder))


def load_random_states(source: Source) -> dict[str, Any]:
    """Set this rank's generators; gives what the file holds, empty when there is none."""
    file = source.folder / names.random_states(source.origin)
    if not file.exists():
        return {}
    states: dict[str, Any] = read_file(file)
    if source.origin == source.rank:
        random_states.restore(states, source.device)
    else:
        random_states.derive(states, source.rank)
    return states


def _about_ranks(source: Source) -> list[str]:
    if source.same_ranks:
        return []
    rest = range(source.saved_ranks, source.num_ranks)
    new = f"; rank {', '.join(map(str, rest))} begins with random numbers derived from rank 0's" if rest else ""
    sentence = (
        f"{source.folder} was saved by {_count(source.saved_ranks)} and is continued by {_count(source.num_ranks)}: "
        "the order of the data and the number of samples read are kept, gradients that were waiting are averaged"
        f"{new}."
    )
    return [sentence]


def _count(num_ranks: int) -> str:
    return f"{num_ranks} rank{'s' * (num_ranks != 1)}"


def _about_positions(parts: Parts) -> Iterator[str]:
    for index, loader in enumerate(parts.loaders):
        position = loader.resumes_at
        if position is not None and position.num_source_batches:
            samples = (
                "" if position.num_samples is None else f", which is {position.num_samples:,} samples of all ranks"
            )
            yield (
                f"loader {index} goes on in pass {position.iteration} after {position.num_source_batches:,} batches of "
                f"its data{samples}."
            )


def _load_gradients(parts: Parts, source: Source) -> None:
    """This rank's own, or with another number of ranks the mean of all: the average over the ranks stays the same."""
    ranks = [source.rank] if source.same_ranks else range(source.saved_ranks)
    files = [source.folder / names.gradients(rank) for rank in ranks]
    saved = [read_file(file) for file in files if file.exists()]
    parameters = list(parts.parameters())
    if any(len(gradients) != len(parameters) for gradients in saved):
        raise CheckpointError(
            f"the checkpoint {source.folder} holds gradients of {len(saved[0])} parameters, and this program has "
            f"{len(parameters)}. Prepare the same models and optimizers as when it was saved, or save after zero_grad."
        )
    for index, parameter in enumerate(parameters):
        given = [gradients[index] for gradients in saved if gradients[index] is not None]
        if not given:
            parameter.grad = None
            continue
        total = given[0] if len(given) == 1 else torch.stack(given).sum(0)
        own = total if len(files) == 1 else total / len(files)
        parameter.grad = own.to(device=parameter.device, dtype=parameter.dtype)


def _weights_file(folder: Path, index: int) -> Path:
    safe, pickled = folder / names.weights(index, safe=True), folder / names.weights(index, safe=False)
    if safe.exists() or pickled.exists():
        return safe if safe.exists() else pickled
    raise CheckpointError(
        f"{folder} has neither {safe.name} nor {pickled.name}: it holds fewer models than this program has prepared."
    )


def _read(source: Source, name: str) -> Any:  # noqa: ANN401
    return read_file(source.folder / name, **{"map_location": source.map_location, **source.load_kwargs})


def _check_enough(what: str, given: Sequence[object], name: Callable[[int], str], folder: Path) -> None:
    found = 0
    while (folder / name(found)).exists():
        found += 1
    if len(given) > found:
        raise CheckpointError(_counted(what, given, found, folder))


def _counted(what: str, given: Sequence[object], found: int, folder: Path) -> str:
    listed = ", ".join(name_of(one) for one in given) or "none"
    return (
        f"the checkpoint {folder} holds {found} {what}, and this program has {len(given)} ({listed}). Prepare and "
        "register the same objects in the same order as when it was saved, before load_state."
    )
