"""The façade of the training layer: it holds the parts and delegates to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from . import arguments, metrics
from .checkpoints.checkpointed import Checkpointed
from .checkpoints.checkpoints import Checkpoints
from .checkpoints.parts import Parts
from .checkpoints.progress import Progress
from .choices import RNGType
from .compat.versions import check_os_kernel
from .data.prepared import PreparedLoader
from .data.preparing import prepare_data_loader
from .data.skipping import skip_first_batches
from .memory import effective_batch, held
from .memory.release import release_memory
from .meshed import Meshed
from .metrics import MetricMean
from .models import parallel
from .models.compilation import compile_as
from .models.model_agreement import refuse_different_models
from .models.model_anatomy import refuse_spread
from .models.precision import AutocastView, refuse_half_weights, with_autocast
from .models.unwrapping import unwrap
from .operations import collectives
from .operations.nested import Data
from .operations.transport import Collectives
from .parallelism import ParallelismConfig, choose_parallelism, laid_out
from .ranks import placement
from .ranks.process_group import RankFacts
from .ranks.randomness import check_rng_types, separate_noise
from .ranks.state import AcceleratorState, GradientState, PartialState
from .ranks.trigger import Trigger
from .settings import (
    DataLoaderConfiguration,
    GradientAccumulationPlugin,
    KwargsHandler,
    ProjectConfiguration,
    TorchDynamoPlugin,
)
from .steps.accumulation import Accumulation
from .steps.forgotten import warn_of_forgotten_optimizer
from .steps.loss_scaler import make_scaler
from .steps.optimizer import AcceleratedOptimizer
from .steps.scheduler import SCHEDULER_STEPS, AcceleratedScheduler, SchedulerSteps, describe_pace
from .steps.stepping import Stepping
from .tracking.tracked import Tracked
from .tracking.trackers import Trackers

Prepared = TypeVar("Prepared")


class Accelerator(Stepping, Checkpointed, Tracked, Meshed):
    """Makes a plain PyTorch loop run on every rank of a launch, or in one process alone.

    Parameters and their meaning are those of ``accelerate.Accelerator`` (1.15). Those that this version has not got
    are refused with TrainingError.

    Args:
        device_placement: move models and batches to this rank's device.
        split_batches: a loader's batch size is that of all ranks together, instead of one rank's.
        mixed_precision: "no", "bf16" or "fp16". None: that of the Accelerator made before in this process,
            else what the launch says, else "no".
        gradient_accumulation_steps: micro-batches per optimizer step, counted by `accumulate`. 1: what the launch says,
            else 1.
        cpu: compute on the CPU.
        dataloader_config: how prepared loaders share their data.
        rng_types: generators that loaders synchronise before each pass: "torch", "cuda", "generator" (the sampler's
            own, which is synchronised in any case).
        log_with: trackers, by name or made by the user.
        project_dir: folder of logs and checkpoints.
        project_config: the same in more detail.
        gradient_accumulation_plugin: instead of `gradient_accumulation_steps`, in more detail.
        step_scheduler_with_optimizer: a prepared scheduler advances only when its optimizers stepped.
        kwargs_handlers: settings of process group, DistributedDataParallel, loss scaling, autocast and profiling; at
            most one of each.
        dynamo_backend: compile prepared models with this backend of ``torch.compile``.
        dynamo_plugin: instead of `dynamo_backend`, in more detail.
        scheduler_steps: "per_process": a prepared scheduler advances once per rank at each update, unless batches are
            split; "per_call": once.
        parallelism_config: how many ranks there are along each dimension of a mesh; so far, only copies of the model.
            None: what the launch says, else all ranks are copies.
        deepspeed_plugin, fsdp_plugin, torch_tp_plugin, megatron_lm_plugin, deepspeed_plugins: only None is accepted.
    """

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = False,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: object = None,
        fsdp_plugin: object = None,
        torch_tp_plugin: object = None,
        megatron_lm_plugin: object = None,
        rng_types: Sequence[str | RNGType] | None = None,
        log_with: Any = None,  # noqa: ANN401  names, trackers, or a list of both
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: Sequence[KwargsHandler] | None = None,
        dynamo_backend: str | None = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        deepspeed_plugins: object = None,
        parallelism_config: ParallelismConfig | None = None,
        *,
        scheduler_steps: SchedulerSteps = "per_process",
    ) -> None:
        arguments.refuse_absent(
            deepspeed_plugin=deepspeed_plugin, fsdp_plugin=fsdp_plugin, torch_tp_plugin=torch_tp_plugin,
            megatron_lm_plugin=megatron_lm_plugin, deepspeed_plugins=deepspeed_plugins,
        )  # fmt: skip
        arguments.check_choice("scheduler_steps", scheduler_steps, SCHEDULER_STEPS)
        self.rng_types = arguments.names_of(rng_types)
        check_rng_types(self.rng_types)
        self._handlers = arguments.choose_handlers(kwargs_handlers)
        self.dataloader_config = arguments.choose_loading(split_batches, dataloader_config)
        self.project_configuration = arguments.choose_project(project_dir, project_config)
        accumulation = effective_batch.adapted(
            arguments.choose_accumulation(gradient_accumulation_steps, gradient_accumulation_plugin)
        )
        self._compilation = arguments.choose_compilation(dynamo_backend, dynamo_plugin)
        layout = choose_parallelism(parallelism_config)
        self._trackers = Trackers(log_with, self.logging_dir)
        self.device_placement = device_placement
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self.scheduler_steps = scheduler_steps
        check_os_kernel()
        self.state = AcceleratorState(mixed_precision, cpu, self._compilation, **self._handlers.of_process_group())
        self.gradient_state = GradientState(accumulation)
        self._facts = self.state.facts
        self._parallelism = None if layout is None else laid_out(layout, self._facts)
        self._precision = self.state.precision
        self._accumulation = Accumulation(accumulation, self.gradient_state)
        self._trigger = Trigger()
        self.scaler = make_scaler(self._precision, self.device, self.scaler_handler)
        self._looks_for_forgotten = self.use_distributed
        self._models: list[nn.Module] = []
        self._optimizers: list[AcceleratedOptimizer] = []
        self._average_gradients = placement.gradient_averager(self.device)
        self._dataloaders: list[PreparedLoader] = []
        self._schedulers: list[AcceleratedScheduler] = []
        self._checkpoints = Checkpoints(self._facts, self.project_configuration)
        held.note(self)
        if not self._facts.launched:
            for sentence in self.state.notes(mixed_precision=mixed_precision, cpu=cpu):
                self.print(sentence)

    @property
    def facts(self) -> RankFacts:
        return self._facts

    @property
    def collectives(self) -> Collectives:
        return PartialState().collectives

    @property
    def mixed_precision(self) -> str:
        return self._precision.name

    def prepare(self, *args: Any, device_placement: Sequence[bool | None] | None = None) -> Any:  # noqa: ANN401
        """The given models, optimizers, loaders and schedulers made ready for this rank, in the order given.

        Any number, in any order; one object comes back by itself, several as a tuple. What is none of these comes back
        as it is, and so does what is prepared already, by this Accelerator or another. `device_placement`: one entry
        per object, instead of the Accelerator's; ValueError for another number. Every rank must call this.
        """
        if device_placement is None:
            device_placement = [None] * len(args)
        if len(device_placement) != len(args):
            raise ValueError(f"device_placement has {len(device_placement)} entries for {len(args)} objects.")
        # Schedulers last: they look for their prepared optimizers, which may come after them.
        prepared = [self._prepare_one(given, place) for given, place in zip(args, device_placement, strict=True)]
        schedules = LRScheduler | AcceleratedScheduler
        result = [self.prepare_scheduler(one) if isinstance(one, schedules) else one for one in prepared]
        return result[0] if len(result) == 1 else tuple(result)

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """`model` on this rank's device, wrapped so that it computes in the chosen precision and trains together with
        the other ranks'. `evaluation_mode`: it is not trained, so gradients need not be averaged.
        """
        if parallel.is_wrapped(model) or isinstance(model, AutocastView) or any(model is one for one in self._models):
            return _known_to(self._models, model)
        refuse_spread(model, self.num_processes, is_trained=not evaluation_mode)
        if self._places(device_placement) and not self.verify_device_map(model):
            model = placement.moved(model, self.device)
        refuse_half_weights(model, self._precision)
        separate_noise(self.state)
        prepared = compile_as(model, self._compilation)
        prepared = with_autocast(prepared, self._precision, self.device, self.autocast_handler)
        if not evaluation_mode:
            refuse_different_models(model, self.collectives)
            prepared = parallel.wrap_model(prepared, self._facts, self.ddp_handler)
        return _known_to(self._models, prepared)

    def prepare_optimizer(self, optimizer: Optimizer, device_placement: bool | None = None) -> AcceleratedOptimizer:
        """`optimizer` so that it steps only when gradients are complete and finite."""
        if isinstance(optimizer, AcceleratedOptimizer):
            return _known_to(self._optimizers, optimizer)
        prepared = AcceleratedOptimizer(optimizer, self._places(device_placement), self.scaler)
        prepared.end_step = placement.step_ender(self.device)
        return _known_to(self._optimizers, prepared)

    def prepare_scheduler(self, scheduler: LRScheduler | AcceleratedScheduler) -> AcceleratedScheduler:
        """`scheduler` so that it follows its optimizer, if that is prepared, else all prepared ones.

        Prints one line when it will advance more than one step per call.
        """
        if isinstance(scheduler, AcceleratedScheduler):
            return _known_to(self._schedulers, scheduler)
        own = [one for one in self._optimizers if scheduler.optimizer in (one, one.optimizer)]
        if self.use_distributed and not own:
            warn_of_forgotten_optimizer(scheduler, self._optimizers)
        prepared = AcceleratedScheduler(
            scheduler,
            own or self._optimizers,
            self.step_scheduler_with_optimizer,
            self.split_batches,
            steps_per_call=1 if self.scheduler_steps == "per_call" else None,
        )
        if prepared.steps_per_call > 1 and self.is_main_process:
            self.print(describe_pace(scheduler, prepared.steps_per_call, self.num_processes))
        return _known_to(self._schedulers, prepared)

    def prepare_data_loader(
        self,
        data_loader: DataLoader[Any],
        device_placement: bool | None = None,
        slice_fn_for_dispatch: Callable[..., Data] | None = None,
    ) -> PreparedLoader:
        """A loader over the same data that gives this rank's share and puts it on this rank's device.

        `slice_fn_for_dispatch`: ``f(batch, slice, process_index=, num_processes=)`` cuts batches that rank 0 sends.
        """
        prepared = prepare_data_loader(
            data_loader, self.device, self.num_processes, self.process_index, rng_types=self.rng_types,
            put_on_device=self._places(device_placement), slice_fn_for_dispatch=slice_fn_for_dispatch,
            **vars(self.dataloader_config),
        )  # fmt: skip
        return _known_to(self._dataloaders, prepared)

    def skip_first_batches(self, dataloader: DataLoader[Any], num_batches: int = 0) -> DataLoader[Any]:
        """A loader like `dataloader` that leaves out the first `num_batches` of this rank's."""
        return skip_first_batches(dataloader, num_batches)

    def gather(self, tensor: Data) -> Data:
        """`tensor` (any nested data) with the tensors of all ranks joined along dimension 0, by rank.

        What fills up a last batch is included; `gather_for_metrics` leaves it out.
        """
        return collectives.gather(tensor)

    def gather_for_metrics(self, input_data: Data, use_gather_object: bool = False) -> Data:
        """`input_data` of all ranks, each sample of the prepared loader that is being read once and in order.

        `use_gather_object`: `input_data` is a list with one item per sample, of any kind and shape.
        """
        return metrics.gather_for_metrics(
            input_data, self.collectives, self.gradient_state, as_objects=use_gather_object
        )

    def metric_mean(self) -> MetricMean:
        """A running mean that counts each sample of a prepared loader once; see there."""
        return metrics.MetricMean(self.collectives, self.process_index, self.gradient_state)

    def reduce(self, tensor: Data, reduction: str = "sum", scale: float = 1.0) -> Data:
        """`tensor` (any nested data) combined over all ranks by "sum", "mean", "max" or "min", times `scale`."""
        return collectives.reduce(tensor, reduction, scale)

    def pad_across_processes(
        self, tensor: Data, dim: int = 0, pad_index: float = 0, pad_first: bool = False
    ) -> Data:  # fmt: skip
        """`tensor` (any nested data) as long along `dim` as the longest rank's, filled with `pad_index`."""
        return collectives.pad_across_processes(tensor, dim, pad_index, pad_first)

    def set_trigger(self) -> None:
        """Raise a flag that every rank sees at its next `check_trigger`, whichever rank has raised it."""
        self._trigger.set()

    def check_trigger(self) -> bool:
        """Whether any rank has called `set_trigger` since the last check. All ranks must call it, at the same step."""
        return self._trigger.check(self.collectives)

    set_breakpoint, check_breakpoint = set_trigger, check_trigger

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = False, keep_torch_compile: bool = True
    ) -> nn.Module:
        """The very object that was prepared, its `forward` as its class has it; `model` stays prepared.

        `keep_fp32_wrapper`: instead, one that shares everything with it and still computes in mixed precision, which is
        upstream's default. `keep_torch_compile`: compiled, if it was.
        """
        return unwrap(model, keep_autocast=keep_fp32_wrapper, keep_compiled=keep_torch_compile)

    @property
    def prepared_lists(self) -> tuple[list[Any], ...]:
        """The lists of what this Accelerator has prepared and knows."""
        return self._models, self._optimizers, self._schedulers, self._dataloaders

    def free_memory(self, *objects: object) -> list[None]:
        """Let go of everything that was prepared, and of `objects`: gives as many None to put in their places. What
        nobody else holds is freed, and so is the memory that torch keeps for later.
        """
        for optimizer in self._optimizers:
            optimizer.leave_out_step()
        for prepared in self.prepared_lists:
            prepared.clear()
        self._accumulation.forget()
        return release_memory(*objects)

    def clear(self, *objects: object) -> list[None]:
        """`free_memory` under its other name."""
        return self.free_memory(*objects)

    def end_training(self) -> None:
        """Finish the trackers and close the process group, once every rank has called this. The next `Accelerator`
        opens it again.
        """
        try:
            self._trackers.finish()
        finally:
            # A rank that left at once would break up groups that others are still making.
            self.wait_for_everyone()
            self.state.destroy_process_group()

    def _prepare_one(self, given: Any, device_placement: bool | None) -> Any:  # noqa: ANN401
        if isinstance(given, DataLoader):
            return self.prepare_data_loader(given, device_placement)
        if isinstance(given, nn.Module):
            return self.prepare_model(given, device_placement)
        if isinstance(given, Optimizer):
            return self.prepare_optimizer(given, device_placement)
        return given

    def _parts(self) -> Parts:
        return Parts(
            models=[self.unwrap_model(model, keep_torch_compile=False) for model in self._models],
            optimizers=self._optimizers, schedulers=self._schedulers, loaders=self._dataloaders, scaler=self.scaler,
            custom=self._checkpoints.registered,
            progress=Progress(
                accumulation=self._accumulation, gradient_state=self.gradient_state, trigger=self._trigger,
                optimizers=self._optimizers,
            ),
        )  # fmt: skip

    def _places(self, device_placement: bool | None) -> bool:
        return self.device_placement if device_placement is None else device_placement


def _known_to(known: list[Prepared], prepared: Prepared) -> Prepared:
    """`prepared`, which is in `known` from now on. By identity: loaders and models may compare as they like."""
    if not any(one is prepared for one in known):
        known.append(prepared)
    return prepared
