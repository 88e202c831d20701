"""Refuse what can never be carried out, before devices are looked for: types, values, what has not been built, and
systems that lack what ranks are held with.

Every refusal is one sentence with the offending value and the allowed ones.
"""

from __future__ import annotations

import errno
import functools
import math
import operator
import os
import reprlib
import string
import threading
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import SupportsIndex, TypeVar

from ...errors import InvalidArgument, PlanError
from ...protocol.environment import RANK_CONTRACT_NAMES
from ...protocol.plan import LaunchRequest, OnFailure, Returns, StartMethod, Timeouts
from .nodes import check_nodes

Given = TypeVar("Given")
PREFIX_FIELDS = ("role_name", "rank", "local_rank")
"""What torchrun fills into ``log_line_prefix_template`` (``torch/distributed/elastic/agent/server/api.py``)."""


def check_platform(platform: str) -> None:
    """`platform` is ``sys.platform``. Raises `PlanError` on anything but Linux."""
    if platform.startswith("linux"):
        return
    if platform.startswith(("win", "cygwin")):
        raise PlanError("accel_nb does not run on Windows itself: start Jupyter inside WSL 2, where it does.")
    if platform == "darwin":
        raise PlanError("macOS support has not landed in this version of accel_nb: it runs on Linux.")
    raise PlanError(f"accel_nb runs on Linux, and this platform calls itself {platform!r}.")


@functools.cache
def check_system(process: Path = Path("/proc/self")) -> None:
    """Whether this Python, Linux and container offer what ranks are held with. `process` is this process in procfs.

    Raises `PlanError` at the first thing missing; once all was there it is not looked at again.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))
    except AttributeError as error:
        raise PlanError(
            "This Python has no os.pidfd_open, by which ranks are watched: it was built for an older Linux than 5.3. "
            "Use a Python that was built for Linux 5.3 or newer."
        ) from error
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        raise PlanError(
            f"The system call pidfd_open, by which ranks are watched, failed here: {error.strerror}. It needs Linux "
            "5.3 or newer; in a container also a runtime that allows it: use a newer one."
        ) from error
    children = process / "task" / str(threading.get_native_id()) / "children"
    if not children.exists():
        raise PlanError(
            f"{children}, by which processes that ranks leave behind are found, does not exist. It needs a Linux that "
            "was built with CONFIG_PROC_CHILDREN; in a container also a runtime that shows it: use a newer one."
        )


def check_arguments(*, args: object, kwargs: object, devices: object, env: object, timeouts: object) -> None:
    """Types of what a call was given, before a request is made of it; None is what was left out, but for `args`.

    Raises `InvalidArgument`.
    """
    if not _is_sequence(args):
        shown = _shown(args)
        by_name = f" For arguments by name write kwargs={shown}." if isinstance(args, Mapping) else ""
        raise InvalidArgument(
            f"args={shown} is one argument, not a sequence of them: write args=({shown},), or leave args out for none."
            f"{by_name}"
        )
    for name, value, entry in (("kwargs", kwargs, "'name': value"), ("env", env, "'NAME': 'value'")):
        if value is not None and not isinstance(value, Mapping):
            raise InvalidArgument(f"{name}={_shown(value)} is no mapping: write {name}={{{entry}}}.")
    for key in kwargs if isinstance(kwargs, Mapping) else ():
        if not isinstance(key, str):
            raise InvalidArgument(f"kwargs: {_shown(key)} cannot be the name of an argument; names are str.")
    if devices is not None and not _is_sequence(devices):
        shown = _shown(devices)
        raise InvalidArgument(f"devices={shown} is one device, not a sequence of them: write devices=[{shown}].")
    if timeouts is not None and not isinstance(timeouts, Timeouts):
        fields = "=..., ".join(Timeouts.__struct_fields__)
        raise InvalidArgument(f"timeouts={_shown(timeouts)}: write Timeouts({fields}=...), all of them in seconds.")


def plain_int(value: Given) -> Given | int:
    """NumPy's integers and their like as an int; anything else, True and False too, as it is: for checks to refuse."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return value
    try:
        return operator.index(value)
    except TypeError:
        # An array: it has the method, but only for a single integer.
        return value


def check_request(request: LaunchRequest, *, visibility_variables: Iterable[str]) -> None:
    """Raises `InvalidArgument` for a wrong value, `PlanError` or `EngineUnavailable` for what has not been built."""
    _check_numbers(request)
    _check_choices(request)
    _check_prefix_template(request.log_line_prefix_template)
    _check_env((request.env or {}).items(), frozenset(visibility_variables))
    check_nodes(request)


def checked_port(request: LaunchRequest) -> int | None:
    """`use_port` as a number; None when the system is to choose (left out, or 0 as upstream allows)."""
    if request.use_port is None:
        return None
    text = str(request.use_port)  # upstream's signature says str, its users give either
    if not text.isdecimal() or int(text) > 65535:  # noqa: PLR2004  16 bits
        raise InvalidArgument(
            f"use_port={request.use_port!r}: a port is a whole number from 1 to 65535; "
            "leave use_port out and a free port is chosen."
        )
    return int(text) or None


def is_whole(value: object, *, least: int) -> bool:
    """True for an int of at least `least`; True and False are no numbers here."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_numbers(request: LaunchRequest) -> None:
    if request.num_processes is not None and not is_whole(request.num_processes, least=1):
        raise InvalidArgument(
            f"num_processes={request.num_processes!r}: give a whole number of at least 1, or leave it out for one rank "
            "per visible accelerator."
        )
    if not is_whole(request.max_restarts, least=0):
        raise InvalidArgument(f"max_restarts={request.max_restarts!r}: give a whole number of at least 0.")
    if not _is_positive(request.monitor_interval):
        raise InvalidArgument(f"monitor_interval={request.monitor_interval!r}: give a number of seconds above 0.")
    for name in request.timeouts.__struct_fields__:
        value = getattr(request.timeouts, name)
        if not _is_positive(value):
            raise InvalidArgument(f"timeouts.{name}={value!r}: give a number of seconds above 0.")
    checked_port(request)


def _check_choices(request: LaunchRequest) -> None:
    _check_choice("start_method", request.start_method, typing.get_args(StartMethod))
    _check_choice("returns", request.returns, typing.get_args(Returns))
    _check_choice("on_failure", request.on_failure, typing.get_args(OnFailure))
    if request.mixed_precision == "fp8":
        raise PlanError("mixed_precision='fp8' is not part of this version: use 'bf16', 'fp16' or 'no'.")
    _check_choice("mixed_precision", request.mixed_precision, ("no", "bf16", "fp16"))
    if request.backend in ("gloo", "nccl"):
        raise InvalidArgument(
            f"backend={request.backend!r} names no engine: gloo and nccl follow from the device; leave backend out."
        )
    _check_str("device", request.device)
    _check_flag("dry_run", request.dry_run)
    _check_flag("memory_snapshot", request.memory_snapshot)
    _check_str("backend", request.backend)
    _check_str("hostfile", request.hostfile)
    if request.hostfile and request.backend != "mpi":
        raise InvalidArgument(f"hostfile={request.hostfile!r} is for backend='mpi'; give both, or leave hostfile out.")


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidArgument(f"{name}={value!r} is not known; allowed: {', '.join(map(repr, allowed))}.")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name}={_shown(value)}: give True or False.")


def _check_str(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name}={_shown(value)}: give a str.")


def _check_prefix_template(template: str | None) -> None:
    if template is None:
        return
    _check_str("log_line_prefix_template", template)
    parsed = string.Template(template)
    fields = "${" + "}, ${".join(PREFIX_FIELDS) + "}"
    if not parsed.is_valid():
        raise InvalidArgument(
            f"log_line_prefix_template={template!r} is no string.Template: write $$ for a dollar sign, and {fields} "
            "for what each rank fills in."
        )
    unknown = [name for name in parsed.get_identifiers() if name not in PREFIX_FIELDS]
    if unknown:
        raise InvalidArgument(
            f"log_line_prefix_template={template!r}: ${{{unknown[0]}}} is not known; allowed: {fields}."
        )


def _check_env(env: Iterable[tuple[object, object]], visibility_variables: frozenset[str]) -> None:
    for name, value in env:
        if not isinstance(name, str) or not _can_be_sent(name) or not name or "=" in name or "\0" in name:
            raise InvalidArgument(f"env: {_shown(name)} cannot be the name of a variable.")
        if not isinstance(value, str) or "\0" in value:
            raise InvalidArgument(f"env: {name} is {value!r}; the value of a variable is a str without NUL.")
        if not _can_be_sent(value):
            raise InvalidArgument(
                f"env: {name} is {value!r}, which cannot be encoded. Variables of the kernel reach the ranks as they "
                "are, without env."
            )
        if name in RANK_CONTRACT_NAMES:
            raise InvalidArgument(
                f"env: {name} cannot be set, each rank gets its own from the launcher"
                f"{_ARGUMENT_FOR.get(name, '')}; take it out of env."
            )
        if name in visibility_variables:
            raise InvalidArgument(
                f"env: {name} cannot be set, the launcher composes it; choose with devices=[...] or device='cpu'."
            )


_ARGUMENT_FOR = {
    "WORLD_SIZE": " (num_processes= says how many)",
    "MASTER_PORT": " (use_port= chooses it)",
    "TORCHELASTIC_MAX_RESTARTS": " (max_restarts= says how many)",
    "ACCELERATE_MIXED_PRECISION": " (mixed_precision= chooses it)",
    "ACCELERATE_USE_CPU": " (device='cpu' chooses it)",
}


def _can_be_sent(text: str) -> bool:
    """As text to other processes, and to the system."""
    try:
        text.encode()
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _is_sequence(value: object) -> bool:
    """A str is one thing here."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _shown(value: object) -> str:
    """Any object on one short line."""
    return " ".join(reprlib.repr(value).split())


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
