"""Ranks by mpirun: of Open MPI, MPICH or Intel MPI, on this machine or on the hosts of a host file.

    kernel ── mpirun ──▶ agent of rank 0 ── keeper ──▶ rank 0        one agent per process that mpirun starts
                    └──▶ agent of rank 1 ── keeper ──▶ rank 1

The kernel itself never loads an MPI library: what one of them does in a rank (``MPI_Abort``) ends the run,
not the kernel.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from ...errors import EngineUnavailable, PlanError, StartError
from ...protocol import environment
from ...protocol.hardware import NodeHardware
from ...protocol.plan import LaunchPlan, LaunchRequest
from ..interpreter import interpreter_command
from ..planning.nodes import LOOPBACK, is_loopback_name
from .engine import Attempt
from .on_mpi.hosts import HostLine, HostShare, own_names, read_hostfile, share_out
from .on_mpi.mpirun import Mpirun
from .on_mpi.programs import MpiProgram, find_program
from .on_mpi.ssh_check import ssh_problems
from .remote.hub import Hub
from .remote.joined_group import JoinedGroup
from .remote.limits import check_limits

_THIS_MACHINE = HostLine("localhost", None)
_ANY_PORT = 9
"""Of discard (RFC 863); nothing is sent there."""
_FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", environment.CONTACT)
"""What an agent needs before it has its order. Ranks get the whole environment with theirs."""


class MpiEngine:
    """One agent per process of one mpirun per attempt."""

    name = "mpi"

    def check(self, request: LaunchRequest) -> None:
        check_limits(request)
        if request.use_port:
            raise PlanError(
                f"use_port={request.use_port!r} is not possible with backend='mpi': the ranks meet where rank 0 runs, "
                "at a port that is free there. Leave use_port out."
            )
        find_program(environment.current())
        if request.hostfile and len(read_hostfile(request.hostfile)) > 1 and request.devices is not None:
            raise PlanError(
                f"devices={list(request.devices)!r} is not possible on the hosts of hostfile={request.hostfile!r}: "
                "each rank takes the device of its local rank there. Leave devices out."
            )

    def hardware(self, request: LaunchRequest, own: NodeHardware) -> NodeHardware:
        """The devices of this machine, as often as there are hosts: what others really have, their agents say. Over
        several hosts devices go by number, since an id is that of one machine's device.
        """
        num_hosts = len(read_hostfile(request.hostfile)) if request.hostfile else 1
        if num_hosts == 1:
            return own
        numbered = {kind: tuple(replace(one, uuid="") for one in found) for kind, found in own.devices.items()}
        return replace(own, devices={kind: found * num_hosts for kind, found in numbered.items()})

    def check_plan(self, plan: LaunchPlan) -> None:
        """Hosts are asked when the run starts: a plan may only be wanted to be looked at."""

    def num_tries(self) -> int:
        return 1

    def start(self, attempt: Attempt, _cancelled: Callable[[], bool]) -> JoinedGroup:
        """Raises EngineUnavailable where a host cannot be reached, StartError."""
        plan = attempt.plan
        variables = environment.rank_environment(attempt.surroundings.variables, plan, {})
        program = find_program(variables)
        lines = read_hostfile(plan.hostfile) if plan.hostfile else [_THIS_MACHINE]
        shares = share_out(lines, plan.num_ranks, own_names())
        _check_ssh(program, shares, variables)
        hub = Hub(
            _addresses(shares, plan.rendezvous_host),
            [(rank,) for rank in range(plan.num_ranks)],
            run_id=plan.run_id,
            start_method=plan.start_method,
        )
        try:
            variables |= {environment.CONTACT: hub.contact.encode()}
            mpirun = _mpirun(program, shares, variables, attempt.log_dir)
        except BaseException:
            hub.close()
            raise
        return JoinedGroup(attempt, hub, mpirun)

    def learn(self, attempt: Attempt, modules: Sequence[str]) -> None:
        """Each launch begins with fresh processes."""


def _check_ssh(program: MpiProgram, shares: Sequence[HostShare], variables: dict[str, str]) -> None:
    """mpirun itself says little, or waits, when a host does not let it in."""
    ssh = program.ssh(variables)
    if not ssh:
        return
    problems = ssh_problems(ssh, [share.host for share in shares if not share.is_here], variables)
    if not problems:
        return
    told = "; ".join(f"{host}: {reason}" for host, reason in problems.items())
    host = next(iter(problems))
    raise EngineUnavailable(
        f"mpirun cannot start ranks on {', '.join(problems)}: ssh does not get there without a question ({told}). "
        f"`{shlex.join([*ssh, host, 'true'])}` must answer by itself: ssh-keygen, ssh-copy-id {host}."
    )


def _addresses(shares: Sequence[HostShare], given: str) -> list[str]:
    """This machine's, by which agents on all hosts reach it. `given`: what the user says; a loopback address says
    nothing. Loopback only where all ranks are here. Raises EngineUnavailable.
    """
    if not is_loopback_name(given):
        return [given]
    others = [share.host for share in shares if not share.is_here]
    if not others:
        return [LOOPBACK]
    return list(dict.fromkeys(_address_towards(host) for host in others))


def _address_towards(host: str) -> str:
    """This machine's address on the way to `host`, as the system routes."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise EngineUnavailable(f"There is no way from this machine to {host}: {error.strerror}.") from error


def _mpirun(program: MpiProgram, shares: Sequence[HostShare], variables: dict[str, str], log_dir: Path) -> Mpirun:
    hostfile = log_dir / "mpirun_hosts.txt"
    try:
        hostfile.write_text(program.hostfile_text(shares), encoding="utf-8")
    except OSError as error:
        raise StartError(f"{hostfile}, which tells mpirun the hosts, cannot be written: {error.strerror}.") from error
    agent = interpreter_command("accel_nb.launch.engines.on_mpi.summoned", "become_agent", [])
    names = [name for name in _FORWARDED if name in variables]
    return Mpirun(program.command(shares, hostfile, names, agent), variables, shares, log_dir / "mpirun.log")


ENGINE = MpiEngine()
