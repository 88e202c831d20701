"""Where a rank's loop stands between two lines of the user's code, apart from its loaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ranks.state import GradientState
from ..ranks.trigger import Trigger
from ..steps.accumulation import Accumulation
from ..steps.optimizer import AcceleratedOptimizer


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Everything that decides what the next line of the loop does."""

    accumulation: Accumulation
    gradient_state: GradientState
    trigger: Trigger
    optimizers: Sequence[AcceleratedOptimizer]

    @property
    def num_accumulated(self) -> int:
        """Micro-batches since the last optimizer step: upstream's `step`, within a step."""
        return int(self.accumulation.state_dict()["num_done"])

    def take_up(self, num_accumulated: int) -> None:
        """What upstream's checkpoints say of all this."""
        self.accumulation.load_state_dict({"num_done": num_accumulated % self.accumulation.steps})

    def state_dict(self) -> dict[str, Any]:
        return {
            "accumulation": self.accumulation.state_dict(),
            "sync_gradients": self.gradient_state.sync_gradients,
            "trigger": self.trigger.state_dict(),
            "optimizers": [one.progress() for one in self.optimizers],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.accumulation.load_state_dict(state_dict["accumulation"])
        self.gradient_state.sync_gradients = state_dict["sync_gradients"]
        self.trigger.load_state_dict(state_dict["trigger"])
        # A program may have fewer optimizers than were saved, as one that only evaluates.
        for optimizer, progress in zip(self.optimizers, state_dict["optimizers"], strict=False):
            optimizer.restore_progress(progress)
