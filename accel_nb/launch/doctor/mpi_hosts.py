"""MPI: which one is here, and whether ssh reaches the other hosts that it is configured for."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ...errors import InvalidArgument
from ...protocol.diagnosis import Fact, Finding
from ...protocol.hardware import NodeHardware
from ..engines.on_mpi.hosts import own_names, read_hostfile
from ..engines.on_mpi.ssh_check import ssh_problems

GROUP = "software"
SSH_TIMEOUT_S = 3
MAX_HOSTS = 16
HOSTFILE_VARIABLES = (
    "OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile", "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE",
)  # fmt: skip
"""Where Open MPI 4 and 5, MPICH and Intel MPI look for hosts."""


def facts(hardware: NodeHardware, hosts: Iterable[str]) -> Iterator[Fact]:
    command = hardware.mpi_command
    yield Fact(group=GROUP, name="MPI", value=f"{version(command)} ({command})" if command else "none on PATH")
    listed = ", ".join(hosts)
    if listed:
        yield Fact(group=GROUP, name="MPI hosts", value=listed)


def version(command: str) -> str:
    """The first line of ``mpirun --version`` that has a number."""
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not answer: {error}"
    lines = [line.strip() for line in done.stdout.splitlines() if re.search(r"\d+\.\d+", line)]
    return lines[0] if lines else "unknown version"


def configured_hosts(variables: Mapping[str, str], hardware: NodeHardware) -> list[str]:
    """Other hosts than this one in the host file that a variable or Accelerate's configuration names."""
    names = [variables[name] for name in HOSTFILE_VARIABLES if variables.get(name)]
    if hardware.saved_config is not None:
        names += re.findall(
            r"^\s+mpirun_hostfile:\s*['\"]?([^\s'\"]+)", _text(hardware.saved_config.path), re.MULTILINE
        )
    here = own_names() | {hardware.host}
    hosts = [host for name in names for host in _hosts_in(name) if host not in here]
    return list(dict.fromkeys(hosts))[:MAX_HOSTS]


def _hosts_in(hostfile: str) -> list[str]:
    """None in one that is not there, or that a launch would refuse."""
    try:
        return [line.host for line in read_hostfile(hostfile)]
    except InvalidArgument:
        return []


def findings(hosts: list[str], variables: Mapping[str, str]) -> Iterator[Finding]:
    """Takes little more than `SSH_TIMEOUT_S`; nothing is asked without other hosts."""
    if not hosts:
        return
    ssh = shutil.which("ssh", path=variables.get("PATH"))
    if ssh is None:
        yield Finding(
            severity="problem",
            what="MPI is configured for other hosts, and there is no ssh.",
            why=f"mpirun starts its helpers on {', '.join(hosts)} by ssh.",
            remedy="Install the ssh client (openssh-client).",
        )
        return
    for host, reason in ssh_problems([ssh], hosts, variables, SSH_TIMEOUT_S).items():
        yield Finding(
            severity="problem",
            what=f"ssh does not reach {host} without asking.",
            why=f"mpirun starts its helpers there by ssh, which said: {reason}",
            remedy=f"`ssh {host} true` must answer without a question: ssh-keygen, ssh-copy-id {host}.",
        )


def _text(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
