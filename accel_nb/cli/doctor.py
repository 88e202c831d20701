"""``accel-nb doctor``: what is here, what works, and what to do about what does not."""

from __future__ import annotations

import argparse
import sys

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..errors import InvalidArgument
from ..launch.doctor.examination import examine
from ..protocol.diagnosis import Diagnosis
from .options import device_list

_STYLES = {"problem": "bold red", "hint": "yellow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-processes", "--num_processes", type=int, metavar="N", help="ranks of the self-test")
    parser.add_argument("--device", default="auto", metavar="KIND", help="auto, cuda or cpu")
    parser.add_argument(
        "--devices", type=device_list, metavar="LIST", help="which accelerators, by position or id: 0,2"
    )
    parser.add_argument(
        "--no-self-test", "--no_self_test", action="store_true", help="start no ranks, do not ask torch"
    )
    parser.add_argument("--json", action="store_true", help="print the same as JSON")


def run(options: argparse.Namespace) -> int:
    """0 when nothing is wrong, else 1. Raises PlanError for arguments that cannot be carried out, InvalidArgument for
    those of a self-test that is not wanted.
    """
    chosen = {
        "--num-processes": options.num_processes is not None,
        "--device": options.device != "auto",
        "--devices": options.devices is not None,
    }
    if options.no_self_test and any(chosen.values()):
        names = " and ".join(name for name, is_chosen in chosen.items() if is_chosen)
        raise InvalidArgument(f"{names} chooses ranks of the self-test, and --no-self-test starts none: leave one out.")
    found = examine(options.num_processes, options.device, options.devices, with_self_test=not options.no_self_test)
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    elif sys.stdout.isatty():
        _draw(found, Console())
    else:
        sys.stdout.write(f"{found}\n")
    return 0 if found.healthy else 1


def _draw(found: Diagnosis, console: Console) -> None:
    """The text of `found` with colours, wrapped to the terminal."""
    table = Table.grid(padding=(0, 2, 0, 2))
    for group, facts in found.groups.items():
        table.add_row(Text(group, "bold"), "")
        for fact in facts:
            table.add_row(Text(f"  {fact.name}"), Text(fact.value))
    console.print(table)
    console.print()
    console.print(Text(found.verdict, "bold green" if found.healthy else "bold red"))
    for finding in found.findings:
        console.print()
        console.print(Text.assemble((finding.severity, _STYLES[finding.severity]), f": {finding.what}"))
        console.print(Padding(Text(finding.why), (0, 0, 0, 2)))
        console.print(Padding(Text.assemble(("do: ", "bold"), finding.remedy), (0, 0, 0, 2)))
