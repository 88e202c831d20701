"""Settings that a file keeps between launches, and how a launch is put together from them and from what is said.

arguments, options, choices ─┐
the file's settings ─────────┼─> `request_from` ──> `LaunchRequest`, which knows where each field comes from
variables, defaults ─────────┘
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ...errors import PlanError
from ...protocol.plan import THE_CALL, LaunchRequest

_DECIDE_TOGETHER = frozenset({"num_processes", "devices", "device"})
"""One of these that is said overrules all of them in the file, which were chosen to fit each other."""

_OF_SEVERAL_MACHINES = frozenset({"node_rank", "master_addr", "rdzv_backend"})
"""Refused when there is one."""
_REFUSED_BY_ENGINE = {
    "mpi": frozenset({"num_nodes", "node_rank", "rdzv_backend", "use_port"}),
    "ray": frozenset({"num_nodes", "node_rank", "rdzv_backend", "use_port", "master_addr", "devices"}),
}
"""Engine -> what it refuses and a file may say, which was chosen for another engine."""


class Settings(NamedTuple):
    """What was found."""

    fields: Mapping[str, object]
    """Of `LaunchRequest`."""
    variables: Mapping[str, str]
    """For the ranks."""
    notices: tuple[str, ...] = ()
    """One sentence for each thing that stands there and has no effect."""


class Found(NamedTuple):
    """What a file says, and which one."""

    settings: Settings = Settings({}, {})
    path: Path | None = None
    """None: there is none, or none is wanted."""

    @property
    def place(self) -> str:
        """For people; empty without a file."""
        return "" if self.path is None else str(self.path)

    def beside(self, said: Mapping[str, object]) -> dict[str, object]:
        """Those of its fields that count where `said` has been said, which overrules them, field by field, and with
        them what would have to be left out beside it: nobody can leave out what stands in a file.
        """
        gone = set(said)
        if said.keys() & _DECIDE_TOGETHER:
            gone |= _DECIDE_TOGETHER
        if "backend" in said:
            gone |= {"hostfile"} | _REFUSED_BY_ENGINE.get(str(said["backend"]), frozenset())
        if said.get("num_nodes") == 1:
            gone |= _OF_SEVERAL_MACHINES
        return {name: value for name, value in self.settings.fields.items() if name not in gone}


def request_from(
    said: Mapping[str, object],
    found: Found,
    *,
    said_by: str = THE_CALL,
    assumed: Mapping[str, tuple[str, object]] | None = None,
) -> LaunchRequest:
    """The launch that is asked for.

    `said`: fields of `LaunchRequest`; their ``env`` is laid over the file's variables. `said_by`: where they were said,
    in words. `assumed`: what counts where neither they nor the file speak: field -> place, value.
    """
    from_file = found.beside(said)
    guessed = {name: origin for name, origin in (assumed or {}).items() if name not in said and name not in from_file}
    env = {**found.settings.variables, **_env(said)}
    origins = {
        **{name: place for name, (place, _) in guessed.items()},
        **dict.fromkeys((*from_file, *(["env"] if env else [])), found.place),
        **{name: said_by for name, value in said.items() if name != "env" or value},
    }
    fields = {**{name: value for name, (_, value) in guessed.items()}, **from_file, **said, "env": env or None}
    fields |= {"origins": origins, "settings_file": found.place, "notices": found.settings.notices}
    return LaunchRequest(**fields)  # type: ignore[arg-type]  # by the types of arguments and options


def listed_devices(text: str) -> tuple[int | str, ...]:
    """``0,GPU-4f`` as `LaunchRequest` has it. ValueError for a list with a hole."""
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise ValueError(f"{text!r} has an empty entry; write positions or ids, as in 3,1")
    return tuple(int(entry) if entry.isdecimal() else entry for entry in entries)


@contextlib.contextmanager
def naming_the_file(request: LaunchRequest) -> Iterator[None]:
    """A refusal within tells which of the request's settings nobody has typed."""
    try:
        yield
    except PlanError as error:
        names = [name for name, place in request.origins.items() if place == request.settings_file]
        if names:
            error.args = (f"{error} From {request.settings_file}: {', '.join(names)}.",)
        raise


def _env(said: Mapping[str, object]) -> dict[str, str]:
    env = said.get("env") or {}
    assert isinstance(env, dict)
    return env
