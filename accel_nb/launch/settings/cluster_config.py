"""Accelerate's configuration file as a value: every key that may stand in it, with its type.

`file ──load_config_from_file──> ClusterConfig ──settings_of──> fields of a launch` (`launch_settings`). The keys
are those of ``accelerate config`` 1.15 (``accelerate/commands/config/config_args.py``; ``cluster.py`` for sections).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import yaml

from ...errors import ConfigError, ConfigExists, ConfigNotFound

Scalar = str | int | float | bool | None
Section = dict[str, Scalar | list[Scalar]] | None

LOCAL_MACHINE = "LOCAL_MACHINE"
NOT_SAID = -1
"""What the file holds for the number of processes when it is left to the launch."""

_RETIRED = {
    "command": "Accelerate calls it 'commands'; it concerns TPU pods only",
    "ipex_config": "Accelerate itself has dropped it",
    "use_xpu": "Accelerate itself has dropped it",
    "mpirun_ccl": "Accelerate itself has dropped it",
}
"""Keys of older versions that mean nothing any more. Removed by ``accel-nb config update``."""
_FSDP = (
    "version", "activation_checkpointing", "activation_checkpointing_offload", "auto_wrap_policy", "backward_prefetch",
    "cpu_ram_efficient_loading", "forward_prefetch", "ignored_modules", "min_num_params", "offload_params",
    "reshard_after_forward", "sharding_strategy", "state_dict_type", "sync_module_states",
    "transformer_layer_cls_to_wrap", "use_orig_params",
)  # fmt: skip
_MEGATRON = (
    "attention_backend", "attention_dropout", "attention_softmax_in_fp32", "calculate_per_token_loss",
    "context_parallel_size", "decoder_last_pipeline_num_layers", "eod_mask_loss", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "gradient_clipping", "hidden_dropout", "no_load_optim", "no_save_optim",
    "num_micro_batches", "optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d", "pp_degree",
    "recompute_activations", "recompute_granularity", "recompute_method", "recompute_num_layers",
    "sequence_parallelism", "tp_degree", "use_custom_fsdp", "use_distributed_optimizer",
    "use_precision_aware_optimizer", "use_rotary_position_embeddings",
)  # fmt: skip
_FP8 = (
    "backend", "use_autocast_during_eval", "margin", "interval", "format", "fp8_format", "amax_history_length",
    "amax_history_len", "amax_compute_algorithm", "amax_compute_algo", "override_linear_precision", "opt_level",
    "enable_fsdp_float8_all_gather", "pad_inner_dim",
)  # fmt: skip
PARALLELISM = (
    "dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_backend", "cp_comm_strategy", "sp_size",
    "sp_backend", "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation",
)  # fmt: skip
DYNAMO = ("backend", "mode", "use_fullgraph", "use_dynamic", "use_regional_compilation")
DEEPSPEED = (
    "deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device",
    "offload_optimizer_nvme_path", "offload_param_nvme_path", "gradient_accumulation_steps", "gradient_clipping",
    "zero3_init_flag", "zero3_save_16bit_model", "deepspeed_hostfile", "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter", "deepspeed_multinode_launcher", "deepspeed_moe_layer_cls_names",
)  # fmt: skip


def _both(names: Iterable[str], prefix: str) -> frozenset[str]:
    """`names` with `prefix`, as Accelerate writes them, and without, as some documents have them."""
    return frozenset(names) | frozenset(f"{prefix}{name}" for name in names)


SECTIONS: dict[str, frozenset[str]] = {
    "deepspeed_config": frozenset(DEEPSPEED),
    "dynamo_config": frozenset(f"dynamo_{name}" for name in DYNAMO),
    "fp8_config": _both(_FP8, "fp8_"),
    "fsdp_config": frozenset(f"fsdp_{name}" for name in _FSDP),
    "megatron_lm_config": frozenset(f"megatron_lm_{name}" for name in _MEGATRON),
    "mpirun_config": frozenset({"mpirun_hostfile"}),
    "parallelism_config": frozenset(f"parallelism_config_{name}" for name in PARALLELISM),
}
"""Section -> the keys that may stand in it."""


class BaseConfig(msgspec.Struct, kw_only=True):
    """What every kind of configuration has."""

    compute_environment: str = LOCAL_MACHINE
    distributed_type: str | bool = "NO"
    """False is what YAML reads from a ``NO`` without quotes."""
    mixed_precision: str | bool | None = None
    use_cpu: bool | str = False
    debug: bool | str = False


class ClusterConfig(BaseConfig, kw_only=True):
    """The file of one machine, or of one machine of several."""

    num_processes: int = NOT_SAID
    machine_rank: int = 0
    num_machines: int = 1
    gpu_ids: str | int | None = None
    main_process_ip: str | None = None
    main_process_port: int | None = None
    rdzv_backend: str | None = "static"
    same_network: bool | str | None = False
    main_training_function: str = "main"
    enable_cpu_affinity: bool | str = False
    fp8_config: Section = None
    deepspeed_config: Section = None
    fsdp_config: Section = None
    parallelism_config: Section = None
    megatron_lm_config: Section = None
    mpirun_config: Section = None
    dynamo_config: Section = None
    downcast_bf16: bool | str = False
    tpu_name: str | None = None
    tpu_zone: str | None = None
    tpu_use_cluster: bool | str = False
    tpu_use_sudo: bool | str = False
    command_file: str | None = None
    commands: list[str] | str | None = None
    tpu_vm: list[str] | str | None = None
    tpu_env: list[str] | str | None = None

    def to_yaml_file(self, yaml_file: str | Path) -> None:
        """What is not at its default, and the keys that Accelerate insists on."""
        write_mapping(Path(yaml_file), self.written())

    def written(self) -> dict[str, object]:
        """The keys and values to be written, so that Accelerate's own launcher understands the file, too."""
        default = ClusterConfig()
        insisted = ("compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "num_machines")
        return {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name in insisted or getattr(self, name) != getattr(default, name)
        }


def load_config_from_file(config_file: str | Path) -> ClusterConfig:
    """The configuration in the YAML or JSON file `config_file`.

    Raises ConfigNotFound without such a file, and ConfigError, in one line that names file and key, for what is no
    YAML, unknown keys, values of another type, and what is for SageMaker.
    """
    path = Path(config_file)
    return config_of(without_old_names(read_mapping(path)), path)


def read_mapping(path: Path) -> dict[str, object]:
    """The file's keys and values as they stand there. Raises as `load_config_from_file`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigNotFound(
            f"{path}: there is no such configuration file. accel-nb config writes one; leave the option out to launch "
            "without."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a configuration: {error}. Give another file.") from error
    try:
        # YAML has no tabs where JSON has them.
        found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path}, line {error.lineno}: this is no JSON ({error.msg}). Correct it, or write a new file."
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        what = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigError(f"{path}{line}: this is no YAML ({what}). Correct it, or write a new file.") from error
    if not isinstance(found, dict):
        kind = "empty" if found is None else f"a {type(found).__name__}"
        raise ConfigError(f"{path} is {kind}, not keys with values. accel-nb config writes a new file.")
    return {str(key): value for key, value in found.items()}


def without_old_names(found: Mapping[str, object]) -> dict[str, object]:
    """`found` with the old names in their new form, as Accelerate's reader has it (``BaseConfig.process_config``)."""
    current = dict(found)
    if "fp16" in current:
        half = current.pop("fp16")
        current.setdefault("mixed_precision", "fp16" if half else "no")
    if "dynamo_backend" in current:
        backend = current.pop("dynamo_backend")
        is_no = backend is False or str(backend).upper() == "NO"
        current.setdefault("dynamo_config", {} if is_no else {"dynamo_backend": backend})
    return current


def config_of(found: Mapping[str, object], path: Path) -> ClusterConfig:
    """`found`, of the file `path`, checked. Raises ConfigError."""
    if found.get("compute_environment", LOCAL_MACHINE) != LOCAL_MACHINE:
        raise ConfigError(
            f"{path}: compute_environment is {found['compute_environment']!r}, and only {LOCAL_MACHINE!r} is part of "
            "accel_nb. Give a file for local machines."
        )
    _refuse_unknown(found, ClusterConfig.__struct_fields__, path)
    for name, known in SECTIONS.items():
        section = found.get(name)
        if isinstance(section, dict):
            _refuse_unknown({str(key): value for key, value in section.items()}, known, path, f"{name}: ")
    try:
        return msgspec.convert(found, ClusterConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_wrong_type(error, found)}. Correct it there.") from error


def without_retired(found: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """`found` without the keys that older versions of Accelerate wrote and that mean nothing any more, and these keys,
    those of a section as ``section: key``.
    """
    kept: dict[str, object] = {}
    gone = [name for name in found if name in _RETIRED]
    for name, value in found.items():
        if name in SECTIONS and isinstance(value, dict):
            gone += [f"{name}: {key}" for key in value if key in _RETIRED]
            kept[name] = {key: entry for key, entry in value.items() if key not in _RETIRED}
        elif name not in _RETIRED:
            kept[name] = value
    return kept, gone


def write_mapping(path: Path, content: Mapping[str, object], *, replace: bool = True) -> None:
    """Write a configuration, its folders included. Raises ConfigExists, and ConfigError where none can be written."""
    text = yaml.safe_dump(dict(content), sort_keys=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if replace else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        # The same error may speak of what stands in the place of a folder.
        if isinstance(error, FileExistsError) and path.exists():
            raise ConfigExists(
                f"{path} exists already. accel-nb config update renews it, --force replaces it."
            ) from error
        raise ConfigError(f"{path} cannot be written: {error.strerror}. Give another with --config-file.") from error


def nearest(name: str, known: Iterable[str]) -> str:
    """The one of `known` that `name` may have been meant to be; empty when none is near."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return found[0] if found else ""


def _wrong_type(error: msgspec.ValidationError, found: Mapping[str, object]) -> str:
    """Key, value and what is expected there. Of lists and sections only the kind is told: they may hold secrets."""
    what, _, place = str(error).rpartition(" - at `$")
    key = place.strip("`.").partition("[")[0]
    value = found.get(key)
    if key in SECTIONS and isinstance(value, dict):
        name = next(name for name, entry in value.items() if not _may_stand_in_a_section(entry))
        key, value = f"{key}: {name}", value[name]
    shown = f"a {type(value).__name__}" if isinstance(value, dict | list) else repr(value)
    return f"{key}: {shown} has the wrong type ({what})"


def _may_stand_in_a_section(entry: object) -> bool:
    try:
        msgspec.convert(entry, Scalar | list[Scalar])
    except msgspec.ValidationError:
        return False
    return True


def _refuse_unknown(found: Mapping[str, object], known: Iterable[str], path: Path, place: str = "") -> None:
    known = list(known)
    unknown = [name for name in found if name not in known]
    if not unknown:
        return
    told = []
    for name in unknown:
        near = nearest(name, known)
        why = f" ({_RETIRED[name]})" if name in _RETIRED else f" (nearest: {near!r})" if near else ""
        told.append(f"{name!r}{why}")
    what = "is no key" if len(unknown) == 1 else "are no keys"
    again = " accel-nb config update does it." if all(name in _RETIRED for name in unknown) else ""
    raise ConfigError(f"{path}: {place}{', '.join(told)} {what} of a configuration. Correct or remove it.{again}")
