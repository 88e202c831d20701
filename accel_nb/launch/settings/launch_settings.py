"""From a configuration, and from options by Accelerate's names, to what a launch is given: fields and variables.

What this version cannot carry out is refused by its name; what would have no effect is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...errors import ConfigError
from ...protocol import environment
from ..planning.nodes import LOOPBACK, is_loopback_name
from .cluster_config import DYNAMO, NOT_SAID, PARALLELISM, ClusterConfig
from .settings import Settings, listed_devices

DISTRIBUTED_TYPES: dict[str, dict[str, object]] = {
    "NO": {},
    "MULTI_CPU": {"device": "cpu"},
    "MULTI_GPU": {"device": "cuda"},
    "MULTI_XPU": {"device": "xpu"},
    "XLA": {"device": "tpu"},
    "TPU": {"device": "tpu"},
}
"""Accelerate's word for how ranks work together -> what it means for a launch."""
ABSENT = {
    "FSDP": "sharded models (FSDP) are not part of this version",
    "DEEPSPEED": "DeepSpeed is not part of this version",
    "MEGATRON_LM": "Megatron-LM is out of scope",
    **{
        f"MULTI_{name}": f"{name} devices are not part of this version"
        for name in ("HPU", "MLU", "MUSA", "NEURON", "NPU", "SDAA")
    },
}
"""Those that cannot be carried out, and why."""

VARIABLES = {
    "num_cpu_threads_per_process": "OMP_NUM_THREADS",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    **{f"dynamo_{name}": f"ACCELERATE_DYNAMO_{name.upper()}" for name in DYNAMO},
    **{f"parallelism_config_{name}": f"PARALLELISM_CONFIG_{name.upper()}" for name in PARALLELISM},
}
"""Accelerate's name -> the variable by which the training layer in the ranks, ours or Accelerate's, learns of it."""
USE_PARALLELISM = "ACCELERATE_USE_PARALLELISM_CONFIG"


def settings_of(config: ClusterConfig, path: Path) -> Settings:
    """What `config`, of the file `path`, says about a launch. Raises ConfigError for what cannot be carried out."""
    fields = _ranks_and_devices(config, path) | (_by_mpirun(config) if _hostfile(config) else _machines(config))
    precision = _word(config.mixed_precision).lower()
    if precision:
        fields["mixed_precision"] = precision
    if _flag(config, "debug", path):
        fields["debug"] = True
    if _flag(config, "enable_cpu_affinity", path):
        raise ConfigError(f"{path}: enable_cpu_affinity is not part of this version: set it to false there.")
    variables = dict[str, str]()
    for section in (config.dynamo_config, config.parallelism_config):
        variables |= {VARIABLES[name]: text_of(value) for name, value in (section or {}).items() if value is not None}
    if (config.dynamo_config or {}).get("dynamo_backend") is False:
        variables[VARIABLES["dynamo_backend"]] = "no"  # without quotes in YAML
    if config.parallelism_config:
        variables[USE_PARALLELISM] = "true"
    return Settings(fields, variables, tuple(_without_effect(config, path)))


def device_ids(text: str) -> tuple[int | str, ...] | None:
    """Accelerate's ``gpu_ids``: ``0,2``, or ``all``, which says nothing. ValueError for a list with a hole."""
    return None if says_all(text) else listed_devices(text)


def says_all(text: str) -> bool:
    """Accelerate's word for all devices."""
    return text.strip().lower() in ("", "all")


def on_each_machine(num_processes: int, num_machines: int) -> int:
    """Accelerate counts the processes of all machines, a launch those of each. ValueError where they do not divide."""
    here, rest = divmod(num_processes, num_machines)
    if rest or not here:
        raise ValueError(
            f"num_processes is {num_processes}, of all {num_machines} machines together; each is to have equally many"
        )
    return here


def text_of(value: object) -> str:
    """As a variable holds it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ranks_and_devices(config: ClusterConfig, path: Path) -> dict[str, object]:
    kind = (_word(config.distributed_type) or "no").upper()
    if kind in ABSENT:
        fix = " (accel-nb to-fsdp2 converts files for version 1 of it)" if kind == "FSDP" else ""
        raise ConfigError(
            f"{path}: distributed_type is {kind!r}, and {ABSENT[kind]}{fix}; choose MULTI_GPU or NO there."
        )
    if kind not in DISTRIBUTED_TYPES:
        known = ", ".join(DISTRIBUTED_TYPES)
        raise ConfigError(f"{path}: distributed_type is {kind!r}, which is not known; the ones to be had: {known}.")
    fields = dict(DISTRIBUTED_TYPES[kind])
    if _flag(config, "use_cpu", path):
        if fields.get("device", "cpu") != "cpu":
            raise ConfigError(
                f"{path}: use_cpu and distributed_type {kind!r} contradict each other; change one of them."
            )
        fields["device"] = "cpu"
    num_here = _num_processes_here(config, path)
    if config.num_processes != NOT_SAID:
        fields["num_processes"] = num_here
    if config.gpu_ids is not None and fields.get("device") != "cpu":
        try:
            devices = device_ids(str(config.gpu_ids))
        except ValueError as error:
            raise ConfigError(f"{path}: gpu_ids: {error}.") from error
        # Accelerate starts one process on one of the devices that it makes visible.
        if devices is not None and config.num_processes != NOT_SAID:
            devices = devices[:num_here]
        if devices is not None:
            fields["devices"] = devices
    return fields


def _num_processes_here(config: ClusterConfig, path: Path) -> int:
    """Those of this launch: of this machine, or with mpirun of all hosts."""
    if config.num_processes == NOT_SAID or config.num_machines <= 1 or _hostfile(config):
        return config.num_processes
    try:
        return on_each_machine(config.num_processes, config.num_machines)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}.") from error


def _machines(config: ClusterConfig) -> dict[str, object]:
    said: dict[str, tuple[object, object]] = {
        "num_nodes": (config.num_machines, 1),
        "use_port": (config.main_process_port or None, None),
    }
    if config.num_machines != 1:
        said |= {
            "node_rank": (config.machine_rank, 0),
            "rdzv_backend": (config.rdzv_backend or "static", "static"),
            "master_addr": (config.main_process_ip or LOOPBACK, LOOPBACK),
        }
    return {name: value for name, (value, unsaid) in said.items() if value != unsaid}


def _by_mpirun(config: ClusterConfig) -> dict[str, object]:
    fields: dict[str, object] = {"backend": "mpi", "hostfile": _hostfile(config)}
    if config.main_process_ip and not is_loopback_name(config.main_process_ip):
        fields["master_addr"] = config.main_process_ip
    return fields


def _hostfile(config: ClusterConfig) -> str:
    return str((config.mpirun_config or {}).get("mpirun_hostfile") or "")


def _without_effect(config: ClusterConfig, path: Path) -> list[str]:
    reasons = {
        "fsdp_config": "distributed_type is not FSDP",
        "deepspeed_config": "distributed_type is not DEEPSPEED",
        "megatron_lm_config": "distributed_type is not MEGATRON_LM",
    }
    if config.mixed_precision != "fp8":
        reasons["fp8_config"] = "mixed_precision is not fp8"
    reasons |= _without_effect_on_machines(config)
    tpu = [name for name in config.__struct_fields__ if name.startswith(("tpu_", "command"))]
    reasons |= dict.fromkeys(tpu, "it concerns TPU pods")
    reasons["downcast_bf16"] = "it concerns TPUs"
    if config.main_training_function != "main":
        reasons["main_training_function"] = "a script runs as a whole"
    told: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if not _is_unsaid(getattr(config, name)):
            told.setdefault(reason, []).append(name)
    return [f"{path}: {', '.join(names)}: no effect, {reason}." for reason, names in told.items()]


def _without_effect_on_machines(config: ClusterConfig) -> dict[str, str]:
    default = ClusterConfig()
    if _hostfile(config):
        names = ["num_machines", "machine_rank", "main_process_port", "rdzv_backend"]
        reason = "mpirun starts the ranks, on the hosts of mpirun_hostfile"
    elif config.num_machines == 1:
        names, reason = ["machine_rank", "main_process_ip", "rdzv_backend"], "num_machines is 1"
    else:
        return {}
    said = [name for name in names if getattr(config, name) not in (getattr(default, name), LOOPBACK)]
    return dict.fromkeys(said, reason)


def _is_unsaid(value: object) -> bool:
    return not value or value in ("no", "false", "False")


def _word(value: str | bool | None) -> str:
    """YAML reads an unquoted ``no`` as False."""
    return "no" if value is False else str(value or "")


def _flag(config: ClusterConfig, name: str, path: Path) -> bool:
    value = getattr(config, name)
    if isinstance(value, bool):
        return value
    try:
        return bool(environment.str_to_bool(str(value)))
    except ValueError as error:
        raise ConfigError(f"{path}: {name}: {error}") from error


def variables_of(options: Mapping[str, object]) -> dict[str, str]:
    """The variables that options by Accelerate's names stand for; those left out, None or False, for none."""
    said = {name: value for name, value in options.items() if value is not None and value is not False}
    given = {name: value for name, value in said.items() if name in VARIABLES}
    variables = {VARIABLES[name]: text_of(value) for name, value in given.items()}
    if options.get("use_parallelism_config") or any(name.startswith("parallelism_config") for name in given):
        variables[USE_PARALLELISM] = "true"
    return variables
