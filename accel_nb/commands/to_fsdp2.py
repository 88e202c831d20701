"""``accelerate to-fsdp2`` by the names of ``accelerate.commands.to_fsdp2``."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

from ..cli import to_fsdp2
from ..cli.main import CommandParser
from ..launch.settings.cluster_config import read_mapping, write_mapping

_logger = logging.getLogger(__name__)


def to_fsdp2_command_parser(subparsers: argparse._SubParsersAction[CommandParser] | None = None) -> CommandParser:
    """The parser of ``accel-nb to-fsdp2``."""
    text = "Convert a configuration for version 1 of FSDP to one for version 2."
    if subparsers is None:
        parser = CommandParser(prog="accel-nb to-fsdp2", description=text)
    else:
        parser = subparsers.add_parser("to-fsdp2", description=text)
        parser.set_defaults(func=to_fsdp2_command)
    to_fsdp2.add_arguments(parser)
    return parser


def load_config(config_file: str) -> dict[str, Any]:
    """The keys and values of the file."""
    return read_mapping(Path(config_file))


def convert_config_to_fsdp2(config: dict[str, Any]) -> dict[str, Any]:
    """`config` for version 2; what is left out, and that nothing had to be done, is logged as a warning."""
    if to_fsdp2.is_converted(config):
        _logger.warning("Config already specifies FSDP2, skipping conversion...")
        return config
    converted, left_out = to_fsdp2.convert(config)
    for name in left_out:
        _logger.warning("%s is left out: %s.", name, to_fsdp2.GONE[name])
    return converted


def to_fsdp2_command(args: argparse.Namespace) -> None:
    """Carry out what `to_fsdp2_command_parser` has read. Raises as ``accel-nb to-fsdp2``."""
    target = to_fsdp2.checked_target(args)
    write_mapping(target, convert_config_to_fsdp2(load_config(args.config_file)))
