"""The launcher's arguments as options: each field, each spelling, each refusal."""

from __future__ import annotations

import inspect

import pytest

from accel_nb import notebook_launcher
from accel_nb.cli.options import (
    SAID_OTHERWISE,
    OptionParser,
    add_launch_options,
    launch_arguments,
    launch_request,
    suggestions,
)
from accel_nb.errors import InvalidArgument
from accel_nb.protocol.plan import LaunchRequest, Timeouts


def made() -> OptionParser:
    parser = OptionParser("%%accelerate", "Run this cell on every rank.")
    add_launch_options(parser)
    return parser


def request(line: str) -> LaunchRequest:
    return launch_request(made().parse_args(line.split()))


def test_every_argument_of_the_launcher_is_an_option_and_no_other() -> None:
    options = {action.dest for action in made()._actions}
    arguments = set(inspect.signature(notebook_launcher).parameters)

    assert options | {"block"} == arguments - {"function", "args", "kwargs"}
    assert options | SAID_OTHERWISE == set(LaunchRequest.__struct_fields__)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("--num-processes 4", "num_processes", 4),
        ("--num_processes 4", "num_processes", 4),
        ("--mixed_precision bf16", "mixed_precision", "bf16"),
        ("--devices 3,1", "devices", (3, 1)),
        ("--devices GPU-4f,0", "devices", ("GPU-4f", 0)),
        ("--env A=1 --env B=x=y", "env", {"A": "1", "B": "x=y"}),
        ("--debug", "debug", True),
        ("--no-debug", "debug", False),
        ("--dry-run", "dry_run", True),
        ("--monitor-interval 0.5", "monitor_interval", 0.5),
        ("--on-failure return", "on_failure", "return"),
        ("--rdzv_conf a=1,b=2", "rdzv_conf", {"a": "1", "b": "2"}),
        ("--timeouts start_s=90,stalled_s=5", "timeouts", Timeouts(start_s=90, stalled_s=5)),
    ],
)
def test_an_option_sets_its_field_and_nothing_else(line: str, field: str, value: object) -> None:
    options = made().parse_args(line.split())

    assert launch_arguments(options) == {field: value}
    assert launch_request(options) == LaunchRequest(**{field: value})  # type: ignore[arg-type]


def test_what_is_not_given_is_the_launchers_default() -> None:
    assert request("") == LaunchRequest()


def test_fields_said_otherwise_win() -> None:
    options = made().parse_args(["--returns", "all"])

    assert launch_request(options, function_name="Cell In[3]", returns="main").returns == "main"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--num-procs 2", r"%%accelerate: unrecognized arguments: --num-procs 2\. %%accelerate --help tells all"),
        ("--num 2", r"unrecognized arguments: --num 2"),
        ("--num-processes two", r"argument --num-processes/--num_processes: invalid int value: 'two'"),
        ("--on-failure shrug", r"invalid choice: 'shrug' \(choose from '?raise'?, '?return'?\)"),
        ("--devices 1,,2", r"'1,,2' has an empty entry; write positions or ids, as in 3,1"),
        ("--env A", r"'A' is no NAME=VALUE"),
        ("--timeouts begin_s=3", r"'begin_s' is not known; allowed: start_s, rendezvous_s, stalled_s, stop_grace_s"),
        ("--timeouts start_s=soon", r"start_s='soon' is no number of seconds"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(line: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        request(line)


def test_completion_offers_options_and_the_values_of_one() -> None:
    parser = made()

    assert suggestions(parser, "%%accelerate ", "--mi") == ["--mixed-precision"]
    assert suggestions(parser, "%%accelerate --mixed-precision ", "") == ["no", "bf16", "fp16"]
    assert suggestions(parser, "%%accelerate --on-failure ", "ra") == ["raise"]
    assert suggestions(parser, "%%accelerate --dry-run ", "--dev") == ["--device", "--devices"]
    assert suggestions(parser, "%%accelerate --num-processes ", "") == []
