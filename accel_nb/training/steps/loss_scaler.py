"""The loss scale of fp16 training, told apart by optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from ...errors import TrainingError
from ..models.precision import Precision
from ..settings import GradScalerKwargs


class LossScaler(torch.amp.GradScaler):
    """torch's, for loops that step several optimizers and look at gradients in between.

    torch wants one `update` per iteration, after all steps. Here every step may be followed by an `update`, which waits
    while gradients of another optimizer are unscaled and not yet used: torch would unscale those a second time.
    Optimizers are known by what they wrap, so that `unscale_` and `step` may be given either.
    """

    def __init__(self, device: str = "cuda", **settings: Any) -> None:  # noqa: ANN401  GradScaler's
        super().__init__(device, **settings)
        self._num_scaled = 0
        self._scaled_at_step: dict[int, int] = {}
        self._unscaled: set[int] = set()

    def scale(self, outputs: Any) -> Any:  # noqa: ANN401  tensors or iterables of them
        self._num_scaled += 1
        return super().scale(outputs)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Once until the optimizer's step; nothing to do the second time."""
        wrapped = _wrapped(optimizer)
        if id(wrapped) not in self._unscaled:
            super().unscale_(wrapped)
            self._unscaled.add(id(wrapped))

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:  # noqa: ANN401  torch's
        """TrainingError when no loss was scaled since the optimizer's last step: its gradients would be divided by a
        scale that they do not have.
        """
        wrapped = _wrapped(optimizer)
        if self.is_enabled() and self._scaled_at_step.get(id(wrapped), 0) == self._num_scaled:
            raise TrainingError(
                f"{type(wrapped).__name__}.step(): mixed_precision='fp16' needs scaled gradients, but no loss was "
                "scaled since the last step. Call accelerator.backward(loss) instead of loss.backward()."
            )
        self._scaled_at_step[id(wrapped)] = self._num_scaled
        try:
            result = super().step(wrapped, *args, **kwargs)
        except AssertionError as error:
            if "No inf checks were recorded" not in str(error):
                raise
            raise TrainingError(
                f"{type(wrapped).__name__}.step(): none of its parameters has a gradient. Call accelerator.backward on "
                "a loss that depends on them before the step."
            ) from error
        self._unscaled.discard(id(wrapped))
        return result

    def leave_out(self, optimizer: Optimizer) -> None:
        """Gradients of `optimizer` that were unscaled are given up, without a step: the next ones are scaled again.
        Infinite ones lower the scale, as those of a skipped step do.
        """
        wrapped = _wrapped(optimizer)
        if id(wrapped) not in self._unscaled:
            return
        self._unscaled.discard(id(wrapped))
        if self._per_optimizer_states[id(wrapped)]["found_inf_per_device"]:
            self.update()
        else:  # it had no gradients, and torch refuses an update that follows none
            del self._per_optimizer_states[id(wrapped)]

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        if not self._unscaled:
            super().update(new_scale)


def make_scaler(
    precision: Precision, device: torch.device, settings: GradScalerKwargs | None = None
) -> LossScaler | None:
    """None where `precision` needs none."""
    if not precision.scales_gradients:
        return None
    return LossScaler(device.type, **({} if settings is None else settings.to_kwargs()))


def _wrapped(optimizer: Optimizer) -> Optimizer:
    """What an `AcceleratedOptimizer` wraps; another optimizer itself."""
    wrapped: Optimizer = optimizer.__dict__.get("optimizer", optimizer)
    return wrapped
