"""What `Accelerator` offers for saving and loading."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path
from typing import IO, Any, SupportsFloat

from torch import nn
from torch.utils.hooks import RemovableHandle

from ...errors import TrainingError
from ..ranks.rank_member import RankMember
from .checkpoints import Checkpoints, LoadHook, SaveHook
from .model_files import save_model
from .parts import Parts
from .saving import save


class Checkpointed(RankMember):
    """Base of `Accelerator`. Names and parameters are upstream's (accelerate 1.15); `metric` is ours."""

    _checkpoints: Checkpoints

    @abstractmethod
    def _parts(self) -> Parts:
        """What has been prepared and registered so far."""

    @abstractmethod
    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = False, keep_torch_compile: bool = True
    ) -> nn.Module:
        """The model that was prepared."""

    def save_state(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        safe_serialization: bool = True,
        *,
        metric: SupportsFloat | None = None,
        **save_model_func_kwargs: object,
    ) -> str:
        """Save everything that training needs to go on to the bit: what was prepared and registered, random generators,
        positions of the loaders, gradients that wait for a step. Every rank must call this. Gives the folder.

        The folder appears when it is complete; a crash before leaves what was there. Gradients that are there are part
        of the state: after ``optimizer.zero_grad()`` a checkpoint is smaller.

        Args:
            output_dir: the folder. What checkpoints have in it is replaced, other files stay. None: the next numbered
                one below ``project_dir/checkpoints``, where the newest `ProjectConfiguration.total_limit` are kept.
            safe_serialization: models as safetensors, if that is installed, else as torch.save does.
            metric: how good the model is, the lower the better: `best_checkpoint` finds it, and it is kept.
            save_model_func_kwargs: of wrappers that save themselves; there are none in this version.

        CheckpointError, on every rank, when one of them could not write or did not call.
        """
        if save_model_func_kwargs:
            raise TrainingError(
                f"save_state got {', '.join(sorted(save_model_func_kwargs))}, which only wrappers that save themselves "
                "(DeepSpeed) understand. Leave it out."
            )
        target = self._checkpoints.save(self._parts(), output_dir, safe_serialization=safe_serialization, metric=metric)
        return str(target)

    def load_state(
        self,
        input_dir: str | os.PathLike[str] | None = None,
        load_kwargs: dict[str, Any] | None = None,
        **load_model_func_kwargs: Any,  # noqa: ANN401  load_state_dict's
    ) -> None:
        """Go on where `save_state`, ours or upstream's, was called. Every rank must call this, after `prepare` and
        `register_for_checkpointing` of the same objects in the same order. The next pass over a loader goes on where
        it was.

        Another number of ranks keeps the order of the data and the number of samples read; ranks that are new draw
        random numbers derived from the main process's.

        Args:
            input_dir: the folder. None: the newest complete one below ``project_dir/checkpoints``.
            load_kwargs: ``torch.load``'s, for all but models, such as ``{"weights_only": False}``.
            load_model_func_kwargs: ``load_state_dict``'s, such as `strict`; and `map_location`, "cpu" or "on_device".

        CheckpointNotFound, a ValueError, when there is none; CheckpointError when a file of any rank is missing or
        damaged: on every rank, with its name, before anything was loaded.
        """
        self._checkpoints.load(
            self._parts(), input_dir, load_kwargs=load_kwargs, load_model_kwargs=load_model_func_kwargs
        )

    def register_for_checkpointing(self, *objects: object) -> None:
        """`save_state` and `load_state` care for `objects`, too: anything with `state_dict` and `load_state_dict`.

        ValueError for other objects.
        """
        self._checkpoints.register(*objects)

    def register_save_state_pre_hook(self, hook: SaveHook) -> RemovableHandle:
        """``hook(models, weights, output_dir)`` is called on every rank before `save_state` writes.

        `models`: those that were prepared, unwrapped; `weights`: their states, of which the removed are not saved;
        `output_dir`: where the hook may write files of its own.
        """
        return self._checkpoints.add_save_hook(hook)

    def register_load_state_pre_hook(self, hook: LoadHook) -> RemovableHandle:
        """``hook(models, input_dir)`` is called on every rank before `load_state` loads. `models`: as there,
        of which those that the hook removes are not loaded.
        """
        return self._checkpoints.add_load_hook(hook)

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """The state of `model`, with its own names, or without `unwrap` with those of the prepared model."""
        return (self.unwrap_model(model, keep_torch_compile=False) if unwrap else model).state_dict()

    def save(
        self, obj: Any, f: str | os.PathLike[str] | IO[bytes], safe_serialization: bool = False  # noqa: ANN401
    ) -> None:  # fmt: skip
        """``torch.save`` by the main process, or with `ProjectConfiguration.save_on_each_node` by the first rank of
        each machine; the others do nothing. A path has the old content or all of the new.

        `safe_serialization`: `obj`, tensors by name, as safetensors.
        """
        save(obj, f, self._checkpoints.saves_on_each_node, safe_serialization)

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Save the state of `model` alone, to be loaded by any program: one file, or several of at most
        `max_shard_size` (bytes, or a number with "KB", "MB", "GB", "KiB", ...) and an index of them.

        By the main process, or with `ProjectConfiguration.save_on_each_node` by the first rank of each machine; the
        others do nothing. Files appear when they are complete, the index last.
        """
        writes = self.is_local_main_process if self._checkpoints.saves_on_each_node else self.is_main_process
        if writes:
            save_model(
                self.get_state_dict(model), Path(save_directory), max_shard_size,
                safe=self._checkpoints.chosen_format(safe_serialization),
            )  # fmt: skip
