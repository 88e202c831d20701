"""What a keeper on this machine is to be told, out of the order that the kernel gave for all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from ....protocol import environment
from ....protocol.commands import RunOrder, Surroundings
from ....protocol.remote import AgentHello

_OF_MACHINE = ("HOSTNAME", "HOST", "TMPDIR", "XDG_RUNTIME_DIR", "DISPLAY", "SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
"""Variables that say something about the machine, or the log-in there, and not about what the user wants."""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def adapted(
    order: RunOrder,
    hello: AgentHello,
    folder: Path,
    *,
    own: Mapping[str, str],
    surroundings: Surroundings | None,
    kernels_place: bool,
) -> RunOrder:
    """`order` for the keeper beside this agent. `folder`: in place of the kernel's. `own`: this process's variables.
    `surroundings`: what the ranks take over, in place of the kernel's. `kernels_place`: this is the kernel's machine.
    """
    plan = order.plan
    env = {**environment.mpi_variables(own), **plan.env}
    if len({rank.node for rank in plan.ranks}) > 1 and hello.interface:
        env = {**dict.fromkeys(INTERFACES, hello.interface), **env}
    around = surroundings or order.surroundings
    if surroundings is None and not kernels_place:
        around = replace(around, variables=_here(around.variables, own))
    return replace(
        order,
        plan=replace(plan, env=env),
        surroundings=around,
        log_dir=str(folder),
        port_given=bool(hello.store_port),
    )


def _here(kernels: Mapping[bytes, bytes], own: Mapping[str, str]) -> dict[bytes, bytes]:
    """The kernel's variables, as they are on this machine."""
    left = {name: value for name, value in environment.from_bytes(kernels).items() if name not in _OF_MACHINE}
    return environment.to_bytes(left | {name: own[name] for name in _OF_MACHINE if name in own})
