"""What the optimizers of one step change: those of one after a backward, or of many within it, one per parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import step_sizes

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from ...protocol.events import UnusedParameters


class Stepped:
    """One step. An optimizer is looked at before it steps, while its gradients are there."""

    def __init__(self) -> None:
        self.optimizers: list[Optimizer] = []
        self.parameters: dict[int, torch.Tensor] = {}
        """By id; part of a model or not."""
        self.models: list[step_sizes.TrainedModel] = []
        self.gradient_bytes = 0
        """The most that were there at one time."""
        self._with_gradient: set[int] = set()
        """Ids of parameters that have got one."""

    def look(self, optimizer: Optimizer) -> bool:
        """Take up what `optimizer` changes; whether there is a gradient for it."""
        own = {id(one): one for one in step_sizes.stepped_parameters(optimizer)}
        if not any(one is optimizer for one in self.optimizers):
            self.optimizers.append(optimizer)
        self.parameters |= own
        # Looks through all objects: once for the models that these optimizers share.
        if not own.keys() <= self._of_models().keys():
            self.models = step_sizes.trained_models(self.parameters)
        self.count_gradients()
        return not self._with_gradient.isdisjoint(own)

    def count_gradients(self) -> None:
        """Those that are there now."""
        having = {key: one for key, one in (self._of_models() | self.parameters).items() if one.grad is not None}
        self._with_gradient |= having.keys()
        gradients = [one.grad for one in having.values() if one.grad is not None]
        self.gradient_bytes = max(self.gradient_bytes, step_sizes.unique_bytes(gradients))

    def unused(self) -> tuple[UnusedParameters, ...]:
        """As `step_sizes.unused_parameters`."""
        return step_sizes.unused_parameters(self.models, self.parameters.keys(), self._with_gradient)

    def _of_models(self) -> dict[int, torch.Tensor]:
        return {id(one): one for model in self.models for one in model.module.parameters()}
