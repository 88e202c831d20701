"""From what `prepare` made of a model back to the model."""

from __future__ import annotations

from torch import nn

from . import compilation, parallel
from .precision import AutocastView, autocast_like, without_autocast


def unwrap(model: nn.Module, *, keep_autocast: bool = False, keep_compiled: bool = True) -> nn.Module:
    """The model inside `model`, which stays as it is.

    `keep_autocast`: still computing in mixed precision. `keep_compiled`: still compiled, if it was.
    """
    view: AutocastView | None = None
    compiled: nn.Module | None = None
    inner, before = model, None
    while inner is not before:
        before = inner
        if isinstance(inner, AutocastView):
            view = inner
        inner = without_autocast(inner)
        if compilation.is_compiled_module(inner) or compilation.has_compiled_regions(inner):
            compiled = inner
        inner = parallel.unwrap_model(compilation.without_compilation(inner))
    if compiled is not None and keep_compiled:
        inner = compilation.compiled_like(inner, compiled)
    return inner if view is None or not keep_autocast else autocast_like(inner, view)


def extract_model_from_parallel(
    model: nn.Module, keep_fp32_wrapper: bool = False, keep_torch_compile: bool = True, recursive: bool = False
) -> nn.Module:
    """As `Accelerator.unwrap_model`, without one. `recursive`: also unwrap models that are parts of the model found;
    these are replaced in it. A `forward` that users of upstream have kept as ``_original_forward`` is put back, unless
    `keep_fp32_wrapper`.
    """
    found = unwrap(model, keep_autocast=keep_fp32_wrapper, keep_compiled=keep_torch_compile)
    if not keep_fp32_wrapper and "_original_forward" in found.__dict__:
        found.forward = found.__dict__.pop("_original_forward")
    if recursive:
        for name, child in list(found.named_children()):
            setattr(found, name, extract_model_from_parallel(child, keep_fp32_wrapper, keep_torch_compile, recursive))
    return found
