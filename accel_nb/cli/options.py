"""The launcher's arguments as options of a command line: one parser for the shell and for the notebook's magics.

`LaunchRequest` field by field ──> argparse options ──> arguments as `notebook_launcher` takes them ──> `LaunchRequest`
"""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import NoReturn

from ..errors import InvalidArgument
from ..launch.settings.settings import listed_devices
from ..protocol.plan import LaunchRequest, Timeouts

SAID_OTHERWISE = frozenset({"function_name", "block", "origins", "settings_file", "notices"})
"""Fields that no option sets: what is launched says its name, each face has its own way not to wait, and which places
settings come from is for the face to know that has read them."""

_HELP = {
    "num_processes": "number of ranks; left out: one per visible accelerator, else 1",
    "mixed_precision": "what an Accelerator in the ranks uses by default: no, bf16 or fp16",
    "use_port": "a fixed port for the ranks' store; left out: a free one",
    "master_addr": "address of node 0 that the other machines reach",
    "node_rank": "number of this machine, from 0 on",
    "num_nodes": "number of machines, each of which makes this launch; the number of processes is that of each",
    "rdzv_backend": "torch's rendezvous of several machines: static, or c10d",
    "rdzv_endpoint": "where they meet: address:port, in place of --master-addr and --use-port",
    "rdzv_conf": "settings of that rendezvous: timeout=300",
    "rdzv_id": "a word that only you know, the same on every machine: who knows it takes part",
    "max_restarts": "how often all ranks are started again after a failure",
    "monitor_interval": "seconds between two looks at the ranks' output",
    "log_line_prefix_template": "prefix of output lines, with ${rank}, ${local_rank}, ${role_name}",
    "devices": "which accelerators, in the order of the ranks, by position or id: 3,1",
    "device": "auto, cuda or cpu; one that is not there is an error",
    "backend": "what starts the ranks: auto, local, mpi, ray or elastic",
    "hostfile": "with --backend mpi: file of the hosts that run ranks, one a line: host, host slots=4 or host:4",
    "env": "a variable for the ranks; may be repeated",
    "debug": "compare the ranks' operations before they run, also where that costs something; --no-debug: never",
    "on_failure": "raise, or return a result that holds the failures",
    "start_method": "how rank processes come to be",
    "returns": "whose value is brought back",
    "dry_run": "run one step on CPU ranks, and tell what would go wrong",
    "memory_snapshot": "record where GPU memory is allocated, and tell the lines when a rank fails",
    "timeouts": f"seconds by name: start_s=120,stalled_s=60; names: {', '.join(Timeouts.__struct_fields__)}",
}
SUGGESTED = {
    "mixed_precision": ("no", "bf16", "fp16"),
    "device": ("auto", "cuda", "cpu"),
    "backend": ("auto", "local", "mpi", "ray", "elastic"),
}
"""For completion. What is allowed is for the planner to say, which knows the machine."""
_METAVARS = {int: "N", float: "S", str: "TEXT"}


class OptionParser(argparse.ArgumentParser):
    """argparse that raises `InvalidArgument` instead of ending the process; abbreviations are not guessed."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(f"{self.prog}: {message}. {self.prog} --help tells all options.")


def add_launch_options(parser: argparse.ArgumentParser, leave_out: Collection[str] = ()) -> None:
    """One option per field of `LaunchRequest`, ``--num-processes`` with upstream's ``--num_processes`` beside it.

    What is not given is not in the namespace either.
    """
    hints = typing.get_type_hints(LaunchRequest)
    for field in LaunchRequest.__struct_fields__:
        if field not in SAID_OTHERWISE and field not in leave_out:
            spellings = dict.fromkeys((f"--{field.replace('_', '-')}", f"--{field}"))
            parser.add_argument(*spellings, dest=field, help=_HELP[field], **_reading(field, hints[field]))


def launch_arguments(options: argparse.Namespace) -> dict[str, object]:
    """The launcher's arguments that were given, by their name, as `notebook_launcher` takes them."""
    given = {name: value for name, value in vars(options).items() if name in LaunchRequest.__struct_fields__}
    if "env" in given:
        given["env"] = dict(given["env"])
    return given


def launch_request(options: argparse.Namespace, **more: object) -> LaunchRequest:
    """The request that `options` and the fields of `more` make, which win. Checked later, by the planner."""
    given = {**launch_arguments(options), **more}
    return LaunchRequest(**given)  # type: ignore[arg-type]  # by the types of the options


def suggestions(parser: argparse.ArgumentParser, before: str, text: str) -> list[str]:
    """How `text`, behind the words `before`, may go on: options, or values of the option before it."""
    actions = {spelling: action for action in parser._actions for spelling in action.option_strings}  # noqa: SLF001  argparse has no other way to list them
    last = actions.get((before.split() or [""])[-1])
    if last is not None and last.nargs != 0:
        values = last.choices or SUGGESTED.get(last.dest, ())
        return [str(value) for value in values if str(value).startswith(text)]
    return sorted(option for option in actions if option.startswith(text) and "_" not in option)


def _reading(field: str, hint: object) -> dict[str, typing.Any]:
    """How argparse is to read one field, by its type."""
    own = _OWN_FORMS.get(field)
    if own is not None:
        metavar, read = own
        return {
            "type": read,
            "metavar": metavar,
            "default": argparse.SUPPRESS,
            **({"action": "append"} if field == "env" else {}),
        }
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not types.NoneType]
    if typing.get_origin(hint) is typing.Literal:
        return {"choices": typing.get_args(hint), "default": argparse.SUPPRESS}
    if kinds == [bool]:
        may_be_unsaid = types.NoneType in typing.get_args(hint)
        action = argparse.BooleanOptionalAction if may_be_unsaid else "store_true"
        return {"action": action, "default": argparse.SUPPRESS}
    (kind,) = kinds
    return {"type": kind, "metavar": _METAVARS[kind], "default": argparse.SUPPRESS}


def device_list(text: str) -> tuple[int | str, ...]:
    """``0,2`` as `notebook_launcher` takes it. Raises argparse's own error, with the text."""
    try:
        return listed_devices(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, value


def _pairs(text: str) -> dict[str, str]:
    pairs = [_variable(entry) for entry in text.split(",")]
    return {name.strip(): value.strip() for name, value in pairs}


def _timeouts(text: str) -> Timeouts:
    seconds: Mapping[str, str] = _pairs(text)
    for name, value in seconds.items():
        if name not in Timeouts.__struct_fields__:
            allowed = ", ".join(Timeouts.__struct_fields__)
            raise argparse.ArgumentTypeError(f"{name!r} is not known; allowed: {allowed}")
        if not _is_number(value):
            raise argparse.ArgumentTypeError(f"{name}={value!r} is no number of seconds")
    return Timeouts(**{name: float(value) for name, value in seconds.items()})


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_OWN_FORMS: dict[str, tuple[str, Callable[[str], object]]] = {
    "devices": ("LIST", device_list),
    "env": ("NAME=VALUE", _variable),
    "rdzv_conf": ("KEY=VALUE,...", _pairs),
    "timeouts": ("NAME=S,...", _timeouts),
}
"""Field -> how its value is shown in the help, and read."""
