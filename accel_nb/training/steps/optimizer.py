"""An optimizer that steps when gradients are complete and finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ..ranks.state import GradientState
from .loss_scaler import LossScaler
from .pace import Pace


class AcceleratedOptimizer(Optimizer):
    """Wraps `optimizer`, whose parameter groups, state and defaults are its own.

    Args:
        optimizer: what really steps.
        device_placement: move state that the optimizer already has to its parameters' devices.
        scaler: that of fp16 training, None in other precisions.
    """

    def __init__(
        self, optimizer: Optimizer, device_placement: bool = True, scaler: torch.amp.GradScaler | None = None
    ) -> None:
        # Optimizer.__init__ would make parameter groups and hooks of its own.
        self.optimizer = optimizer
        self.scaler = scaler
        self.gradient_state = GradientState()
        self.num_updates = 0
        """Steps that really happened."""
        self.num_steps_asked = 0
        """Steps in this process, those included that were skipped since gradients were not finite."""
        self.end_step: Callable[[], None] | None = None
        """To be called after each step, for devices that compute only when they are told to."""
        self.pace: Pace | None = Pace()
        """What is to be told of its first steps; None: nothing any more."""
        self._is_overflow = False
        self._has_stepped = False
        self._is_unscaled = False
        if device_placement and optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())  # casts the state to where the parameters are
        if scaler is not None:
            optimizer.register_step_post_hook(self._note_step)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """What else `optimizer` has: hooks, and attributes of its own class."""
        if "optimizer" not in self.__dict__:  # while it is being copied
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = groups

    @property
    def state(self) -> Any:  # noqa: ANN401  a defaultdict keyed by parameters
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:  # noqa: ANN401
        self.optimizer.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last step did not happen because the scaled gradients were not finite."""
        return self._is_overflow

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step if gradients are synchronised. Returns the closure's loss, if there is one and the step happened."""
        if not self.gradient_state.sync_gradients:
            return None
        self.num_steps_asked += 1
        if self.scaler is None:
            self.num_updates += 1
            loss: float | None = self.optimizer.step() if closure is None else self.optimizer.step(closure)
            if self.end_step is not None:
                self.end_step()
            return loss
        self._has_stepped = False
        loss = self.scaler.step(self.optimizer, closure) if closure else self.scaler.step(self.optimizer)
        self.scaler.update()
        self._is_overflow, self._is_unscaled = not self._has_stepped, False
        self.num_updates += self._has_stepped
        return loss

    def unscale(self) -> None:
        """Bring the gradients to their true size, once per step; nothing to do where they are not scaled."""
        if self.scaler is not None and not self._is_unscaled:
            self.scaler.unscale_(self.optimizer)
            self._is_unscaled = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, unless more are to be added to them."""
        if self.gradient_state.sync_gradients:
            self.leave_out_step()
            self.optimizer.zero_grad(set_to_none)

    def leave_out_step(self) -> None:
        """Give up gradients that `unscale` brought to their true size and no step has used: else those of the next
        backward would count as unscaled, too.
        """
        self._is_unscaled = False
        if isinstance(self.scaler, LossScaler):
            self.scaler.leave_out(self.optimizer)

    def train(self) -> None:
        """For optimizers that keep two sets of weights (schedule-free); nothing to do for others."""
        self._set_mode("train")

    def eval(self) -> None:
        """See `train`."""
        self._set_mode("eval")

    def _set_mode(self, name: str) -> None:
        switch = getattr(self.optimizer, name, None)
        if callable(switch):
            switch()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def progress(self) -> dict[str, Any]:
        """What is not the wrapped optimizer's state: how often it stepped, and whether it did the last time."""
        return {"num_updates": self.num_updates, "step_was_skipped": self._is_overflow}

    def restore_progress(self, progress: Mapping[str, Any]) -> None:
        self.num_updates, self._is_overflow = progress["num_updates"], progress["step_was_skipped"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"

    def __reduce__(self) -> tuple[type[AcceleratedOptimizer], tuple[Optimizer, bool, torch.amp.GradScaler | None]]:
        return type(self), (self.optimizer, False, self.scaler)

    def _note_step(self, optimizer: Optimizer, *_: object) -> None:
        # A fused optimizer is always called, and told by the scaler whether it must leave its parameters alone.
        found_inf: torch.Tensor | None = getattr(optimizer, "found_inf", None)
        self._has_stepped = found_inf is None or not found_inf.item()
