"""``accel-nb launch``: run a script, a module or a notebook on every rank.

command line ─┐
              ├─> `LaunchRequest` + `Program` ──start_run──> a run, shown in this terminal ──> exit status
configuration ┘
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from msgspec.structs import replace

from ..errors import AccelNbError, PlanError, StartError
from ..launch.dry_run.result import DryRun
from ..launch.run import start_run
from ..launch.run_failed import RunFailed
from ..launch.settings.settings import Found, naming_the_file, request_from
from ..launch.settings.settings_file import read_settings
from ..protocol import environment
from ..protocol.failure import RankFailure
from ..protocol.plan import LaunchRequest
from .file_options import add_file_options, chosen_file
from .options import add_launch_options, launch_arguments
from .program import Program, program
from .terminal_view import choose_view
from .upstream_names import add_upstream_options, upstream_fields

COMMAND_LINE = "the command line"
MIXED_PRECISION, USE_CPU = "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU"
FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("training_script", metavar="SCRIPT", help="a script, a notebook (.ipynb), or with -m a module")
    parser.add_argument(
        "training_script_args", metavar="...", nargs=argparse.REMAINDER, help="what follows the script is its own"
    ).required = False  # else argparse names it, too, when SCRIPT is missing
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument(
        "--log-dir", "--log_dir", type=Path, metavar="DIR", default=argparse.SUPPRESS,
        help="where the folder with the ranks' output and the recording of the run is made",
    )  # fmt: skip
    add_file_options(parser)
    # A script has no value to bring back, and its failure is the command's.
    add_launch_options(parser, leave_out=("returns", "on_failure"))
    add_upstream_options(parser)


def run(options: argparse.Namespace) -> int:
    """The exit status: 0 when every rank ended well, and a dry run found nothing wrong. Else the failed rank's own; 128
    and its signal's number when one ended it; 1 when it raised; 130 after Ctrl-C, 143 after SIGTERM.

    Raises PlanError for what cannot be started.
    """
    wanted = program(options.training_script, options.training_script_args, is_module=options.module)
    request = request_of(options, read_settings(chosen_file(options)), wanted.name)
    variables = {environment.LOG_DIR: str(options.log_dir)} if "log_dir" in options else {}
    with environment.changed(variables), naming_the_file(request):
        return launch(request, wanted)


def request_of(options: argparse.Namespace, found: Found, name: str) -> LaunchRequest:
    """The launch that the command line and the file `found` ask for; the command line wins, field by field."""
    ours, theirs = launch_arguments(options), upstream_fields(options)
    said = {**ours, **theirs}
    env = {**_env(theirs), **_env(ours)}
    said |= {"env": env} if env else {}
    assumed = _from_variables({*found.beside(said), *said})
    request = request_from(said, found, said_by=COMMAND_LINE, assumed=assumed)
    return replace(request, function_name=name)


def launch(request: LaunchRequest, wanted: Program) -> int:
    """Run it, show it, and give the exit status. Raises PlanError and its like before anything has started."""
    ended = list[int]()
    with _signals_end_the_run(ended):
        try:
            view = choose_view(sys.stdout)
            under_way = start_run(request, wanted.function, (), {}, view)
            under_way.draw_interruptibly()
            result = under_way.result()
        except RunFailed as failed:
            _tell(str(failed))
            return exit_status(failed.cause)
        except StartError as error:
            _tell(str(error))
            return FAILED
        except PlanError:
            raise
        except AccelNbError as error:
            _tell(str(error))
            return FAILED
        except KeyboardInterrupt as interrupt:
            _tell(str(interrupt) or "interrupted.")
            return 128 + (ended or [signal.SIGINT])[0]
    if isinstance(result, DryRun):
        sys.stdout.write(f"{result!r}\n")
        return 0 if result.ok else FAILED
    return 0


def exit_status(cause: RankFailure) -> int:
    """As a shell has it for one process: its own status, 128 and the signal's number, 1 for an exception."""
    if cause.signal is not None and cause.signal in signal.Signals.__members__:
        return 128 + signal.Signals[cause.signal]
    return cause.exit_code or FAILED


@contextlib.contextmanager
def _signals_end_the_run(ended: list[int]) -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP end the run as Ctrl-C does; their numbers are put into `ended`."""

    def end(number: int, _frame: FrameType | None) -> None:
        ended.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _from_variables(decided: set[str]) -> dict[str, tuple[str, object]]:
    """Fields that are not among `decided` and that Accelerate's variables speak of: the variable, and the value."""
    variables = environment.current()
    found: dict[str, tuple[str, object]] = {}
    if "mixed_precision" not in decided and variables.get(MIXED_PRECISION):
        found["mixed_precision"] = (MIXED_PRECISION, variables[MIXED_PRECISION])
    if not decided & {"device", "devices"} and environment.is_true(variables.get(USE_CPU, "")):
        found["device"] = (USE_CPU, "cpu")
    return found


def _env(fields: Mapping[str, object]) -> dict[str, str]:
    env = fields.get("env") or {}
    assert isinstance(env, dict)
    return env


def _tell(text: str) -> None:
    """Our own words, beside what the ranks write."""
    sys.stdout.flush()
    sys.stderr.write(f"accel-nb launch: {text}\n")
    sys.stderr.flush()
