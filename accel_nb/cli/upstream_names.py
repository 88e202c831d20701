"""Options by the names that Accelerate's launcher has (``accelerate launch`` 1.15): carried out, or refused by name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgument
from ..launch.settings.cluster_config import DEEPSPEED, DYNAMO, PARALLELISM, SECTIONS
from ..launch.settings.launch_settings import on_each_machine, says_all, variables_of
from .options import device_list

SAME_AS = {
    "main_process_port": ("use_port", int),
    "main_process_ip": ("master_addr", str),
    "machine_rank": ("node_rank", int),
}
"""Accelerate's name -> ours, and how its value is read."""
DEVICES = {"cpu": "cpu", "multi_gpu": "cuda", "tpu": "tpu"}
"""Flag -> the device kind that it asks for."""
HAS_NO_EFFECT = {
    "quiet": "only the ranks' own tracebacks are ever shown",
    "same_network": "several machines meet in the same way in every network",
}
"""Flags that ask for what is the case anyway."""

_FLAGS_OF_VARIABLES = frozenset({"dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation"})
_NUMBERS_OF_VARIABLES = frozenset(
    {"num_cpu_threads_per_process", "gradient_accumulation_steps"}
    | {f"parallelism_config_{name}_size" for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
)
_VARIABLES = (
    "num_cpu_threads_per_process",
    "gradient_accumulation_steps",
    *(f"dynamo_{name}" for name in DYNAMO),
    *(f"parallelism_config_{name}" for name in PARALLELISM),
)
_HELP = {
    "num_cpu_threads_per_process": "threads of each rank: OMP_NUM_THREADS",
    "gradient_accumulation_steps": "what an Accelerator without its own setting uses",
    "dynamo_backend": "compile models with this backend of torch.compile",
}
_DEEPSPEED = "DeepSpeed is not part of this version"
_FSDP = "sharded models (FSDP) are not part of this version"
_MEGATRON = "Megatron-LM is out of scope"
_PODS = "TPU pods are not part of this version"
_SAGEMAKER = "SageMaker is out of scope"
REFUSED_FLAGS = {
    "use_deepspeed": _DEEPSPEED,
    "use_fsdp": _FSDP,
    "use_megatron_lm": _MEGATRON,
    "enable_cpu_affinity": "pinning ranks to CPUs is not part of this version; taskset does it from outside",
    "no_python": "ranks are Python; start another program from a script",
    "downcast_bf16": "it concerns TPUs; --mixed-precision bf16 is what there is",
    "tpu_cluster": _PODS,
    "no_tpu_cluster": _PODS,
    "tpu_use_sudo": _PODS,
    "fp8_use_autocast_during_eval": "fp8 is not part of this version",
}
REFUSED = {
    **{name: _DEEPSPEED for name in DEEPSPEED if name not in _VARIABLES},
    **dict.fromkeys(sorted(SECTIONS["fsdp_config"]), _FSDP),
    **dict.fromkeys(sorted(SECTIONS["megatron_lm_config"]), _MEGATRON),
    **{
        f"fp8_{name}": "fp8 is not part of this version"
        for name in (
            "backend", "margin", "interval", "format", "amax_history_len", "amax_compute_algo",
            "override_linear_precision", "opt_level", "enable_fsdp_float8_all_gather", "pad_inner_dim",
        )
    },
    "aws_access_key_id": _SAGEMAKER,
    "aws_secret_access_key": _SAGEMAKER,
    "vm": _PODS,
    "main_training_function": "it concerns TPUs; a script runs as a whole",
    "tee": "output always goes to the terminal and to the log files",
    "role": "all ranks have the role 'default'",
}  # fmt: skip
"""Options with a value that this version has nothing for, and why."""


def spellings(name: str) -> list[str]:
    """``--num-machines`` and ``--num_machines``."""
    return list(dict.fromkeys((f"--{name.replace('_', '-')}", f"--{name}")))


def add_upstream_options(parser: argparse.ArgumentParser) -> None:
    """Beside the launcher's own, which have Accelerate's names where both have the same."""
    group = parser.add_argument_group(
        "Accelerate's names", "for people who move; the others of them are refused by name"
    )
    for name, device in DEVICES.items():
        group.add_argument(*spellings(name), action="store_true", help=f"the same as --device {device}")
    group.add_argument(
        *spellings("gpu_ids"), type=_gpu_ids, metavar="LIST", default=argparse.SUPPRESS,
        help="the same as --devices; all: every visible one",
    )  # fmt: skip
    for name, (ours, kind) in SAME_AS.items():
        group.add_argument(
            *spellings(name), dest=ours, type=kind, metavar=_metavar(kind), default=argparse.SUPPRESS,
            help=f"the same as --{ours.replace('_', '-')}",
        )  # fmt: skip
    group.add_argument(
        *spellings("num_machines"), type=int, metavar="N", default=argparse.SUPPRESS,
        help="the same as --num-nodes, but then the number of processes is that of all machines together",
    )  # fmt: skip
    group.add_argument(
        *spellings("mpirun_hostfile"), metavar="FILE", default=argparse.SUPPRESS,
        help="the same as --backend mpi --hostfile FILE",
    )  # fmt: skip
    for name, reason in HAS_NO_EFFECT.items():
        short = ["-q"] if name == "quiet" else []
        group.add_argument(*short, *spellings(name), action="store_true", help=f"changes nothing: {reason}")
    for name in _VARIABLES:
        _add_variable(group, name)
    group.add_argument(
        *spellings("use_parallelism_config"),
        action="store_true",
        help="lay the ranks out as --parallelism-config-* say",
    )
    # Known, so that they are refused by name and not taken for the script.
    for name in REFUSED_FLAGS:
        parser.add_argument(*spellings(name), action="store_true", help=argparse.SUPPRESS)
    for name in REFUSED:
        short = ["-t"] if name == "tee" else []
        parser.add_argument(*short, *spellings(name), default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def upstream_fields(options: argparse.Namespace) -> dict[str, object]:
    """Fields of `LaunchRequest` that the options by Accelerate's names stand for, ``env`` among them.

    Raises InvalidArgument for those that are refused, and for contradictions.
    """
    given = vars(options)
    for name, reason in {**REFUSED_FLAGS, **REFUSED}.items():
        if given.get(name) not in (None, False):
            raise InvalidArgument(f"{spellings(name)[0]}: {reason}. Leave it out.")
    fields = _devices(given)
    if "mpirun_hostfile" in given:
        if given.get("backend", "mpi") != "mpi" or "hostfile" in given:
            raise InvalidArgument("--mpirun-hostfile means --backend mpi --hostfile: leave it out, or the others.")
        fields |= {"backend": "mpi", "hostfile": given["mpirun_hostfile"]}
    if "num_machines" in given:
        fields |= _on_each_machine(given)
    if variables := variables_of(given):
        fields["env"] = variables
    return fields


def _devices(given: Mapping[str, Any]) -> dict[str, object]:
    fields: dict[str, object] = {}
    asked = [name for name in DEVICES if given.get(name)]
    kinds = {DEVICES[name] for name in asked} | ({str(given["device"])} if "device" in given else set())
    if len(kinds) > 1:
        told = [spellings(name)[0] for name in asked] + ([f"--device {given['device']}"] if "device" in given else [])
        raise InvalidArgument(f"{' and '.join(told)} contradict each other: leave one of them out.")
    if asked:
        fields["device"] = kinds.pop()
    if "gpu_ids" in given:
        if "devices" in given:
            raise InvalidArgument("--gpu-ids and --devices say the same: leave one of them out.")
        fields["devices"] = given["gpu_ids"]
    return fields


def _on_each_machine(given: Mapping[str, Any]) -> dict[str, object]:
    num_machines = given["num_machines"]
    if "num_nodes" in given:
        raise InvalidArgument("--num-machines and --num-nodes say the same: leave one of them out.")
    if num_machines <= 1 or "num_processes" not in given or given.get("backend", "auto") not in ("auto", "elastic"):
        return {"num_nodes": num_machines}
    try:
        return {"num_nodes": num_machines, "num_processes": on_each_machine(given["num_processes"], num_machines)}
    except ValueError as error:
        raise InvalidArgument(f"--num-machines {num_machines}: {error}.") from error


def _add_variable(group: argparse._ArgumentGroup, name: str) -> None:
    text = _HELP.get(name, "as in Accelerate")
    if name in _FLAGS_OF_VARIABLES:
        group.add_argument(*spellings(name), action="store_true", help=text)
        return
    kind = int if name in _NUMBERS_OF_VARIABLES else str
    group.add_argument(*spellings(name), type=kind, metavar=_metavar(kind), default=argparse.SUPPRESS, help=text)


def _metavar(kind: type) -> str:
    return "N" if kind is int else "TEXT"


def _gpu_ids(text: str) -> tuple[int | str, ...] | None:
    return None if says_all(text) else device_list(text)
