"""``torch.compile`` as part of `prepare`: the whole model, or the blocks that it repeats."""

from __future__ import annotations

import copy
import sys
from typing import Any, cast

import torch
from torch import nn

from ...errors import TrainingError
from ..choices import DynamoBackend
from ..settings import TorchDynamoPlugin


def compile_as(model: nn.Module, plugin: TorchDynamoPlugin) -> nn.Module:
    """`model` compiled as `plugin` says; `model` itself when it is compiled already or is not to be.

    It is compiled at its first call. TrainingError for a backend that this torch has not got.
    """
    if plugin.backend == DynamoBackend.NO or is_compiled_module(model) or has_compiled_regions(model):
        return model
    arguments = plugin.to_kwargs()
    known = torch.compiler.list_backends(exclude_tags=())
    if arguments["backend"] not in known:
        raise TrainingError(
            f"dynamo backend {arguments['backend']!r} is not installed; torch {torch.__version__} has "
            f"{', '.join(map(repr, known))} here. Install the package that brings it, or choose another."
        )
    if plugin.use_regional_compilation:
        return compile_regions(model, **arguments)
    return cast("nn.Module", torch.compile(model, **arguments))


def is_compiled_module(module: object) -> bool:
    """Whether `module` is what ``torch.compile`` makes of a module."""
    compiler = sys.modules.get("torch._dynamo")  # takes a second to import, and whoever compiled has imported it
    return compiler is not None and isinstance(module, compiler.OptimizedModule)


def has_compiled_regions(module: nn.Module) -> bool:
    """Whether `module` was made by `compile_regions`."""
    return "_orig_mod" in module.__dict__ and not is_compiled_module(module)


def compile_regions(module: nn.Module, **compile_kwargs: Any) -> nn.Module:  # noqa: ANN401  torch.compile's
    """A module that shares everything with `module`, each block of its repeated ones compiled by itself.

    Repeated are the blocks of a ModuleList whose blocks are of one class: compiled once, they all use the result, so
    the first step comes sooner. The rest of the modules is compiled as a whole. `module` itself is not changed.
    """
    if is_repeated_blocks(module):
        return nn.ModuleList([cast("nn.Module", torch.compile(block, **compile_kwargs)) for block in module.children()])
    if not has_repeated_blocks(module):
        return cast("nn.Module", torch.compile(module, **compile_kwargs))
    twin = copy.copy(module)
    twin._modules = {name: _region(child, compile_kwargs) for name, child in module._modules.items()}  # noqa: SLF001
    twin.__dict__["_orig_mod"] = module
    return twin


def is_repeated_blocks(module: nn.Module) -> bool:
    """Whether `module` is a list of blocks of one class."""
    return isinstance(module, nn.ModuleList) and len(module) > 0 and len({type(block) for block in module}) == 1


def has_repeated_blocks(module: nn.Module) -> bool:
    """Whether there are repeated blocks somewhere in `module`."""
    return any(is_repeated_blocks(one) for one in module.modules())


def without_compilation(model: nn.Module) -> nn.Module:
    """The module that was compiled; `model` itself when it is not compiled."""
    kept = model._modules.get("_orig_mod") or model.__dict__.get("_orig_mod", model)  # noqa: SLF001  torch's, and ours
    return cast("nn.Module", kept)


def compiled_like(model: nn.Module, compiled: nn.Module) -> nn.Module:
    """`model`, which is at the heart of `compiled`, compiled in the same way."""
    if without_compilation(compiled) is model or not is_compiled_module(compiled):
        return compiled
    return type(compiled)(model, compiled.dynamo_ctx)


def _region(child: nn.Module | None, compile_kwargs: dict[str, Any]) -> nn.Module | None:
    return None if child is None else compile_regions(child, **compile_kwargs)
