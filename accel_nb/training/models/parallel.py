"""How a model is wrapped so that its ranks train one model: one function per kind of parallelism."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from ...errors import TrainingError
from ..ranks import placement
from ..ranks.distributed_type import DistributedType
from ..ranks.process_group import RankFacts
from ..settings import DistributedDataParallelKwargs
from .compilation import without_compilation

_UNUSED = "Expected to have finished reduction in the prior iteration"
_UNUSED_INDICES = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")
"""How torch 2.6 to 2.13 say that a parameter got no gradient. Indices count the parameters that are trained."""


class PreparedDistributedDataParallel(DistributedDataParallel):
    """DistributedDataParallel through which the attributes of the model inside can be read, and whose errors say what
    to do.

    Methods of the model are not passed on: called past ``forward`` they would train each rank by itself.
    """

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = self.__dict__.get("_modules", {}).get("module")
            if model is None or not hasattr(model, name):
                raise
            value = getattr(model, name)
            if not isinstance(value, MethodType):
                return value
            raise AttributeError(
                f"the prepared model is a DistributedDataParallel and has no method {name!r}; the model inside has: "
                f"use accelerator.unwrap_model(model).{name}. What it computes is not averaged over the ranks."
            ) from None

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """As the model's. TrainingError when the last backward left out parameters."""
        try:
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if _UNUSED not in str(error):
                raise
            raise TrainingError(self._describe_unused(str(error))) from error

    def _describe_unused(self, message: str) -> str:
        trained = [name for name, one in self.module.named_parameters() if one.requires_grad]
        found = _UNUSED_INDICES.search(message)
        unused = [trained[int(index)] for index in found[1].split()] if found else []
        names = ", ".join(map(repr, unused[:10])) + (f" and {len(unused) - 10} more" if len(unused) > 10 else "")  # noqa: PLR2004
        return (
            f"the last backward gave no gradient to {len(unused)} parameters of {type(self.module).__name__}: "
            f"{names or 'not known which'}. DistributedDataParallel waits for each on every rank. Let the loss depend "
            "on all of them, freeze those that are not meant to be trained (requires_grad_(False)), or use "
            "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])."
        )


def wrap_model(model: nn.Module, facts: RankFacts, settings: DistributedDataParallelKwargs | None = None) -> nn.Module:
    """`model` as this rank trains it together with the others. The model itself is not changed."""
    wrap = _WRAPPERS.get(facts.distributed_type, _data_parallel)
    return wrap(model, facts, settings or DistributedDataParallelKwargs())


def unwrap_model(model: nn.Module) -> nn.Module:
    """What `wrap_model` was given; `model` itself when it is not wrapped."""
    return model.module if isinstance(model, DistributedDataParallel | nn.DataParallel) else model


def is_wrapped(model: nn.Module) -> bool:
    return isinstance(model, DistributedDataParallel)


def without_synchronisation(model: nn.Module) -> AbstractContextManager[None]:
    """Backward within the block leaves gradients to this rank alone; the next one outside adds them to the others'."""
    wrapped = _wrapper_in(model)
    return nullcontext() if wrapped is None else wrapped.no_sync()


def waits_for_others(models: Iterable[nn.Module]) -> bool:
    """Whether a backward of `models`, as things are now, averages gradients over the ranks."""
    return any(one is not None and one.require_backward_grad_sync for one in map(_wrapper_in, models))


@contextmanager
def with_synchronisation(model: nn.Module) -> Iterator[None]:
    """Backward within the block averages `model`'s gradients over the ranks, although its forward ran without."""
    wrapped = _wrapper_in(model)
    if wrapped is None:
        yield
        return
    before = wrapped.require_backward_grad_sync, wrapped.require_forward_param_sync
    wrapped.require_backward_grad_sync = wrapped.require_forward_param_sync = True
    # What forward does when it is to be followed by a synchronised backward (torch's reducer.cpp).
    wrapped.reducer.prepare_for_backward([])
    try:
        yield
    finally:
        wrapped.require_backward_grad_sync, wrapped.require_forward_param_sync = before


def joined(joinables: Sequence[Any], *, enabled: bool) -> AbstractContextManager[object]:
    """Ranks that run out of batches within the block take part in the others' collectives until all are done."""
    wrapped = [one for one in map(_wrapper_in, joinables) if one is not None]
    if not enabled or not wrapped:
        return nullcontext()
    return Join(wrapped, enable=True, throw_on_early_termination=False)  # type: ignore[arg-type]  # DDP is Joinable


def _wrapper_in(model: nn.Module) -> DistributedDataParallel | None:
    """The DistributedDataParallel that `model` is, also below ``torch.compile``; None when it is none."""
    # A DistributedDataParallel passes the attributes of a compiled model inside on: it must not be asked for them.
    inner = model if isinstance(model, DistributedDataParallel) else without_compilation(model)
    return inner if isinstance(inner, DistributedDataParallel) else None


def _as_it_is(model: nn.Module, facts: RankFacts, settings: DistributedDataParallelKwargs) -> nn.Module:
    del facts, settings
    return model


def _alike(model: nn.Module, facts: RankFacts, settings: DistributedDataParallelKwargs) -> nn.Module:
    """Every rank begins with the main one's weights; gradients are averaged after backward, by the device's kind."""
    del settings
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            message = tensor.detach().to(placement.transport_device(facts.device), copy=True)
            distributed.broadcast(message, 0)
            tensor.copy_(message)
    return model


def _data_parallel(model: nn.Module, facts: RankFacts, settings: DistributedDataParallelKwargs) -> nn.Module:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return model  # there is nothing to average, and DDP refuses
    device_ids = placement.wrapped_device_ids(facts.device)
    wrapped = PreparedDistributedDataParallel(model, device_ids=device_ids, **settings.to_kwargs())
    settings.register_comm_hook(wrapped)
    return wrapped


_WRAPPERS: dict[
    DistributedType, Callable[[nn.Module, RankFacts, DistributedDataParallelKwargs], nn.Module]
] = {
    DistributedType.NO: _as_it_is,
    DistributedType.XLA: _alike,
}  # fmt: skip
