"""How the ranks of an `Accelerator` are laid out, for those who ask in upstream's words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ..errors import TrainingError
from .models.model_anatomy import num_mapped_devices
from .parallelism import ParallelismConfig


class Meshed:
    """Base of `Accelerator`. In this version every rank trains a whole copy of the model."""

    _parallelism: ParallelismConfig | None

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """What the Accelerator was given, or the launch said; None when neither said anything."""
        return self._parallelism

    @property
    def torch_device_mesh(self) -> DeviceMesh | None:
        """The mesh of `parallelism_config`; None without it, and where there is one rank."""
        return None if self._parallelism is None else self._parallelism.device_mesh

    @property
    def data_parallel_rank(self) -> int:
        """Which copy of the model this rank trains, by `parallelism_config`. TrainingError without it."""
        return self._rank_along("dp_replicate")

    @property
    def data_parallel_shard_rank(self) -> int:
        """As `data_parallel_rank`: which shard of the model it has."""
        return self._rank_along("dp_shard")

    @property
    def tensor_parallel_rank(self) -> int:
        """As `data_parallel_rank`: which part of the layers it has."""
        return self._rank_along("tp")

    @property
    def context_parallel_rank(self) -> int:
        """As `data_parallel_rank`: which part of the sequences it has. (Upstream's 1.15 raises.)"""
        return self._rank_along("cp")

    @property
    def pipeline_parallel_rank(self) -> int:
        """NotImplementedError, as in upstream: there is no such dimension."""
        raise NotImplementedError("ParallelismConfig has no pipeline dimension, so no rank has a place in one.")

    @property
    def is_fsdp2(self) -> bool:
        """False: models are not sharded."""
        return False

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        """False, as `is_fsdp2`."""
        return False

    @property
    def should_save_model(self) -> bool:
        """True: the methods that save a model are called on every rank, and write on the right one by themselves."""
        return True

    @property
    def fp8_backend(self) -> str:
        """Upstream's name "NO": nothing computes in 8 bits."""
        return "NO"

    def verify_device_map(self, model: nn.Module) -> bool:
        """Whether `model` is spread over several devices, as ``device_map="auto"`` loads it. Several ranks refuse to
        prepare it; a single one leaves it where it is.
        """
        return num_mapped_devices(model) > 1

    def maybe_context_parallel(
        self,
        buffers: Sequence[torch.Tensor] | None = None,
        buffer_seq_dims: Sequence[int] | None = None,
        no_restore_buffers: set[torch.Tensor] | None = None,
    ) -> AbstractContextManager[None]:
        """The block as it is: sequences are whole on every rank, so `buffers` need not be split. As in upstream, where
        it splits them only when ``cp_size`` is above 1, which this version refuses.
        """
        del buffers, buffer_seq_dims, no_restore_buffers
        return nullcontext()

    def _rank_along(self, dimension: str) -> int:
        config = self._parallelism
        if config is None:
            raise TrainingError(
                "the ranks have no places along the dimensions of a mesh, because the Accelerator was made without "
                "parallelism_config=ParallelismConfig(...); accelerator.process_index is the number of this rank."
            )
        if config.device_mesh is None or config.sizes[dimension] == 1:
            return 0
        return config.device_mesh.get_local_rank(dimension)
