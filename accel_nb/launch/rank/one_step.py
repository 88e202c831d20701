"""A rank of a dry run: call the function, measure its first optimizer step, end it there, report.

Nothing of the function's is changed. torch tells when modules are called, when tensors are saved for backward and when
an optimizer steps, whatever framework does it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...protocol import sink
from ...protocol.events import DryRunReport, UnusedParameters
from ..failures import exit_status_of
from . import step_sizes
from .saved_for_backward import SavedForBackward

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

Function = Callable[..., Any]


class StepDone(BaseException):
    """Ends the function of a dry run after its first step. No Exception, so that ``except Exception`` lets it pass."""


def ending_after_one_step(function: Function) -> Callable[..., None]:
    """`function`, but its first optimizer step is its end, and its value is left out. Emits one `DryRunReport`.

    Raises what `function` raises before that step. What it raises or returns afterwards, as where a ``finally`` uses
    what never came to be, is nobody's fault.
    """

    def one_step(*args: object, **kwargs: object) -> None:
        step = _Step()
        try:
            with step.watched():
                function(*args, **kwargs)
        except SystemExit as end:
            if exit_status_of(end) and not step.done:
                raise
        except BaseException:
            if not step.done:
                raise
        if not step.done:
            sink.emit(step.report())

    return one_step


class _Step:
    """What is known of the step. The thread that calls the function trains; others' activations are not seen."""

    def __init__(self) -> None:
        self.done = False
        self._saved = SavedForBackward()
        self._depth = 0
        """Modules under way; at 0 the next call is the model's own."""
        self._called: dict[int, nn.Module] = {}
        """The modules that the function has called itself, by id."""
        self._batch_size: int | None = None
        self._batch_bytes = 0
        self._stepped: list[torch.Tensor] = []
        """What the optimizer changes that stepped last."""
        self._has_gradients = False
        self._gradient_bytes = 0
        self._bucket_bytes = 0
        self._models: list[step_sizes.TrainedModel] = []
        self._unused: tuple[UnusedParameters, ...] = ()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        from torch.nn.modules import module as modules
        from torch.optim import optimizer as optimizers

        handles = (
            modules.register_module_forward_pre_hook(self._before_module),
            modules.register_module_forward_hook(self._after_module, with_kwargs=True, always_call=True),
            optimizers.register_optimizer_step_pre_hook(self._before_step),
            optimizers.register_optimizer_step_post_hook(self._after_step),
        )
        # Those of torch.compile: our hooks notice when they are called twice.
        warnings.filterwarnings("ignore", message="Using `torch.compile.* when there are global hooks")
        try:
            with self._saved.watched():
                yield
        finally:
            for handle in handles:
                handle.remove()

    def report(self, stepped: Optimizer | None = None) -> DryRunReport:
        """All that was measured until now. `stepped`: the optimizer that made the step; None: there was no step."""
        modules = {**self._called, **{id(model.module): model.module for model in self._models}}
        return DryRunReport(
            stepped=stepped is not None,
            batch_size=self._batch_size,
            batch_bytes=self._batch_bytes,
            parameter_bytes=step_sizes.unique_bytes(
                (*step_sizes.parameters_and_buffers(modules.values()), *self._stepped)
            ),
            gradient_bytes=self._gradient_bytes,
            bucket_bytes=self._bucket_bytes,
            optimizer_bytes=step_sizes.optimizer_bytes() if stepped is not None else 0,
            activation_bytes=self._saved.peak_bytes,
            fixed_activation_bytes=self._saved.peak_fixed_bytes,
            unused=self._unused,
            notes=() if stepped is None else _notes(stepped),
        )

    def _before_module(self, module: nn.Module, _args: object) -> None:
        if not self._depth and _is_for_training():
            self._called[id(module)] = module
            own = list(step_sizes.parameters_and_buffers([module]))
            shapes = {tuple(sorted(one.shape)) for one in own}
            self._saved.begin(step_sizes.storage_ids(own), shapes)
        self._depth += 1

    def _after_module(self, _module: nn.Module, args: object, *rest: object) -> None:
        """`rest`: keyword arguments and output; the output alone, which is None, when `forward` has raised."""
        self._depth -= 1
        if not self._depth and _is_for_training():
            inputs = step_sizes.input_tensors(args, rest[:-1])
            self._saved.leave_out(step_sizes.storage_ids(inputs))
            self._note_batch(inputs)

    def _note_batch(self, inputs: list[torch.Tensor]) -> None:
        num_bytes = sum(one.nbytes for one in inputs)
        if num_bytes > self._batch_bytes:
            self._batch_bytes = num_bytes
            self._batch_size = next((one.shape[0] for one in inputs if one.dim()), None)

    def _before_step(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        # Afterwards the optimizer may have cleared them.
        self._look_at_gradients(optimizer)

    def _look_at_gradients(self, optimizer: Optimizer) -> None:
        self._stepped = step_sizes.stepped_parameters(optimizer)
        self._has_gradients = any(one.grad is not None for one in self._stepped)
        self._models = step_sizes.trained_models(optimizer)
        parameters = [one for model in self._models for one in model.module.parameters()]
        gradients = [one.grad for one in (*parameters, *self._stepped) if one.grad is not None]
        self._gradient_bytes = step_sizes.unique_bytes(gradients)
        self._bucket_bytes = step_sizes.bucket_bytes(self._models)
        self._unused = step_sizes.unused_parameters(self._models, optimizer)

    def _after_step(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        # A fused optimizer is always called, and told by the scaler whether it must leave its parameters alone.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return
        if not self._has_gradients:  # the closure that it was given makes them
            self._look_at_gradients(optimizer)
        if not self._has_gradients:
            return  # nothing has changed, as where a step before all others calms a scheduler
        if not self.done:
            sink.emit(self.report(optimizer))
            self.done = True
        raise StepDone


def _notes(stepped: Optimizer) -> tuple[str, ...]:
    waiting = step_sizes.num_optimizers_without_state(stepped)
    if not waiting:
        return ()
    who = "1 other optimizer" if waiting == 1 else f"{waiting} other optimizers"
    return (f"The state of {who}, made at a step that did not come yet, is not part of the estimate.",)


def _is_for_training() -> bool:
    import torch

    return torch.is_grad_enabled() and not step_sizes.is_tracing()
