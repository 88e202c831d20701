"""Saves and loads the whole state of training, all ranks together."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat

from torch import nn
from torch.utils.hooks import RemovableHandle

from ...protocol.version import __version__
from ..ranks.process_group import RankFacts
from ..ranks.state import PartialState
from ..settings import ProjectConfiguration
from . import loading, rotation, writing
from .finding import find
from .loading import Source
from .manifest import Manifest, SavedFile
from .meeting import Meeting
from .outcome import attempt, raise_together
from .parts import HasState, Parts, name_of
from .place import Place, choose_target
from .weights import WITHOUT_SAFETENSORS, has_safetensors

SaveHook = Callable[[list[nn.Module], list[dict[str, Any]], str], object]
LoadHook = Callable[[list[nn.Module], str], object]


class Checkpoints:
    """What `Accelerator` knows about checkpoints. One instance per `Accelerator`; called from its thread.

    Args:
        facts: who this rank is.
        project: where numbered checkpoints go, and how many of them are kept. Its `iteration` counts up.
    """

    def __init__(self, facts: RankFacts, project: ProjectConfiguration) -> None:
        self._facts = facts
        self._project = project
        self._meeting = Meeting(facts)
        self._save_hooks: OrderedDict[int, SaveHook] = OrderedDict()
        self._load_hooks: OrderedDict[int, LoadHook] = OrderedDict()
        self.registered: list[HasState] = []
        """Objects of the user's own, saved as custom_checkpoint_0.pkl and so on."""

    @property
    def saves_on_each_node(self) -> bool:
        return self._project.save_on_each_node

    def register(self, *objects: object) -> None:
        """ValueError, naming them, for objects that lack `state_dict` or `load_state_dict`."""
        invalid = {at: one for at, one in enumerate(objects) if not isinstance(one, HasState)}
        items = [f"Item at index {at}, {name_of(one)}" for at, one in invalid.items()]
        if items:
            raise ValueError(
                "register_for_checkpointing takes objects with state_dict and load_state_dict, which these lack: "
                f"{'; '.join(items)}."
            )
        self.registered.extend(objects)  # type: ignore[arg-type]  # all of them are, or it has been refused

    def add_save_hook(self, hook: SaveHook) -> RemovableHandle:
        handle = RemovableHandle(self._save_hooks)
        self._save_hooks[handle.id] = hook
        return handle

    def add_load_hook(self, hook: LoadHook) -> RemovableHandle:
        handle = RemovableHandle(self._load_hooks)
        self._load_hooks[handle.id] = hook
        return handle

    def note_backward(self) -> None:
        """A backward that all ranks share begins: a rank that goes on while others wait here is known by that."""
        self._meeting.note_backward()

    def note_joined(self) -> None:
        """A block is over in which ranks may have had unequally many backwards."""
        self._meeting.note_joined()

    def save(
        self,
        parts: Parts,
        output_dir: str | os.PathLike[str] | None,
        *,
        safe_serialization: bool,
        metric: SupportsFloat | None = None,
    ) -> Path:
        """Write a checkpoint; gives its folder. Every rank must call this. CheckpointError, on every rank, when it
        cannot be written; then what was under that name before is still there.
        """
        score = None if metric is None else float(metric)  # what is no number is told before anybody waits or writes
        self._meeting.arrive("save_state")
        is_numbered = output_dir is None
        target = choose_target(output_dir, self._project)
        place = Place(target=target, facts=self._facts, collectives=PartialState().collectives)
        place.begin(must_be_new=is_numbered, save_on_each_node=self._project.save_on_each_node)
        for sentence in place.notes:
            self._tell(sentence)
        safe = self.chosen_format(safe_serialization)
        place.agree(attempt(lambda: self._write(parts, place, safe=safe)))
        known = Manifest(
            written_by=__version__,
            num_ranks=self._facts.num_processes,
            iteration=self._project.iteration if is_numbered else None,
            metric=score,
            accumulated=parts.progress.num_accumulated,
            time_s=time.time(),
        )
        place.commit(known, total_limit=self._project.total_limit if is_numbered else None)
        self._project.iteration += 1
        return target

    def load(
        self,
        parts: Parts,
        input_dir: str | os.PathLike[str] | None,
        *,
        load_kwargs: Mapping[str, Any] | None,
        load_model_kwargs: Mapping[str, Any],
    ) -> None:
        """Bring `parts` to where a checkpoint, ours or upstream's, has them. Every rank must call this.
        `load_model_kwargs`: load_state_dict's, and `map_location`: "cpu", "on_device".

        CheckpointNotFound, or CheckpointError for what is incomplete: on every rank, before anything was changed.
        """
        kwargs = dict(load_model_kwargs)
        map_location = loading.chosen_location(kwargs.pop("map_location", None), self._facts.device)
        self._meeting.arrive("load_state")
        collectives = PartialState().collectives
        found = find(input_dir, self._project, self._facts, collectives)
        source = Source(
            folder=found.folder,
            rank=self._facts.process_index,
            num_ranks=self._facts.num_processes,
            saved_ranks=found.num_ranks,
            device=self._facts.device,
            map_location=map_location,
            load_kwargs=load_kwargs or {},
        )
        loaded = attempt(lambda: self._read(parts, source, kwargs))
        raise_together(loaded, self._facts, collectives, f"the checkpoint {found.folder} could not be loaded")
        for sentence in (*found.notes, *(loaded.value or ())):
            self._tell(sentence)
        self._number_after(found.folder)

    def chosen_format(self, safe_serialization: bool) -> bool:
        """Whether models are written as safetensors; if not although they were to be, the user is told."""
        if safe_serialization and not has_safetensors():
            self._tell(WITHOUT_SAFETENSORS)
            return False
        return safe_serialization

    def _write(self, parts: Parts, place: Place, *, safe: bool) -> dict[str, SavedFile]:
        weights = [model.state_dict() for model in parts.models]
        for hook in list(self._save_hooks.values()):
            hook(list(parts.models), weights, str(place.unfinished))
        written = {}
        if place.writes_shared:
            written = writing.write_shared(parts, weights, place.unfinished, safe=safe)
        rank, device = self._facts.process_index, self._facts.device
        return written | writing.write_own(parts, place.unfinished, rank=rank, device=device)

    def _read(self, parts: Parts, source: Source, load_model_kwargs: Mapping[str, Any]) -> list[str]:
        models = list(parts.models)
        for hook in list(self._load_hooks.values()):
            hook(models, str(source.folder))
        return loading.load(parts, source, models=models, load_model_kwargs=load_model_kwargs)

    def _number_after(self, path: Path) -> None:
        """A run that goes on from a numbered checkpoint numbers its own after the newest one."""
        if self._project.project_dir is None:
            return
        root = rotation.checkpoints_of(self._project.project_dir)
        if path.parent == root:
            self._project.iteration = max(self._project.iteration, 1 + max(rotation.iterations(root)))

    def _tell(self, sentence: str) -> None:
        """Once for all ranks."""
        if self._facts.process_index == 0:
            print(sentence)  # noqa: T201  for the user of the rank
