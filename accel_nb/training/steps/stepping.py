"""The methods of an `Accelerator` that a training step is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from ...protocol import sink
from ...protocol.events import RunHeader
from ..arguments import check_accumulation_steps
from ..checkpoints.checkpoints import Checkpoints
from ..configured import Configured
from ..data.prepared import PreparedLoader
from ..models import parallel
from ..models.precision import Precision
from ..ranks.rank_member import RankMember
from ..ranks.state import GradientState
from ..settings import AutocastKwargs, ProfileKwargs
from . import evenness
from .accumulation import Accumulation
from .forgotten import warn_of_forgotten
from .optimizer import AcceleratedOptimizer
from .profiling import profiled
from .run_header import announce
from .step_parameters import at_true_size, parameters_of
from .windows import MicroBatches, accumulation_windows

Item = TypeVar("Item")


class Stepping(RankMember, Configured):
    """Base of `Accelerator`."""

    gradient_state: GradientState
    scaler: torch.amp.GradScaler | None
    """Of fp16 training; None in other precisions."""
    _accumulation: Accumulation
    _checkpoints: Checkpoints
    _precision: Precision
    _models: list[nn.Module]
    _optimizers: list[AcceleratedOptimizer]
    _dataloaders: list[PreparedLoader]
    _average_gradients: Callable[[Iterable[torch.Tensor]], None] | None
    """Where no wrapper of the models does it."""
    _looks_for_forgotten: bool
    """Whether the next backward is followed by a look at what was not prepared."""
    _header: RunHeader | None = None
    """What the run was told last."""

    @property
    def gradient_accumulation_steps(self) -> int:
        return self._accumulation.steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        """From the next micro-batch on. ValueError for a number below 1."""
        check_accumulation_steps(steps)
        self._accumulation.set_steps(steps)
        self.gradient_state.accumulation = self._accumulation.plugin

    def begin_step_anew(self) -> None:
        """The next micro-batch is the first of an optimizer step, whatever was done of one before."""
        self._accumulation.forget()

    @property
    def sync_gradients(self) -> bool:
        """True when the current micro-batch ends an optimizer step."""
        return self.gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        """For loops that count their micro-batches themselves."""
        self.gradient_state.sync_gradients = value

    @property
    def update_count(self) -> int:
        """How often the prepared optimizers stepped; of several, the one that stepped most."""
        return max((optimizer.num_updates for optimizer in self._optimizers), default=0)

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last step of any prepared optimizer was skipped because gradients were not finite."""
        return any(optimizer.step_was_skipped for optimizer in self._optimizers)

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """One micro-batch of `gradient_accumulation_steps`. Within the block prepared optimizers and schedulers step,
        and `models` average their gradients over the ranks, only when it is the last one.
        """
        return self._accumulation.micro_batch(models, lambda: parameters_of(self._optimizers, models))

    def micro_batches(self, items: Iterable[Item]) -> MicroBatches[Item]:
        """`items`, to be looped over, each in an `accumulate` block: the last one ends the optimizer step, if a loop
        over a prepared loader around it is at its last batch, too. For batches that are cut into pieces, and for data
        that come from no prepared loader.
        """
        return MicroBatches(items, self.gradient_state)

    def accumulation_windows(
        self, loader: Iterable[Item], count_items: Callable[[Item], int | torch.Tensor]
    ) -> Iterator[tuple[MicroBatches[Item], torch.Tensor]]:
        """`loader` in windows of `gradient_accumulation_steps` batches, the last as long as it is, and with each window
        how many items all its batches have on all ranks together, as `backward` takes it.

        `count_items`: how many items one batch has, such as tokens that the loss counts.
        """
        return accumulation_windows(
            loader, self.gradient_accumulation_steps, count_items, self.collectives, self.gradient_state
        )

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """Backward within the block leaves `model`'s gradients to this rank alone."""
        return parallel.without_synchronisation(model)

    def trigger_sync_in_backward(self, model: nn.Module) -> AbstractContextManager[None]:
        """Backward within the block averages `model`'s gradients, although its forward ran in `no_sync`."""
        return parallel.with_synchronisation(model)

    @contextmanager
    def join_uneven_inputs(self, joinables: Sequence[Any], even_batches: bool | None = None) -> Iterator[None]:
        """Ranks that run out of batches within the block wait for the others, taking part in what `joinables` (prepared
        models) do together. Of effect where batches are not even.

        `even_batches`: within the block, what prepared loaders do about their last step; None: as they were prepared.
        """
        even = self.even_batches if even_batches is None else even_batches
        loaders = self._dataloaders if self.use_distributed and even_batches is not None else ()
        try:
            with evenness.set_for(loaders, even=even), parallel.joined(joinables, enabled=not even):
                yield
        finally:
            self._checkpoints.note_joined()

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> AbstractContextManager[object]:
        """Compute the block in the chosen precision, for what is outside a prepared model's forward.

        `autocast_handler`: instead of the one among the Accelerator's `kwargs_handlers`.
        """
        return self._precision.autocast(self.device, autocast_handler or self.autocast_handler)

    def profile(self, profile_handler: ProfileKwargs | None = None) -> AbstractContextManager[torch.profiler.profile]:
        """Record the block with ``torch.profiler``; gives the profiler. With an `output_trace_dir` every rank leaves
        ``profile_{rank}.json`` there, and must enter the block.

        `profile_handler`: instead of the one among the Accelerator's `kwargs_handlers`.
        """
        return profiled(self, profile_handler or self.profile_handler or ProfileKwargs())

    def backward(
        self, loss: torch.Tensor, *, num_items: torch.Tensor | float | None = None, **kwargs: Any  # noqa: ANN401
    ) -> None:  # fmt: skip
        """``loss.backward(**kwargs)``, divided by the number of micro-batches per step, scaled in fp16.

        `num_items`: `loss` is the sum over the items of this micro-batch, and this many there are in the whole step, on
        all ranks and in all its micro-batches. The step then is the mean over items, however they are spread.

        TypeError for None, ValueError for a loss that no gradient can be taken of.
        """
        _refuse_lost(loss)
        if parallel.waits_for_others(self._models):
            self._checkpoints.note_backward()
        loss = self._accumulation.share(loss, num_items, self.num_processes)
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        loss.backward(**kwargs)
        if self._average_gradients is not None and self.sync_gradients:
            self._average_gradients(parameters_of(self._optimizers, self._models))
        if self._looks_for_forgotten:
            self._looks_for_forgotten = False
            warn_of_forgotten(self._models, self._optimizers, len(self._dataloaders), self.num_processes)
        if self._optimizers and self._optimizers[0].pace is not None:
            self._announce()

    def _announce(self) -> None:
        """The run's header, once what it says is known."""
        if not (self.is_main_process and sink.is_open()):
            self._optimizers[0].pace = None
            return
        accumulation = self._accumulation
        header = announce(
            self._optimizers, self.gradient_state, self.num_processes, self._precision.name, self._header,
            fills_up=accumulation.is_used and accumulation.plugin.sync_with_dataloader,
        )  # fmt: skip
        if header is not None:
            self._header, self._optimizers[0].pace = header, None

    def unscale_gradients(self, optimizer: AcceleratedOptimizer | Sequence[AcceleratedOptimizer] | None = None) -> None:
        """Bring fp16 gradients to their true size before they are looked at. None: those of all prepared optimizers."""
        optimizers = self._optimizers if optimizer is None else optimizer
        for one in [optimizers] if isinstance(optimizers, AcceleratedOptimizer) else optimizers:
            one.unscale()

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0
    ) -> torch.Tensor | None:
        """Clip true-size gradients to a total norm of `max_norm`; gives the norm that they had.

        None, and nothing is done, while they accumulate.
        """
        if not self.sync_gradients:
            return None
        return nn.utils.clip_grad_norm_(at_true_size(parameters, self._optimizers), max_norm, norm_type)

    def clip_grad_value_(self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float) -> None:
        """Clip each true-size gradient to [-clip_value, clip_value]. Nothing is done while they accumulate."""
        if self.sync_gradients:
            nn.utils.clip_grad_value_(at_true_size(parameters, self._optimizers), clip_value)


def _refuse_lost(loss: object) -> None:
    """What is lost on the way from the model to `backward`."""
    if loss is None:
        raise TypeError(
            "backward was given None instead of a loss. Many models return a loss only when they are given labels: "
            "pass those, or compute the loss from the model's output."
        )
    if isinstance(loss, torch.Tensor) and not loss.requires_grad:
        raise ValueError(
            "backward was given a loss that depends on no trainable parameter (it does not require grad). Compute it "
            "outside torch.no_grad() and inference_mode(), without detach(), item() or argmax() on the way, from a "
            "model whose parameters are not all frozen."
        )
