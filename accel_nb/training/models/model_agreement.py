"""Whether all ranks are about to train the same model."""

from __future__ import annotations

import hashlib
from itertools import zip_longest
from typing import cast

import torch
from torch import nn

from ...errors import TrainingError
from ..operations.transport import Collectives


def refuse_different_models(model: nn.Module, ranks: Collectives) -> None:
    """TrainingError, on every rank, when the parameters' names, shapes, dtypes or whether they are trained differ.

    Every rank must call this. Two numbers of each rank are compared; the parameters themselves only if those differ.
    """
    if ranks.num_ranks == 1:
        return
    own = [_described(name, one) for name, one in model.named_parameters()]
    mark = int.from_bytes(hashlib.sha256(repr(own).encode()).digest()[:7])
    marks = ranks.gather(torch.tensor([mark]))
    if (marks == marks[0]).all():
        return
    everyones = cast("list[list[str]]", ranks.gather_object(own))
    number, first = next(
        (number, found) for number, found in enumerate(zip_longest(*everyones)) if any(one != found[0] for one in found)
    )
    by_rank = "; ".join(f"rank {rank}: {one or 'none'}" for rank, one in enumerate(first))
    raise TrainingError(
        f"the ranks' models differ, so they cannot be trained as one. Parameter number {number} of "
        f"{type(model).__name__} is, on {by_rank}. Build the model from the same settings on every rank."
    )


def _described(name: str, parameter: torch.Tensor) -> str:
    frozen = "" if parameter.requires_grad else ", frozen"
    return f"{name} {tuple(parameter.shape)} {str(parameter.dtype).removeprefix('torch.')}{frozen}"
