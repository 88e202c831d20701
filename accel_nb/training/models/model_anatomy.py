"""What a model is made of."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ...errors import TrainingError
from .unwrapping import extract_model_from_parallel


def model_has_dtensor(model: nn.Module) -> bool:
    """Whether a parameter of `model` is spread over ranks."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def num_mapped_devices(model: nn.Module) -> int:
    """Places that `model` is spread over by the ``hf_device_map`` of it or of one of its modules; 1 without one."""
    return max((len(getattr(one, "hf_device_map", ())) for one in model.modules()), default=1) or 1


def refuse_spread(model: nn.Module, num_ranks: int, *, is_trained: bool) -> None:
    """TrainingError for a model of which several ranks cannot have whole copies."""
    if num_ranks == 1:
        return
    name, advice = type(model).__name__, "Load it whole, or start one rank."
    num_places = num_mapped_devices(model)
    if num_places > 1:
        raise TrainingError(
            f"{name} is spread over {num_places} places (hf_device_map), as device_map='auto' loads it, but each of "
            f"{num_ranks} ranks needs a copy on its own device. {advice}"
        )
    if is_trained and model_has_dtensor(model):
        raise TrainingError(
            f"{name} has parameters that are spread over ranks (DTensor), but each of {num_ranks} ranks trains a whole "
            f"copy with DistributedDataParallel. {advice}"
        )


def is_peft_model(model: nn.Module) -> bool:
    """Whether `model`, unwrapped, is one of `peft`, which is not imported for this."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(extract_model_from_parallel(model), peft.PeftModel)


def get_module_children_bottom_up(
    model: nn.Module, return_fqns: bool = False
) -> list[nn.Module] | list[tuple[str, nn.Module]]:
    """The modules of `model`, each after all that it consists of, `model` last; `return_fqns`: with their names."""
    named = list(_bottom_up(model, ""))
    return named if return_fqns else [module for _, module in named]


def get_module_class_from_name(module: nn.Module, name: str) -> type[nn.Module] | None:
    """The class called `name` of the first module within `module` that is of it; None when there is none."""
    return next((type(one) for one in module.modules() if type(one).__name__ == name), None)


def dtype_byte_size(dtype: torch.dtype) -> float:
    """Bytes of one number of `dtype`; 1/8 for bool, as upstream counts quantised weights."""
    return 1 / 8 if dtype == torch.bool else dtype.itemsize


def _bottom_up(model: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    for child_name, child in model.named_children():
        yield from _bottom_up(child, f"{name}.{child_name}" if name else child_name)
    yield name, model
