"""A rank of a dry run: call the function, measure its first optimizer step, end it there, report.

Nothing of the function's is changed. torch tells when modules are called, when tensors are saved for backward and when
an optimizer steps, whatever framework does it. Optimizers that step within a backward, by hooks of parameters, have
made the step when the backward is over.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...protocol import sink
from ...protocol.events import DryRunReport
from ..failures import exit_status_of
from . import step_sizes
from .saved_for_backward import SavedForBackward
from .stepped import Stepped

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


class _Backwards(threading.local):
    depth = 0
    """Of those under way in a thread: one that recomputes calls another."""


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
        self._backwards = _Backwards()
        self._stepped = Stepped()
        self._has_gradients = False
        self._has_stepped = False
        """Within the backward that is under way."""

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
            with self._saved.watched(), self._backwards_watched():
                yield
        finally:
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def _backwards_watched(self) -> Iterator[None]:
        import torch

        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401  torch's
            if not self._backwards.depth:
                self._stepped, self._has_stepped = Stepped(), False
            self._backwards.depth += 1
            try:
                original(*args, **kwargs)
            finally:
                self._backwards.depth -= 1
            if self._has_stepped and not self._backwards.depth:
                self._stepped.count_gradients()
                self._end()

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = original

    def report(self, *, stepped: bool = False) -> DryRunReport:
        """All that was measured until now."""
        models = self._stepped.models
        modules = {**self._called, **{id(model.module): model.module for model in models}}
        return DryRunReport(
            stepped=stepped,
            batch_size=self._batch_size,
            batch_bytes=self._batch_bytes,
            parameter_bytes=step_sizes.unique_bytes(
                (*step_sizes.parameters_and_buffers(modules.values()), *self._stepped.parameters.values())
            ),
            gradient_bytes=self._stepped.gradient_bytes,
            bucket_bytes=step_sizes.bucket_bytes(models),
            optimizer_bytes=step_sizes.optimizer_bytes() if stepped else 0,
            activation_bytes=self._saved.peak_bytes,
            fixed_activation_bytes=self._saved.peak_fixed_bytes,
            unused=self._stepped.unused(),
            notes=_notes(self._stepped.optimizers) if stepped else (),
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
        if not self._backwards.depth:
            self._stepped = Stepped()
        # Afterwards the optimizer may have cleared them.
        self._has_gradients = self._stepped.look(optimizer)

    def _after_step(self, optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        # A fused optimizer is always called, and told by the scaler whether it must leave its parameters alone.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return
        # The closure that it was given may have made them, or more of them.
        if not self._has_gradients or optimizer not in self._stepped.optimizers:
            self._has_gradients = self._stepped.look(optimizer)
        if not self._has_gradients:
            return  # nothing has changed, as where a step before all others calms a scheduler
        if self._backwards.depth:
            self._has_stepped = True
        else:
            self._end()

    def _end(self) -> None:
        if not self.done:
            sink.emit(self.report(stepped=True))
            self.done = True
        raise StepDone


def _notes(stepped: list[Optimizer]) -> tuple[str, ...]:
    waiting = step_sizes.num_optimizers_without_state(stepped)
    if not waiting:
        return ()
    who = "1 other optimizer" if waiting == 1 else f"{waiting} other optimizers"
    return (f"The state of {who}, made at a step that did not come yet, is not part of the estimate.",)


def _is_for_training() -> bool:
    import torch

    return torch.is_grad_enabled() and not step_sizes.is_tracing()
