"""How ranks are laid out over the dimensions of a mesh: `ParallelismConfig`, and what is asked of a dimension.

Names, order and environment variables are those of ``accelerate/parallelism_config.py`` (1.15). A layout is a plain
value, which may describe more than this version can train; `laid_out` says what it can.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh

from ..errors import TrainingError
from ..protocol import environment
from .ranks.process_group import RankFacts

_MESH_ORDER = ("dp_replicate", "dp_shard", "cp", "sp", "tp")
"""Outermost first: ranks that are neighbours in the last ones talk most."""
_COMM_STRATEGIES = ("allgather", "alltoall")
_ATTENTIONS = ("flash_attention_2", "flash_attention_3", "sdpa")


@dataclass
class TorchTensorParallelConfig:
    """How layers are split over the ranks of ``tp``. TrainingError for `enable_async_tp`, which does not exist yet,
    there or here.
    """

    enable_async_tp: bool = False

    def __post_init__(self) -> None:
        if self.enable_async_tp:
            raise TrainingError(
                "TorchTensorParallelConfig(enable_async_tp=True) asks for communication that overlaps with computation "
                "in tensor parallelism, which this version of accel_nb has not got; leave it out."
            )


@dataclass
class TorchTensorParallelPlugin:
    """Upstream's older way to say ``ParallelismConfig(tp_size=...)``, for ``Accelerator(torch_tp_plugin=...)``."""

    tp_size: int = 1
    torch_device_mesh: DeviceMesh | None = None


@dataclass
class TorchContextParallelConfig:
    """How ranks of ``cp`` exchange their parts of a sequence. ValueError for an unknown strategy."""

    cp_comm_strategy: str | None = None
    """ "allgather" or "alltoall". None: ``PARALLELISM_CONFIG_CP_COMM_STRATEGY``, else "allgather"."""

    def __post_init__(self) -> None:
        if self.cp_comm_strategy is None:
            self.cp_comm_strategy = environment.parallelism_variables().get("CP_COMM_STRATEGY", "allgather")
        _check_choice("cp_comm_strategy", self.cp_comm_strategy, _COMM_STRATEGIES)


@dataclass
class DeepSpeedSequenceParallelConfig:
    """How DeepSpeed shares out sequences over the ranks of ``sp``. ValueError for what does not fit together."""

    sp_seq_length: int | None = None
    """Of every batch, needed when it is always the same. None: ``PARALLELISM_CONFIG_SP_SEQ_LENGTH``, if needed."""
    sp_seq_length_is_variable: bool | None = None
    """None: ``PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE``, else True."""
    sp_attn_implementation: str | None = None
    """One of transformers' names, or a hub's kernel "owner/...flash-attn...". None:
    ``PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION``, else DeepSpeed's choice.
    """

    def __post_init__(self) -> None:
        variables = environment.parallelism_variables()
        if self.sp_seq_length_is_variable is None:
            self.sp_seq_length_is_variable = environment.is_true(variables.get("SP_SEQ_LENGTH_IS_VARIABLE", "true"))
        if not self.sp_seq_length_is_variable and self.sp_seq_length is None:
            if not variables.get("SP_SEQ_LENGTH", "").isdecimal():
                raise ValueError(
                    "sp_seq_length_is_variable=False needs sp_seq_length: the length that all sequences have, said "
                    "here or by PARALLELISM_CONFIG_SP_SEQ_LENGTH."
                )
            self.sp_seq_length = int(variables["SP_SEQ_LENGTH"])
        attention = self.sp_attn_implementation = (
            self.sp_attn_implementation or variables.get("SP_ATTN_IMPLEMENTATION") or None
        )
        is_kernel = attention is not None and "/" in attention and "flash-attn" in attention
        if attention is not None and not is_kernel:
            _check_choice("sp_attn_implementation", attention, _ATTENTIONS)


@dataclass
class ParallelismConfig:
    """How many ranks there are along each dimension of the mesh. Their product is the number of ranks.

    A size that is None comes from ``PARALLELISM_CONFIG_DP_REPLICATE_SIZE`` and so on, else is 1. ValueError for a size
    below 1, an unknown backend, a handler of another backend, and dimensions that exclude each other.
    """

    dp_replicate_size: int = None  # type: ignore[assignment]  # None is replaced at once, here and below
    """Ranks that keep whole copies of the model and average gradients."""
    dp_shard_size: int = None  # type: ignore[assignment]
    """Ranks that share out parameters, gradients and optimizer state."""
    tp_size: int = None  # type: ignore[assignment]
    """Ranks that share out the layers' matrices."""
    cp_size: int = None  # type: ignore[assignment]
    """Ranks that share out each sequence, by torch."""
    cp_backend: str = None  # type: ignore[assignment]
    sp_size: int = None  # type: ignore[assignment]
    """Ranks that share out each sequence, by DeepSpeed."""
    sp_backend: str = None  # type: ignore[assignment]
    tp_handler: TorchTensorParallelConfig | None = None
    cp_handler: TorchContextParallelConfig | None = None
    sp_handler: DeepSpeedSequenceParallelConfig | None = None
    """None: the handler's defaults where its dimension is larger than 1, else nothing."""
    device_mesh: DeviceMesh | None = field(default=None, init=False, repr=False, compare=False)
    """That of `get_device_mesh`; None until it was built."""

    def __post_init__(self) -> None:
        variables = environment.parallelism_variables()
        for dimension in _MESH_ORDER:
            name = f"{dimension}_size"
            size = _size_from(variables, name) if getattr(self, name) is None else getattr(self, name)
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name}={size!r} is no number of ranks; give 1 or more.")
            setattr(self, name, size)
        self.cp_backend = self.cp_backend or variables.get("CP_BACKEND", "torch")
        self.sp_backend = self.sp_backend or variables.get("SP_BACKEND", "deepspeed")
        _check_choice("cp_backend", self.cp_backend, ("torch",))
        _check_choice("sp_backend", self.sp_backend, ("deepspeed",))
        self._check_together()
        self._choose_handlers()

    @property
    def sizes(self) -> dict[str, int]:
        """Ranks along each dimension, the outermost first."""
        return {dimension: getattr(self, f"{dimension}_size") for dimension in _MESH_ORDER}

    @property
    def total_size(self) -> int:
        """Ranks of the whole mesh."""
        return math.prod(self.sizes.values())

    @property
    def data_parallel_size(self) -> int:
        """Ranks that read data of their own."""
        return self.dp_replicate_size * self.dp_shard_size

    @property
    def non_data_parallel_size(self) -> int:
        """Ranks that work on the same batch together."""
        return self.tp_size * self.cp_size * self.sp_size

    @property
    def dp_replicate_enabled(self) -> bool:
        return self.dp_replicate_size > 1

    @property
    def dp_shard_enabled(self) -> bool:
        return self.dp_shard_size > 1

    @property
    def tp_enabled(self) -> bool:
        return self.tp_size > 1

    @property
    def cp_enabled(self) -> bool:
        return self.cp_size > 1

    @property
    def sp_enabled(self) -> bool:
        return self.sp_size > 1

    @property
    def dp_dim_names(self) -> list[str]:
        """Dimensions of more than one rank along which batches differ."""
        return self._larger_than_one("dp_replicate", "dp_shard")

    @property
    def non_dp_dim_names(self) -> list[str]:
        """Dimensions of more than one rank along which the batch is the same."""
        return self._larger_than_one("tp", "cp", "sp")

    @property
    def dp_shard_cp_dim_names(self) -> list[str]:
        """Dimensions along which the model is sharded; the mesh has them flattened as "dp_shard_cp"."""
        return self._larger_than_one("dp_shard", "cp")

    @property
    def dp_cp_dim_names(self) -> list[str]:
        """Dimensions over which a loss is averaged; the mesh has them flattened as "dp_cp"."""
        return self._larger_than_one("dp_replicate", "dp_shard", "cp")

    @property
    def fsdp_dim_names(self) -> list[str]:
        """Names of the parts of the mesh that FSDP takes: copies first, then shards."""
        return [*self._larger_than_one("dp_replicate"), "dp_shard_cp"]

    @property
    def active_mesh_dims(self) -> list[str]:
        """All dimensions of more than one rank, those of data parallelism first."""
        return self.dp_dim_names + self.non_dp_dim_names

    def build_device_mesh(self, device_type: str) -> DeviceMesh | None:
        """A mesh of the dimensions of more than one rank, and in it "dp", "dp_shard_cp" and "dp_cp" flattened.

        Every rank must call this, with the process group open. None when there is no such dimension, and with sequence
        parallelism, for which DeepSpeed makes groups of its own.
        """
        if self.sp_enabled or not self.active_mesh_dims:
            return None
        names, shape = self._get_mesh()
        mesh = device_mesh.init_device_mesh(device_type, shape, mesh_dim_names=names)
        flattened = {"dp": self.dp_dim_names, "dp_shard_cp": self.dp_shard_cp_dim_names, "dp_cp": self.dp_cp_dim_names}
        for name, parts in flattened.items():
            if parts:
                mesh[parts]._flatten(name)  # type: ignore[index]  # noqa: SLF001  there is no public way
        return mesh

    def get_device_mesh(self, device_type: str | None = None) -> DeviceMesh | None:
        """`build_device_mesh`'s, built once. ValueError without a device type, and for another one than before."""
        if self.device_mesh is None:
            if device_type is None:
                raise ValueError("the mesh has not been built yet; get_device_mesh needs device_type=, such as 'cuda'.")
            self.device_mesh = self.build_device_mesh(device_type)
        elif device_type not in (None, self.device_mesh.device_type):
            raise ValueError(
                f"device_type={device_type!r} was asked for, but the mesh has been built on "
                f"{self.device_mesh.device_type!r}; make a new ParallelismConfig."
            )
        return self.device_mesh

    def to_json(self) -> dict[str, Any]:
        """All but the mesh, as plain values. (Upstream's 1.15 returns None.)"""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        return {name: asdict(value) if name.endswith("_handler") and value else value for name, value in given.items()}

    def _get_mesh(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Names and sizes of the dimensions of more than one rank, the outermost first."""
        names = tuple(self._larger_than_one(*_MESH_ORDER))
        return names, tuple(self.sizes[name] for name in names)

    def _larger_than_one(self, *dimensions: str) -> list[str]:
        return [one for one in dimensions if self.sizes[one] > 1]

    def _check_together(self) -> None:
        if self.cp_enabled and self.sp_enabled:
            raise ValueError(
                f"cp_size={self.cp_size} and sp_size={self.sp_size} exclude each other: both share out sequences. Set "
                "one of them to 1."
            )
        if (self.tp_enabled or self.cp_enabled) and self.dp_replicate_enabled and not self.dp_shard_enabled:
            raise ValueError(
                f"dp_replicate_size={self.dp_replicate_size} with tp_size={self.tp_size} and cp_size={self.cp_size} "
                "needs dp_shard_size above 1, too: whole copies do not combine with split layers or sequences. Use "
                "dp_shard_size instead of dp_replicate_size, or both."
            )

    def _choose_handlers(self) -> None:
        kinds = {
            "tp": TorchTensorParallelConfig,
            "cp": TorchContextParallelConfig,
            "sp": DeepSpeedSequenceParallelConfig,
        }
        for dimension, kind in kinds.items():
            name = f"{dimension}_handler"
            handler = getattr(self, name)
            if handler is not None and not isinstance(handler, kind):
                raise ValueError(f"{name}={handler!r} does not fit; give a {kind.__name__}.")
            if handler is None and self.sizes[dimension] > 1:
                setattr(self, name, kind())


def choose_parallelism(given: ParallelismConfig | None) -> ParallelismConfig | None:
    """`given`, else what the launch says; None: nothing was said, so ranks are copies.

    TypeError for something else. TrainingError for dimensions along which this version cannot train.
    """
    if given is not None and not isinstance(given, ParallelismConfig):
        raise TypeError(f"parallelism_config={given!r} is no ParallelismConfig.")
    chosen = ParallelismConfig() if given is None and environment.parallelism_requested() else given
    if chosen is None:
        return None
    for name in chosen.active_mesh_dims:
        if name != "dp_replicate":
            raise TrainingError(
                f"ParallelismConfig({name}_size={chosen.sizes[name]}) asks for {_MEANINGS[name]}, which is not part of "
                "this version of accel_nb: every rank trains a whole copy of the model. Leave it out, or use "
                f"dp_replicate_size={chosen.total_size}."
            )
    return chosen


_MEANINGS = {
    "dp_shard": "parameters that are shared out among ranks",
    "tp": "layers that are split over ranks",
    "cp": "sequences that are split over ranks",
    "sp": "sequences that are split over ranks",
}


def laid_out(config: ParallelismConfig, facts: RankFacts) -> ParallelismConfig:
    """`config` with its mesh, for the ranks of `facts`: itself or, where it leaves all sizes at 1, a copy in which
    every rank is one copy of the model. Every rank must call this.

    ValueError when it is for another number of ranks. On the main process, a warning for handlers of no effect.
    """
    num_ranks = facts.num_processes
    if config.total_size not in (1, num_ranks):
        sizes = ", ".join(f"{name}_size={size}" for name, size in config.sizes.items() if size > 1)
        raise ValueError(
            f"ParallelismConfig({sizes}) is for {config.total_size} ranks, but there are {num_ranks}; the product of "
            "the sizes must be the number of ranks."
        )
    idle = [one for one in ("tp", "cp", "sp") if config.sizes[one] == 1 and getattr(config, f"{one}_handler")]
    for dimension in idle if facts.process_index == 0 else ():
        warnings.warn(
            f"ParallelismConfig({dimension}_handler=...) has no effect, because {dimension}_size is 1.", stacklevel=3
        )
    chosen = config if config.total_size == num_ranks else replace(config, dp_replicate_size=num_ranks)
    chosen.get_device_mesh(facts.device.type)
    return chosen


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, choices))}.")


def _size_from(variables: dict[str, str], name: str) -> int:
    text = variables.get(name.upper(), "1")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"PARALLELISM_CONFIG_{name.upper()}={text!r} is no number of ranks; set it to 1 or more.")
    return int(text)
