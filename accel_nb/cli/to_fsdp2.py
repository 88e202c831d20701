"""``accel-nb to-fsdp2``: convert a configuration for version 1 of FSDP to one for version 2.

What each key becomes is what Accelerate's command of this name makes of it (``accelerate/commands/to_fsdp2.py`` 1.15).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigError, ConfigExists, ConfigNotFound, InvalidArgument
from ..launch.settings.cluster_config import read_mapping, write_mapping

VERSION = 2
GONE = {
    "fsdp_backward_prefetch": "version 2 chooses it itself",
    "fsdp_sync_module_states": "version 2 always does it",
    "fsdp_use_orig_params": "version 2 always does it",
    "fsdp_forward_prefetch": "Accelerate has nothing for it in version 2",
}
"""Key of version 1 that version 2 has no use for, and why."""
RESHARDS = {
    "FULL_SHARD": True,
    "HYBRID_SHARD": True,
    "SHARD_GRAD_OP": False,
    "HYBRID_SHARD_ZERO2": False,
    "NO_SHARD": False,
}
"""Strategy of version 1 -> whether parameters are sharded again after the forward pass."""
_STRATEGY, _RESHARD = "fsdp_sharding_strategy", "fsdp_reshard_after_forward"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-file", "--config_file", required=True, metavar="FILE", help="what to convert")
    parser.add_argument("--output-file", "--output_file", metavar="FILE", help="where the result is written")
    parser.add_argument(
        "--overwrite", action="store_true", help="write over a file that exists; without --output-file, over the first"
    )


def run(options: argparse.Namespace) -> int:
    """0 when a file was written, or nothing had to be. Raises InvalidArgument and ConfigError."""
    target = checked_target(options)
    config = read_mapping(Path(options.config_file))
    if is_converted(config):
        sys.stdout.write(f"{options.config_file} is for version {VERSION} already; nothing was written.\n")
        return 0
    converted, left_out = convert(config)
    if converted == config:
        sys.stdout.write(f"{options.config_file} says nothing of FSDP; nothing was written.\n")
        return 0
    write_mapping(target, converted)
    for name in left_out:
        sys.stdout.write(f"{name} is left out: {GONE[name]}.\n")
    sys.stdout.write(f"{target} is for version {VERSION} of FSDP.\n")
    return 0


def checked_target(options: argparse.Namespace) -> Path:
    """Where the result goes. Raises ConfigNotFound, ConfigExists, InvalidArgument."""
    source = Path(options.config_file)
    if not source.exists():
        raise ConfigNotFound(f"{source}: there is no such configuration file.")
    if options.output_file is None:
        if not options.overwrite:
            raise InvalidArgument(
                "--output-file says where to write; --overwrite alone: over the file that is converted."
            )
        return source
    target = Path(options.output_file)
    if target.exists() and not options.overwrite:
        raise ConfigExists(f"{target} exists already; --overwrite replaces it.")
    return target


def is_converted(config: Mapping[str, object]) -> bool:
    """Whether it is for version 2 already."""
    return str(_section(config).get("fsdp_version", 1)) == str(VERSION)


def convert(config: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """`config` for version 2, and the keys of version 1 that were left out. One without FSDP comes back as it is."""
    section = _section(config)
    if not section:
        return dict(config), []
    converted: dict[str, object] = {}
    for name, value in section.items():
        if name in GONE:
            continue
        known = name in (_STRATEGY, _RESHARD)
        converted[_RESHARD if known else name] = RESHARDS.get(str(value), value) if known else value
    converted["fsdp_version"] = VERSION
    return {**config, "fsdp_config": converted}, [name for name in section if name in GONE]


def _section(config: Mapping[str, object]) -> dict[str, object]:
    section = config.get("fsdp_config") or {}
    if not isinstance(section, dict):
        raise ConfigError(f"fsdp_config is {section!r}, not keys with values.")
    return section
