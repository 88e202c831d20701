"""Mixed precision: which dtype `forward` computes in, and how a model is wrapped for it without being changed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import nn

from ...errors import TrainingError
from ..operations.nested import convert_to_fp32
from ..ranks import placement
from ..settings import AutocastKwargs

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Precision:
    """A way to compute."""

    name: str
    dtype: torch.dtype | None
    """Of autocast; None: no autocast, everything in the model's own dtypes."""
    scales_gradients: bool = False
    """fp16's small exponent needs the loss scaled up before backward (Micikevicius et al., 2018)."""

    def autocast(self, device: torch.device, settings: AutocastKwargs | None = None) -> AbstractContextManager[object]:
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.dtype, **({} if settings is None else settings.to_kwargs()))


PRECISIONS = {
    "no": Precision("no", None),
    "bf16": Precision("bf16", torch.bfloat16),
    "fp16": Precision("fp16", torch.float16, scales_gradients=True),
}


def choose_precision(name: str, device: torch.device) -> Precision:
    """The precision called `name`. ValueError for an unknown name, TrainingError for one that `device` cannot do."""
    if name == "fp8":
        raise TrainingError("mixed_precision='fp8' is not part of this version of accel_nb. Use 'bf16'.")
    if name not in PRECISIONS:
        raise ValueError(f"mixed_precision={name!r} is unknown; choose one of {', '.join(map(repr, PRECISIONS))}.")
    precision = PRECISIONS[name]
    if not placement.computes_in(device, name):
        others = " or ".join(repr(one) for one in PRECISIONS if one != name and placement.computes_in(device, one))
        dtype = str(precision.dtype).removeprefix("torch.")
        raise TrainingError(f"mixed_precision={name!r}: {device} cannot compute in {dtype}. Use {others}.")
    return precision


def refuse_half_weights(model: nn.Module, precision: Precision) -> None:
    """TrainingError when `model` has weights that fp16 training can't update: their gradients can't be unscaled."""
    if not precision.scales_gradients:
        return
    names = [name for name, one in model.named_parameters() if one.requires_grad and one.dtype is torch.float16]
    if names:
        raise TrainingError(
            f"mixed_precision='fp16' trains float32 weights, but {len(names)} parameters of {type(model).__name__} are "
            f"float16, {names[0]!r} first. Load the model in float32 (model.float()), or use mixed_precision='no'."
        )


class AutocastView:
    """A second view of a module: same class, same parameters, same attributes (one dictionary), but its `forward` runs
    under autocast and returns float32.

    So the module itself is never changed: it can be saved, copied and pickled at any time, also while training goes on
    through the view. `model.generate()` and other methods called on the view reach the view's `forward` too.
    """

    __slots__ = (
        "autocast_device", "autocast_forward", "autocast_original", "autocast_precision", "autocast_settings"
    )  # fmt: skip
    autocast_device: torch.device
    autocast_forward: Callable[..., Any] | None
    """What `forward` gave last, while the original's is the same."""
    autocast_original: nn.Module
    autocast_precision: Precision
    autocast_settings: AutocastKwargs | None

    @property
    def forward(self) -> Callable[..., Any]:
        # A property, because it must also win over a `forward` that the user put on the instance.
        original = self.autocast_original.forward
        known = self.autocast_forward
        if known is None or known.__wrapped__ != original:  # type: ignore[attr-defined]  # set by functools.wraps
            known = self._forward_under_autocast(original)
            object.__setattr__(self, "autocast_forward", known)
        return known

    @forward.setter
    def forward(self, function: Callable[..., Any]) -> None:
        """Of both: as a model that is not a view, the original has it on the instance; here it runs under autocast."""
        self.autocast_original.__dict__["forward"] = function

    @forward.deleter
    def forward(self) -> None:
        del self.autocast_original.forward

    def _forward_under_autocast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        precision, device, settings = self.autocast_precision, self.autocast_device, self.autocast_settings

        @functools.wraps(original)
        def forward(*args: object, **kwargs: object) -> object:
            with precision.autocast(device, settings):
                outputs = original(*args, **kwargs)
            return convert_to_fp32(outputs)

        return forward

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        known = self.autocast_original, self.autocast_precision, self.autocast_device, self.autocast_settings
        return with_autocast, known

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.__reduce__()


def with_autocast(
    model: Model, precision: Precision, device: torch.device, settings: AutocastKwargs | None = None
) -> Model:
    """A view of `model` that computes in `precision`; `model` itself when that needs no autocast."""
    if precision.dtype is None:
        return model
    view = object.__new__(_view_class(cast("Hashable", type(model))))
    object.__setattr__(view, "__dict__", model.__dict__)
    object.__setattr__(view, "autocast_precision", precision)
    object.__setattr__(view, "autocast_device", device)
    object.__setattr__(view, "autocast_settings", settings)
    object.__setattr__(view, "autocast_original", model)
    object.__setattr__(view, "autocast_forward", None)
    return cast("Model", view)


def autocast_like(model: Model, view: AutocastView) -> Model:
    """A view of `model` that computes as `view` does."""
    return with_autocast(model, view.autocast_precision, view.autocast_device, view.autocast_settings)


def without_autocast(model: nn.Module) -> nn.Module:
    """The module that `model` is a view of; `model` itself when it is none."""
    return model.autocast_original if isinstance(model, AutocastView) else model


@functools.cache
def _view_class(kind: type[nn.Module]) -> type[nn.Module]:
    names = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (AutocastView, kind), names)
