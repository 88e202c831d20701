"""A scheduler that follows its optimizer, and says what it does among several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from ..ranks.state import GradientState, PartialState
from .optimizer import AcceleratedOptimizer

SchedulerSteps = Literal["per_process", "per_call"]
SCHEDULER_STEPS: tuple[SchedulerSteps, ...] = ("per_process", "per_call")


class AcceleratedScheduler:
    """Wraps `scheduler`, and advances it only when its optimizers really stepped.

    Args:
        scheduler: what sets the learning rate.
        optimizers: those whose steps count.
        step_with_optimizer: False: advance once at every call, whatever the optimizers did.
        split_batches: each update uses as much data as a single process's would.
        steps_per_call: how often `scheduler` advances at each `step`. None: upstream's rule, once per process, unless
            batches are split: each update then uses that many times the data of a single process's. ReduceLROnPlateau
            advances once in any case: the same metric a second time is no improvement for it.
    """

    def __init__(
        self,
        scheduler: LRScheduler,
        optimizers: AcceleratedOptimizer | Sequence[AcceleratedOptimizer],
        step_with_optimizer: bool = True,
        split_batches: bool = False,
        *,
        steps_per_call: int | None = None,
    ) -> None:
        if steps_per_call is None:
            steps_per_call = 1 if split_batches else PartialState().num_processes
        self.scheduler = scheduler
        self.optimizers = (optimizers,) if isinstance(optimizers, AcceleratedOptimizer) else tuple(optimizers)
        self.split_batches = split_batches
        counts_updates = step_with_optimizer and not isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
        self.steps_per_call = steps_per_call if counts_updates else 1
        self.step_with_optimizer = step_with_optimizer
        self.gradient_state = GradientState()

    def step(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  ReduceLROnPlateau takes a metric
        if self.step_with_optimizer:
            if not self.gradient_state.sync_gradients:
                # Those that combine others, and ReduceLROnPlateau, have no such count.
                if self.gradient_state.adjust_scheduler and hasattr(self.scheduler, "_step_count"):
                    self.scheduler._step_count += 1  # noqa: SLF001  as upstream: the schedule counts this call
                return
            if any(one.step_was_skipped for one in self.optimizers):
                return
        for _ in range(self.steps_per_call):
            if _has_run_out(self.scheduler):
                return
            self.scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[Any]:
        return self.scheduler.get_last_lr()

    def get_lr(self) -> list[Any]:
        return list(self.scheduler.get_lr())

    def state_dict(self) -> dict[str, Any]:
        return self.scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state_dict)

    def print_lr(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  those of old versions of torch
        """Of schedulers that have it; AttributeError for others."""
        self.scheduler.print_lr(*args, **kwargs)  # type: ignore[attr-defined]  # torch < 2.7

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """What else `scheduler` has, such as ``last_epoch``."""
        if "scheduler" not in self.__dict__:  # while it is being copied
            raise AttributeError(name)
        return getattr(self.scheduler, name)


def horizon(scheduler: LRScheduler) -> int | None:
    """How many steps the schedule is made for; None when it has no end, or none that can be seen."""
    match scheduler:
        case lr_scheduler.OneCycleLR():
            return int(scheduler.total_steps)
        case lr_scheduler.CosineAnnealingLR():
            return int(scheduler.T_max)
        case lr_scheduler.LinearLR() | lr_scheduler.ConstantLR() | lr_scheduler.PolynomialLR():
            return int(scheduler.total_iters)
        case lr_scheduler.LambdaLR():
            # transformers' schedules are partials of functions with this parameter
            found = [one.keywords.get("num_training_steps") for one in scheduler.lr_lambdas if isinstance(one, partial)]
            return next((int(steps) for steps in found if steps is not None), None)
        case _:
            return None


def describe_pace(scheduler: LRScheduler, steps_per_call: int, num_ranks: int) -> str:
    """One line about a scheduler that advances more than one step per call."""
    name, steps = type(scheduler).__name__, horizon(scheduler)
    if steps is None:
        pace = f"{name} advances {steps_per_call} steps at each update on {num_ranks} ranks"
    else:
        num_updates = -(-steps // steps_per_call)
        pace = f"{name}: schedule of {steps:,} steps ends after {num_updates:,} updates on {num_ranks} ranks"
    return f'{pace}, as in Hugging Face Accelerate; Accelerator(scheduler_steps="per_call") gives one call, one step.'


def _has_run_out(scheduler: LRScheduler) -> bool:
    """OneCycleLR raises when it is stepped beyond its end, which several steps per call reach before the loop ends."""
    return isinstance(scheduler, lr_scheduler.OneCycleLR) and scheduler.last_epoch >= scheduler.total_steps
