"""``accel-nb config``: answer a few questions, and later launches start with the answers.

`config` asks, `config default` writes what fits this machine, `config update` renews a file of an older version.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from ..errors import InvalidArgument
from ..launch.planning.hardware import probe_node
from ..launch.settings.cluster_config import (
    NOT_SAID,
    ClusterConfig,
    config_of,
    read_mapping,
    without_old_names,
    without_retired,
    write_mapping,
)
from ..launch.settings.launch_settings import device_ids, settings_of
from ..launch.settings.settings_file import existing_file, own_file
from ..protocol import environment
from ..protocol.hardware import NodeHardware

PRECISIONS = ("no", "bf16", "fp16")
BACKENDS = ("no", "inductor", "eager", "aot_eager", "cudagraphs")
"""Of torch.compile, those that need nothing else installed."""
_ACTIONS = ("default", "update")


class Question(NamedTuple):
    """One thing to ask."""

    text: str
    default: str
    """What an empty answer means."""
    read: Callable[[str], object]
    """Raises ValueError with a sentence for an answer that will not do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=_ACTIONS, help="default: ask nothing; update: renew an old file")
    parser.add_argument("--config-file", "--config_file", type=Path, metavar="FILE", help=f"left out: {own_file()}")
    parser.add_argument(
        "--mixed-precision", "--mixed_precision", choices=PRECISIONS, help="with default: what is written for it"
    )
    parser.add_argument("--force", action="store_true", help="with default: replace a file that exists")


def run(options: argparse.Namespace) -> int:
    """0 when a file was written. Raises ConfigError, and InvalidArgument when nobody is there to answer."""
    if options.mixed_precision is not None and options.action != "default":
        raise InvalidArgument("--mixed-precision goes with default; the questions ask for it.")
    if options.force and options.action != "default":
        raise InvalidArgument("--force goes with default; the questions and update replace the file anyway.")
    if options.config_file is None and own_file() == Path(os.devnull):
        raise InvalidArgument(
            f"{environment.CONFIG} is {os.devnull}, so that no settings are kept; say with --config-file where, or "
            "unset it."
        )
    if options.action == "update":
        return _update(options.config_file or existing_file() or own_file())
    path = options.config_file or own_file()
    if options.action == "default":
        config = default_config(probe_node(), options.mixed_precision or "no")
        _write(config, path, replaces=options.force)
        return 0
    config = asked_config(probe_node(), _ask)
    _write(config, path, replaces=True)
    return 0


def default_config(hardware: NodeHardware, mixed_precision: str = "no") -> ClusterConfig:
    """What fits this machine: all its accelerators, or one rank on the CPU."""
    num_gpus = len(hardware.devices.get("cuda", ()))
    if num_gpus:
        kind = "MULTI_GPU" if num_gpus > 1 else "NO"
        return ClusterConfig(distributed_type=kind, num_processes=num_gpus, mixed_precision=mixed_precision)
    return ClusterConfig(distributed_type="NO", num_processes=1, use_cpu=True, mixed_precision=mixed_precision)


def asked_config(hardware: NodeHardware, ask: Callable[[Question], object]) -> ClusterConfig:
    """What the answers say."""
    num_gpus = len(hardware.devices.get("cuda", ()))
    kinds = ("cuda", "cpu") if num_gpus else ("cpu", "cuda")
    device = ask(Question(f"What do ranks compute on? ({', '.join(kinds)})", kinds[0], _one_of(kinds)))
    on_gpu = device == "cuda"
    default = (f"all {num_gpus}" if num_gpus else "all") if on_gpu else "2"
    number = ask(Question("How many ranks?", default, _number_or_all if on_gpu else _number))
    config = ClusterConfig(use_cpu=not on_gpu, num_processes=NOT_SAID if number is None else int(str(number)))
    if on_gpu:
        ids = ask(Question("On which GPUs? (positions, as in 0,2)", "all", _devices))
        config = replace(config, gpu_ids=None if ids is None else str(ids))
    several = number is None or number != 1
    kind = ("MULTI_GPU" if on_gpu else "MULTI_CPU") if several else "NO"
    precision = ask(Question(f"Mixed precision? ({', '.join(PRECISIONS)})", "no", _one_of(PRECISIONS)))
    backend = ask(Question(f"Compile models, with which backend? ({', '.join(BACKENDS)})", "no", _one_of(BACKENDS)))
    compare = ask(Question("Compare the ranks' operations also where that costs something? (yes, no)", "no", _yes))
    return replace(
        config,
        distributed_type=kind,
        mixed_precision=str(precision),
        debug=bool(compare),
        dynamo_config=None if backend == "no" else {"dynamo_backend": str(backend).upper()},
    )


def _update(path: Path) -> int:
    found, gone = without_retired(without_old_names(read_mapping(path)))
    config = config_of(found, path)
    for name in gone:
        sys.stdout.write(f"{name} is left out: it means nothing any more.\n")
    _write(config, path, replaces=True)
    return 0


def _write(config: ClusterConfig, path: Path, *, replaces: bool) -> None:
    settings_of(config, path)  # what no launch could carry out is not written
    write_mapping(path, config.written(), replace=replaces)
    sys.stdout.write(f"{path}:\n")
    for name, value in config.written().items():
        sys.stdout.write(f"  {name}: {value}\n")
    sys.stdout.write("accel-nb launch starts with these; its command line overrules them.\n")


def _ask(question: Question) -> object:
    """The answer of whoever sits at the terminal; asked again until it will do."""
    while True:
        sys.stdout.write(f"{question.text} [{question.default}] ")
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            raise InvalidArgument(
                "the questions need answers on standard input, which has ended. accel-nb config default asks nothing."
            )
        try:
            return question.read(line.strip() or question.default)
        except ValueError as error:
            sys.stdout.write(f"  {error}\n")


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"{text!r} is not known; give one of {', '.join(allowed)}.")
        return text.lower()

    return read


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r}: give a whole number of at least 1.")
    return int(text)


def _number_or_all(text: str) -> int | None:
    word, _, number = text.partition(" ")
    return None if word == "all" and (not number or number.isdecimal()) else _number(text)


def _devices(text: str) -> str | None:
    return None if device_ids(text) is None else text


def _yes(text: str) -> bool:
    return _one_of(("yes", "no", "y", "n"))(text).startswith("y")
