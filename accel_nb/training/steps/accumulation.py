"""When gradients are synchronised: at every `steps`-th micro-batch, and at the end of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType

import torch
from torch import nn

from ...protocol import lockstep
from ..models.parallel import without_synchronisation
from ..ranks.state import GradientState
from ..settings import GradientAccumulationPlugin


class Accumulation:
    """Counts the micro-batches that make one optimizer step, and scales them so that the step is their mean.

    The window at the end of the data may be shorter than `steps`; its mean is over the micro-batches that it has
    (huggingface/accelerate 1.15 divides by `steps` there, too). Where a loop cuts each batch of a loader into several
    micro-batches, the end is the last of those (upstream steps at each of the last batch's). How many they are is seen
    in the batches before; a loader of one batch or without a length can't show it, `MicroBatches` says it in any case.
    """

    def __init__(self, plugin: GradientAccumulationPlugin, progress: GradientState) -> None:
        self.plugin = plugin
        self.divisor = self.steps
        """What the mean loss of the current micro-batch is divided by."""
        self.is_used = False
        """Whether micro-batches are counted here, rather than by the loop itself."""
        self._progress = progress
        self._num_done = 0
        self._num_weighted = 0
        self._pass: object = None
        self._num_in_pass = 0
        """Micro-batches of the pass over the active loader, before its last batch."""
        self._num_in_last_batch = 0
        self._resumed_in_pass = 0, 0
        """The two numbers above, of a pass that was begun in an earlier run."""
        progress.sync_gradients = True

    def state_dict(self) -> dict[str, int]:
        """How far the step has come, and how many micro-batches the pass has had that goes on."""
        is_in_pass = self._progress.in_dataloader
        return {
            "num_done": self._num_done,
            "num_weighted": self._num_weighted,
            "divisor": self.divisor,
            "num_in_pass": self._num_in_pass if is_in_pass else 0,
            "num_in_last_batch": self._num_in_last_batch if is_in_pass else 0,
        }

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        self._num_done, self._num_weighted = state_dict["num_done"], state_dict.get("num_weighted", 0)
        self.divisor = state_dict.get("divisor", self.steps)
        self._resumed_in_pass = state_dict.get("num_in_pass", 0), state_dict.get("num_in_last_batch", 0)
        self._pass = None

    @property
    def steps(self) -> int:
        return self.plugin.num_steps or 1

    def set_steps(self, steps: int) -> None:
        """`steps` from the next micro-batch on."""
        self.plugin = replace(self.plugin, num_steps=steps)
        self.divisor = steps

    def forget(self) -> None:
        """Begin anew, with no micro-batch done."""
        self._num_done = self._num_weighted = 0
        lockstep.stand_at("micro-batches", 0)
        self._progress.sync_gradients = True

    def micro_batch(self, models: Sequence[nn.Module], parameters: Callable[[], Iterable[torch.Tensor]]) -> MicroBatch:
        """A block for one micro-batch: forward, backward, optimizer step. `parameters`: those whose gradients
        accumulate, asked for where a window ends early.
        """
        return MicroBatch(self, models, parameters)

    def share(self, loss: torch.Tensor, num_items: torch.Tensor | float | None, num_ranks: int) -> torch.Tensor:
        """What to differentiate, so that gradients added up over the step and averaged over the ranks are right.

        `loss` is a mean over the micro-batch; with `num_items`, the sum over its items, and `num_items` is how many
        there are in the whole step on all ranks.
        """
        if num_items is not None:
            self._num_weighted += 1
            return loss * (num_ranks / num_items)
        return loss / self.divisor if self.divisor > 1 else loss

    def begin(self, parameters: Callable[[], Iterable[torch.Tensor]]) -> bool:
        """Count a micro-batch; whether it ends the step."""
        progress, steps = self._progress, self.steps
        self.is_used = True
        self._num_done += 1
        self.divisor = steps
        is_last = steps > 1 and self.plugin.sync_with_dataloader and self._ends_the_data()
        progress.sync_gradients = is_last or self._num_done >= steps
        lockstep.stand_at("micro-batches", 0 if progress.sync_gradients else self._num_done)
        if not progress.sync_gradients:
            return False
        # A sum over items needs no correction: its number of items is that of the step as it is.
        if self._num_done < steps and not self._num_weighted:
            self.divisor = self._num_done
            if self._num_done > 1:  # else what gradients there are come from before the window
                _scale_gradients(parameters(), steps / self._num_done)
        self._num_done = self._num_weighted = 0
        return True

    def _ends_the_data(self) -> bool:
        loader = self._progress.active_dataloader
        if loader is None:
            return False
        current_pass = loader.pass_token
        if current_pass is not self._pass:
            self._pass = current_pass
            self._num_in_pass, self._num_in_last_batch = self._resumed_in_pass
            self._resumed_in_pass = 0, 0
        if not loader.end_of_dataloader:
            self._num_in_pass += 1
            return False
        self._num_in_last_batch += 1
        return self._num_in_last_batch >= _num_per_batch(loader, self._num_in_pass)


class MicroBatch:
    """The block of one micro-batch. Whether it ends the step is decided when it is entered."""

    __slots__ = ("_accumulation", "_models", "_parameters", "_stack")

    def __init__(
        self, accumulation: Accumulation, models: Sequence[nn.Module],
        parameters: Callable[[], Iterable[torch.Tensor]],
    ) -> None:  # fmt: skip
        self._accumulation = accumulation
        self._models = models
        self._parameters = parameters
        self._stack: ExitStack | None = None

    def __enter__(self) -> None:
        ends_step = self._accumulation.begin(self._parameters)
        if ends_step or self._accumulation.plugin.sync_each_batch or not self._models:
            return
        with ExitStack() as stack:
            for model in self._models:
                stack.enter_context(without_synchronisation(model))
            self._stack = stack.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stack is not None:
            self._stack.close()
            self._stack = None


def _num_per_batch(loader: object, num_before_last: int) -> int:
    """Into how many micro-batches the loop cuts each batch of `loader`, as far as `num_before_last` of them show."""
    try:
        num_batches = len(loader)  # type: ignore[arg-type]  # raises where there is no length
    except TypeError:
        return 1
    if num_batches < 2 or num_before_last % (num_batches - 1):  # noqa: PLR2004  one batch shows nothing
        return 1
    return max(1, num_before_last // (num_batches - 1))


def _scale_gradients(parameters: Iterable[torch.Tensor], factor: float) -> None:
    """Bring what has accumulated so far, divided by `steps`, to the divisor of a window that ends early."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
