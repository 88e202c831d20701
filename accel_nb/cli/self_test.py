"""``accel-nb test``: train for a moment on the chosen devices, and check that the ranks work together."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from ..errors import StartError
from ..launch.planning.planner import plan_line
from ..launch.run import Run, start_run
from ..launch.run_failed import RunFailed
from ..launch.servers.counting import counted_hardware
from ..launch.settings.settings import naming_the_file
from ..launch.settings.settings_file import read_settings
from ..protocol import environment
from ..protocol.events import RunEvent
from ..protocol.plan import LaunchRequest, Timeouts
from ..protocol.run_state import RunState
from .file_options import add_file_options, chosen_file
from .launch import request_of
from .options import add_launch_options
from .upstream_names import add_upstream_options

if TYPE_CHECKING:
    from ..training.self_test import Check

NAME = "accel-nb test"
KEPT_OPTIONS = frozenset({"num_processes", "devices", "device", "mixed_precision", "env", "debug"})
"""Of a launch: those that change what is tested."""
MEETING_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file_options(parser)
    add_launch_options(parser, leave_out=set(LaunchRequest.__struct_fields__) - KEPT_OPTIONS)
    add_upstream_options(parser)


def run(options: argparse.Namespace) -> int:
    """0 when all is right, 1 when something is wrong. Raises PlanError for what cannot be started."""
    request = _with_two_ranks(request_of(options, read_settings(chosen_file(options)), NAME))
    started = time.monotonic()
    try:
        with naming_the_file(request):
            under_way = start_run(request, _checks, (), {}, _Unseen())
        _tell(plan_line(under_way.plan))
        checks = _result(under_way)
    except RunFailed as failed:
        _tell(str(failed), "red")
        return 1
    except StartError as error:
        _tell(str(error), "red")
        return 1
    for check in checks:
        right = not check.trouble
        _tell(f"{'right' if right else 'WRONG'}  {check.name}, {check.seconds:.1f} s", "green" if right else "red")
        if not right:
            _tell(f"       {check.trouble}")
    wrong = sum(bool(check.trouble) for check in checks)
    told = "all is right" if not wrong else f"{wrong} of {len(checks)} are wrong; accel-nb doctor looks for the reason"
    _tell(f"{told} ({time.monotonic() - started:.1f} s)", "bold green" if not wrong else "bold red")
    return int(wrong > 0)


def _checks() -> list[Check]:
    """In a rank, where torch may be imported."""
    from ..training.self_test import run_checks

    return run_checks()


class _Unseen:
    """A view of a run whose results are what is to be seen."""

    def update(self, events: Sequence[RunEvent], state: RunState) -> None:
        pass

    def close(self, state: RunState) -> None:
        pass


def _result(under_way: Run) -> list[Check]:
    under_way.draw_interruptibly()
    return cast("list[Check]", under_way.result()[0])


def _with_two_ranks(request: LaunchRequest) -> LaunchRequest:
    """Without accelerators and without a number, two ranks: one has nobody to work with."""
    request = replace(request, timeouts=Timeouts(rendezvous_s=MEETING_S))
    if request.num_processes is not None or request.devices is not None:
        return request
    hardware = counted_hardware(request, environment.current())
    if request.device != "cpu" and any(hardware.devices.values()):
        return request
    return replace(request, num_processes=2)


def _tell(text: str, style: str = "") -> None:
    Console(file=sys.stdout, highlight=False, soft_wrap=True).print(Text(text, style))
