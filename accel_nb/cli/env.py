"""``accel-nb env``: what a report of a fault needs, and no secret."""

from __future__ import annotations

import argparse
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import ConfigError
from ..launch.doctor.examination import examine
from ..launch.settings.cluster_config import load_config_from_file
from ..protocol.diagnosis import Diagnosis, Fact
from ..protocol.version import __version__
from .file_options import add_file_options, chosen_file

GROUPS = ("accel_nb", "software", "machine", "devices", "settings", "configuration")
"""What is shown, in this order. The logs and this process are left out: they say nothing about others' runs."""
HIDDEN = "(not shown)"
_SECRET_NAME = re.compile(r"token|key|secret|passw|credential|auth", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"://[^/\s@]*@")
"""User and password in an address."""
_LONG_WORD = re.compile(r"\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{32,}\b")
"""What looks like a token: no setting of ours or of torch's has a word of 32 characters with letters and digits."""
_GPU_ID = re.compile(r"(?:GPU-|MIG-){1,2}[0-9a-f-]+", re.IGNORECASE)
_IN_PAIR = re.compile(r"([\w-]*(?:token|key|secret|passw|credential|auth|signature)[\w-]*=)[^&;,\s]+", re.IGNORECASE)
"""A name that speaks of secrets, and its value, as behind the question mark of an address."""
_FREE_TEXT = frozenset({"commands", "command_file", "tpu_env", "tpu_name", "tpu_zone", "tpu_vm"})
"""Keys of a configuration that may hold anything."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_options(parser)
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def run(options: argparse.Namespace) -> int:
    """0. Starts no rank, and does not import torch."""
    found = Diagnosis(facts=tuple(_facts(chosen_file(options))))
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found.facts)).decode() + "\n")
    else:
        sys.stdout.write("Copy this into your report:\n\n" + _as_text(found))
    return 0


def without_secrets(name: str, value: str) -> str:
    """`value` of the setting `name` as it may be shown to anybody."""
    if _SECRET_NAME.search(name):
        return HIDDEN
    value = _IN_PAIR.sub(rf"\1{HIDDEN}", _IN_ADDRESS.sub(f"://{HIDDEN}@", value))
    return _LONG_WORD.sub(lambda word: word[0] if _GPU_ID.fullmatch(word[0]) else HIDDEN, value)


def _facts(path: Path | None) -> Iterator[Fact]:
    yield Fact(group="accel_nb", name="version", value=__version__)
    yield Fact(group="accel_nb", name="place", value=str(Path(__file__).parents[1]))
    yield Fact(group="accel_nb", name="platform", value=platform.platform())
    for fact in examine(with_self_test=False).facts:
        if fact.group == "settings":
            yield msgspec.structs.replace(fact, value=without_secrets(fact.name, fact.value))
        elif fact.group in GROUPS:
            yield fact
    yield from _configuration(path)


def _configuration(path: Path | None) -> Iterator[Fact]:
    if path is None:
        yield Fact(group="configuration", name="file", value="none")
        return
    yield Fact(group="configuration", name="file", value=str(path))
    try:
        config = load_config_from_file(path)
    except ConfigError as error:
        yield Fact(group="configuration", name="problem", value=str(error))
        return
    for name, value in config.written().items():
        shown = HIDDEN if name in _FREE_TEXT else without_secrets(name, str(value))
        yield Fact(group="configuration", name=name, value=shown)


def _as_text(found: Diagnosis) -> str:
    lines = []
    for group, facts in found.groups.items():
        width = max(len(fact.name) for fact in facts)
        lines += [f"- {group}", *(f"  - {fact.name:<{width}}  {fact.value}" for fact in facts)]
    return "\n".join(lines) + "\n"
