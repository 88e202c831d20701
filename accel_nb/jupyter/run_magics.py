"""``%accel_plan``, ``%accel_stop``, ``%accel_attach``, ``%accel_doctor``: about launches rather than launching."""

from __future__ import annotations

import argparse

from msgspec.structs import replace

from ..cli.file_options import add_file_options
from ..cli.options import OptionParser, add_launch_options, launch_request
from ..launch import engines
from ..launch.planning.planner import plan_line
from ..launch.run import Run, plan_for
from ..launch.servers.preload import PRELOAD
from ..launch.servers.standby import STANDBY
from ..protocol.diagnosis import Diagnosis
from .asked import asked_by_options, naming_the_file
from .attaching import attach
from .cell_code import Shell
from .cell_watch import watch_cells
from .doctor import doctor
from .known_runs import KNOWN

STOP_ENDS_S = 15.0
"""A run is over this long after its last signal at the latest (`accel_nb.launch.supervisor`)."""


def _parser(prog: str, description: str) -> OptionParser:
    parser = OptionParser(prog, description)
    parser.add_argument("-h", "--help", action="store_true", help="show this, and do nothing")
    return parser


def _plan_parser() -> OptionParser:
    parser = _parser("%accel_plan", "Tell what a launch with these options would do, and why. Starts no rank.")
    add_launch_options(parser)
    add_file_options(parser)
    return parser


def _stop_parser() -> OptionParser:
    parser = _parser(
        "%accel_stop",
        "Stop runs of this kernel, and wait until nothing of them is left. Ranks in standby are let go, too.",
    )
    parser.add_argument("run", nargs="?", help="id of a run, its beginning or end, or a function's name; none: all")
    parser.add_argument("--now", action="store_true", help="do not wait for the ranks to obey: kill them")
    return parser


def _attach_parser() -> OptionParser:
    parser = _parser(
        "%accel_attach",
        "Show a run again in this cell, from its beginning: one that goes on, or one that is over. The cell ends at "
        "once; what the run writes later is shown in it.",
    )
    parser.add_argument(
        "run", nargs="?", help="id of a run, its beginning or end, or a function's name; none: the newest"
    )
    parser.add_argument("--wait", action="store_true", help="the cell goes on until the run is over")
    return parser


def _doctor_parser() -> OptionParser:
    parser = _parser("%accel_doctor", "Tell what is here, what works, and what to do about what does not.")
    parser.add_argument("--no-self-test", "--no_self_test", action="store_true", help="start nothing")
    kept = ("num_processes", "device", "devices")
    everything = launch_request(argparse.Namespace()).__struct_fields__
    add_launch_options(parser, leave_out=[field for field in everything if field not in kept])
    return parser


PLAN = _plan_parser()
STOP = _stop_parser()
ATTACH = _attach_parser()
DOCTOR = _doctor_parser()


def plan(_shell: Shell, options: argparse.Namespace, _line: str) -> None:
    """Print the plan's line, and the reason of each choice."""
    watch_cells()
    request = replace(asked_by_options(options), function_name="%accel_plan")
    with naming_the_file(request):
        made = plan_for(request)
    lines = [plan_line(made), *(f"- {reason}" for reason in made.reasons)]
    lines += [f"- Not imported ahead of a launch: {name} ({reason})." for name, reason in PRELOAD.struck.items()]
    print("\n".join(lines))  # noqa: T201  the cell's output


def stop(_shell: Shell, options: argparse.Namespace, _line: str) -> None:
    """Stop the runs that are meant, wait, tell how each has ended."""
    runs = KNOWN.running() if options.run is None else _meant(options.run)
    for run in runs:
        run.stop(0.0 if options.now else None, by="magic")
    for run in runs:
        if not run.wait(run.plan.timeouts.stop_grace_s):
            run.stop(0.0, by="magic")
        over = run.wait(STOP_ENDS_S)
        how = f"{run.status} after {run.state.duration_s:.1f} s" if over else "has not ended yet"
        print(f"{run.plan.function_name} ({run.plan.run_id}): {how}.")  # noqa: T201  the cell's output
    # Only now: the end of a run has the next ranks get ready.
    if let_go := [text for text in (STANDBY.let_go(), *engines.let_go()) if text]:
        print(f"Let go: {', '.join(let_go)}, in standby for the next launch.")  # noqa: T201  likewise
    elif not runs:
        print("Nothing to stop: no run of this kernel is under way.")  # noqa: T201  likewise


def attach_magic(_shell: Shell, options: argparse.Namespace, _line: str) -> None:
    attach(options.run, wait=options.wait)


def examine(_shell: Shell, options: argparse.Namespace, _line: str) -> Diagnosis:
    request = launch_request(options)
    return doctor(request.num_processes, request.device, request.devices, self_test=not options.no_self_test)


def _meant(name: str) -> list[Run]:
    known = KNOWN.find(name)
    run = KNOWN.handle(known)
    return [] if run is None or run.wait(0) else [run]
