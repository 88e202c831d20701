"""DataLoader workers that say where they are when the launcher asks, as their rank does.

A forked worker has inherited what is needed for that. One that is spawned, or comes from a fork server, sets it up just
before its loop begins: the loop is the first thing of torch's that travels to it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from ...protocol.stack_signal import answer_stack_signal, answered_into

_LOOPS = ("torch.utils.data._utils.worker", "torchdata.stateful_dataloader.worker")
"""Modules whose ``_worker_loop`` is what a worker runs (torch 2.6 to 2.13, torchdata 0.11)."""
_NAME = "_worker_loop"

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def answering_loop(obj: object) -> Reduced | None:
    """How to pickle a worker's loop so that the worker answers; None: `obj` is none, or nobody asks this process."""
    if not isinstance(obj, FunctionType) or obj.__name__ != _NAME or obj.__module__ not in _LOOPS:
        return None
    file = answered_into()
    return None if file is None else (loop_after_setup, (obj.__module__, str(file)))


def loop_after_setup(module: str, file: str) -> Callable[..., Any]:
    """Called while a worker loads what it is to do."""
    answer_stack_signal(Path(file))
    loop: Callable[..., Any] = getattr(importlib.import_module(module), _NAME)
    return loop
