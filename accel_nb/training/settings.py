"""Plain settings that `Accelerator` takes. Field names and defaults are those of ``accelerate.utils.dataclasses``
(1.15), so that code moves by changing an import. A setting that nobody can honour is refused where it is used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, Self

import torch
from torch.nn.parallel import DistributedDataParallel

from ..protocol import environment
from .choices import DDPCommunicationHookType, DynamoBackend


class KwargsHandler:
    """Base of the settings that are handed to a constructor of torch's as keyword arguments."""

    def to_dict(self) -> dict[str, Any]:
        """A deep copy of the fields."""
        return copy.deepcopy(self.__dict__)

    def to_kwargs(self) -> dict[str, Any]:
        """The fields that differ from the class's defaults, whatever the environment says."""
        defaults = self._defaults().to_dict()
        return {name: value for name, value in self.to_dict().items() if defaults[name] != value}

    @classmethod
    def _defaults(cls) -> Self:
        """An instance as it is without arguments and without variables of the environment."""
        return cls()


@dataclass
class AutocastKwargs(KwargsHandler):
    """How ``torch.autocast`` behaves, in prepared models and in `Accelerator.autocast`."""

    enabled: bool = True
    cache_enabled: bool | None = None
    """None: torch's choice."""


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """How models are wrapped in DistributedDataParallel. The fields are its arguments, but for those that begin with
    ``comm_``: these say how gradients are compressed on their way.
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False

    comm_hook: DDPCommunicationHookType = DDPCommunicationHookType.NO
    comm_wrapper: DDPCommunicationHookType = DDPCommunicationHookType.NO
    """FP16 or BF16: `comm_hook` gets and gives gradients of that type. Of no effect without a `comm_hook`."""
    comm_state_option: dict[str, Any] = field(default_factory=dict)
    """Arguments of ``PowerSGDState``, for the hooks that have a state."""

    def to_dict(
        self, ignore_keys: tuple[str, ...] = ("comm_hook", "comm_wrapper", "comm_state_option")
    ) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name not in ignore_keys}

    def register_comm_hook(self, model: DistributedDataParallel) -> None:
        """Let `model` compress its gradients as this says. ValueError for a `comm_wrapper` that is none."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        kind = DDPCommunicationHookType
        if self.comm_wrapper not in (kind.NO, kind.FP16, kind.BF16):
            raise ValueError(f"comm_wrapper={self.comm_wrapper!r} cannot wrap a hook; choose NO, FP16 or BF16.")
        hooks: dict[DDPCommunicationHookType, Callable[..., Any]] = {
            kind.FP16: default_hooks.fp16_compress_hook,
            kind.BF16: default_hooks.bf16_compress_hook,
            kind.POWER_SGD: powerSGD_hook.powerSGD_hook,
            kind.BATCHED_POWER_SGD: powerSGD_hook.batched_powerSGD_hook,
        }
        if self.comm_hook not in hooks:
            return
        hook = hooks[self.comm_hook]
        if self.comm_wrapper is kind.FP16:
            hook = default_hooks.fp16_compress_wrapper(hook)
        if self.comm_wrapper is kind.BF16:
            hook = default_hooks.bf16_compress_wrapper(hook)
        has_state = self.comm_hook in (kind.POWER_SGD, kind.BATCHED_POWER_SGD)
        state = powerSGD_hook.PowerSGDState(None, **self.comm_state_option) if has_state else None
        model.register_comm_hook(state, hook)


@dataclass
class GradScalerKwargs(KwargsHandler):
    """How the loss scale of fp16 training moves: the arguments of ``torch.amp.GradScaler``."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    """Steps without an overflow before the scale grows."""
    enabled: bool = True


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """How the process group is opened. `timeout` is that of each collective."""

    backend: str | None = "nccl"
    """As it stands here, and None: what fits the device."""
    init_method: str | None = None
    timeout: timedelta | None = None
    """None: 10 minutes for NCCL, 30 for others, which are torch's defaults."""

    def __post_init__(self) -> None:
        if self.timeout is None:
            self.timeout = timedelta(seconds=600 if self.backend == "nccl" else 1800)


@dataclass
class ProfileKwargs(KwargsHandler):
    """How `Accelerator.profile` records: the arguments of ``torch.profiler.profile``, and where traces go."""

    activities: list[Literal["cpu", "xpu", "mtia", "cuda", "hpu"]] | None = None
    """None: all that torch can record here."""
    schedule_option: dict[str, int] | None = None
    """Arguments of ``torch.profiler.schedule``: wait, warmup, active, repeat, skip_first; in steps."""
    on_trace_ready: Callable[..., Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None
    """Folder that gets a Chrome trace of each rank when the block ends; None: none is written."""

    def build(self) -> torch.profiler.profile:
        """The profiler, not started. ValueError for an activity that torch does not know."""
        schedule = None if self.schedule_option is None else torch.profiler.schedule(**self.schedule_option)
        return torch.profiler.profile(
            activities=None if self.activities is None else [_activity(name) for name in self.activities],
            schedule=schedule,
            on_trace_ready=self.on_trace_ready,
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            with_flops=self.with_flops,
            with_modules=self.with_modules,
        )


def _activity(name: str) -> torch.profiler.ProfilerActivity:
    known = {kind.lower(): member for kind, member in torch.profiler.ProfilerActivity.__members__.items()}
    if name not in known:
        raise ValueError(f"ProfileKwargs(activities=...) holds {name!r}; torch knows {', '.join(map(repr, known))}.")
    return known[name]


@dataclass
class DataLoaderConfiguration:
    """How prepared loaders share their data among the ranks."""

    split_batches: bool = False
    """A loader's batch size is that of all ranks together, instead of one rank's."""
    dispatch_batches: bool | None = None
    """Rank 0 reads and sends. None: for iterable datasets only."""
    even_batches: bool = True
    """Fill up the last step with samples from the start, so that all ranks have as many batches, equally large."""
    use_seedable_sampler: bool = False
    """Shuffle in an order that depends on the seed and the epoch alone."""
    data_seed: int | None = None
    """Of that order; None: torch's seed when the loader is prepared."""
    non_blocking: bool = False
    """Copy batches to the device while the rank goes on; needs pinned memory to have an effect."""
    use_stateful_dataloader: bool = False
    """Make ``torchdata.stateful_dataloader.StatefulDataLoader``, which needs torchdata."""


@dataclass
class ProjectConfiguration:
    """Where an `Accelerator` keeps logs and checkpoints."""

    project_dir: str | None = None
    logging_dir: str | None = None
    """Of trackers that write files; None: `project_dir`."""
    automatic_checkpoint_naming: bool = False
    """`save_state` names its folders itself, below ``project_dir/checkpoints``."""
    total_limit: int | None = None
    """How many of those are kept, the newest; None: all."""
    iteration: int = 0
    """Number of the next one."""
    save_on_each_node: bool = False

    def __post_init__(self) -> None:
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | None = None) -> None:
        self.project_dir = project_dir
        if self.logging_dir is None:
            self.logging_dir = project_dir


@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """How `Accelerator.accumulate` counts."""

    num_steps: int | None = None
    """Micro-batches per optimizer step; None: 1."""
    adjust_scheduler: bool = True
    """A prepared scheduler's step counter also counts the calls between updates. The learning rate moves at updates
    alone, as in upstream; a schedule is made for as many steps as there are updates.
    """
    sync_with_dataloader: bool = True
    """The end of a loader ends the optimizer step, too."""
    sync_each_batch: bool = False
    """Average gradients over the ranks at every micro-batch: takes less memory with some wrappers, and more time."""


@dataclass
class TorchDynamoPlugin(KwargsHandler):
    """How prepared models are compiled. What is None comes from ``ACCELERATE_DYNAMO_*``, else is torch's default."""

    backend: DynamoBackend | str | None = None
    """A `DynamoBackend` or its name in any case; "no": models are not compiled."""
    mode: str | None = None
    fullgraph: bool | None = None
    dynamic: bool | None = None
    options: Any = None
    disable: bool = False
    use_regional_compilation: bool | None = None
    """Compile the blocks that a model repeats, once for all, instead of the model as a whole."""

    def __post_init__(self) -> None:
        variables = environment.dynamo_variables()
        chosen = str(self.backend or variables.get("BACKEND", "no")).upper()
        if chosen not in DynamoBackend:
            raise ValueError(
                f"dynamo backend {self.backend!r} is unknown; choose one of "
                f"{', '.join(repr(name.lower()) for name in DynamoBackend.list())}."
            )
        self.backend = DynamoBackend(chosen)
        self.mode = self.mode or variables.get("MODE", "default")
        if self.fullgraph is None:
            self.fullgraph = environment.is_true(variables.get("USE_FULLGRAPH", ""))
        if self.use_regional_compilation is None:
            self.use_regional_compilation = environment.is_true(variables.get("USE_REGIONAL_COMPILATION", ""))
        if self.dynamic is None and "USE_DYNAMIC" in variables:
            self.dynamic = environment.is_true(variables["USE_DYNAMIC"])

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "backend": str(self.backend).lower()}

    def to_kwargs(self) -> dict[str, Any]:
        """Arguments of ``torch.compile``."""
        arguments = super().to_kwargs()
        arguments.pop("use_regional_compilation", None)
        return arguments

    @classmethod
    def _defaults(cls) -> Self:
        plain = cls(backend="no", mode="default", fullgraph=False, use_regional_compilation=False)
        plain.dynamic = None
        return plain
