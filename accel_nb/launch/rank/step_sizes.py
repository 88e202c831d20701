"""What models and optimizers of this process take, found without their being told to us: any framework may train them.

Functions here look through all objects that are alive, once per dry run.
"""

from __future__ import annotations

import gc
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ...protocol.events import UnusedParameters

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer


Kind = TypeVar("Kind")


class TrainedModel(NamedTuple):
    """A model as its user knows it."""

    module: nn.Module
    """Without DistributedDataParallel and ``torch.compile``."""
    distributed: nn.Module | None
    """The DistributedDataParallel around it; None when there is none."""

    def leaves_out(self, name: str) -> bool:
        """Whether `distributed` was told not to care for the parameter (``_ddp_params_and_buffers_to_ignore``)."""
        return name in getattr(self.distributed, "parameters_to_ignore", ())


def trained_models(stepped: Container[int]) -> list[TrainedModel]:
    """Models that hold parameters of these ids, none of them part of another, unless ranks train it together. Those
    come first.
    """
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    alive = [one for one in _instances(nn.Module) if "_modules" in vars(one)]
    parts = {id(part) for one in alive for part in one._modules.values()}  # noqa: SLF001  children() leaves out repeats
    tops = [one for one in alive if isinstance(one, DistributedDataParallel) or id(one) not in parts]
    whole = [one for one in tops if any(id(parameter) in stepped for parameter in one.parameters())]
    whole.sort(key=lambda one: not isinstance(one, DistributedDataParallel))
    return [
        TrainedModel(_inside(one), one if isinstance(one, DistributedDataParallel) else None)
        for one in whole
    ]  # fmt: skip


def unused_parameters(
    models: Iterable[TrainedModel], stepped: Container[int], with_gradient: Container[int]
) -> tuple[UnusedParameters, ...]:
    """Parameters of `models` that are to be trained and got no gradient; each parameter once. Where nothing waits for
    gradients, only the `stepped` ones: another optimizer may train the others, by a backward of its own. Both by id.
    """
    found = []
    seen: set[int] = set()
    for model in models:
        own = [(name, one) for name, one in model.module.named_parameters() if id(one) not in seen]
        seen |= {id(one) for _, one in own}
        awaited = _waits_for_all(model.distributed)
        missing = [(name, one) for name, one in own if one.requires_grad and id(one) not in with_gradient]
        names = tuple(name for name, one in missing if (awaited or id(one) in stepped) and not model.leaves_out(name))
        if names:
            found.append(UnusedParameters(model=type(model.module).__name__, names=names, awaited=awaited))
    return tuple(found)


def parameters_and_buffers(modules: Iterable[nn.Module]) -> Iterator[torch.Tensor]:
    """Of lazy ones, which their first call makes, only what is there."""
    from torch.nn.parameter import is_lazy

    for module in modules:
        yield from (one for one in (*module.parameters(), *module.buffers()) if not is_lazy(one))


def stepped_parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    """Those that `optimizer` changes, part of a model or not."""
    return [one for group in optimizer.param_groups for one in group["params"]]


def bucket_bytes(models: Iterable[TrainedModel]) -> int:
    """What DistributedDataParallel copies gradients into to send them, unless gradients are views of that."""
    copying = (model for model in models if not getattr(model.distributed, "gradient_as_bucket_view", True))
    return sum(
        one.nbytes
        for model in copying
        for name, one in model.module.named_parameters()
        if one.requires_grad and not model.leaves_out(name)
    )


def optimizer_bytes() -> int:
    """State of all optimizers."""
    return unique_bytes(tensor for one in _optimizers() for tensor in _tensors(one.state))


def num_optimizers_without_state(stepped: Iterable[Optimizer]) -> int:
    """Of those other than `stepped`."""
    own = set(map(id, stepped))
    return sum(not any(True for _ in _tensors(one.state)) for one in _optimizers() if id(one) not in own)


def unique_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Of their storages, each once."""
    return sum({storage_id(one): one.nbytes() for one in storages(tensors)}.values())


def storage_ids(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Of the storages of `tensors`."""
    return {storage_id(one) for one in storages(tensors)}


def storage_id(storage: torch.UntypedStorage) -> int:
    """The same for all tensors that share it, as long as one of them lives. On the meta device, too, where no storage
    has an address.
    """
    return int(storage._cdata)  # noqa: SLF001  what torch itself tells storages apart by (2.6 to 2.13)


def storages(tensors: Iterable[torch.Tensor]) -> Iterator[torch.UntypedStorage]:
    """What this process holds of `tensors`: of a DTensor its own shard. Sparse tensors are left out."""
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    for tensor in tensors:
        outside: object = tensor  # as it is annotated, no type is a tensor and such a subclass
        if is_traceable_wrapper_subclass(outside):
            names, _ = outside.__tensor_flatten__()
            yield from storages(_tensors([getattr(tensor, name) for name in names]))  # and a mesh of devices
        elif tensor.layout is torch.strided:
            yield tensor.untyped_storage()


def _optimizers() -> list[Optimizer]:
    from torch.optim import Optimizer

    # Wrappers around an optimizer (ours, Accelerate's) have no state of their own.
    return [one for one in _instances(Optimizer) if "state" in vars(one)]


def _tensors(data: object, depth: int = 4) -> Iterator[torch.Tensor]:
    """Those in nested dictionaries and sequences."""
    import torch

    if isinstance(data, torch.Tensor):
        yield data
    elif depth and isinstance(data, dict | list | tuple):
        for item in list(data.values()) if isinstance(data, dict) else data:
            yield from _tensors(item, depth - 1)


def is_tracing() -> bool:
    """Whether ``torch.jit.trace`` is at work: what is done with tensors now becomes part of a model."""
    import torch

    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]  # public, and not annotated


def input_tensors(*arguments: object) -> list[torch.Tensor]:
    """Data that a model was called with; what other models computed for it is not."""
    return [one for one in _tensors(arguments, depth=6) if not one.requires_grad]


def _instances(kind: type[Kind]) -> list[Kind]:
    # By their own type: a proxy that calls itself a module must not be asked for anything.
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


def _inside(module: nn.Module) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    while True:
        inner = dict(module.named_children()).get("_orig_mod")  # torch.compile's OptimizedModule
        if isinstance(module, DistributedDataParallel):
            inner = module.module
        if inner is None:
            return module
        module = inner


def _waits_for_all(distributed: nn.Module | None) -> bool:
    if distributed is None:
        return False
    return not (getattr(distributed, "find_unused_parameters", False) or getattr(distributed, "static_graph", False))
