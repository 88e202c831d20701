"""Which MPI an mpirun belongs to, recognised by what it answers, and what is said to it in its own options.

Sources: mpirun(1) of Open MPI 4.1 and 5.0; "Using the Hydra Process Manager" (MPICH 4); Intel MPI Library Developer
Reference, "Hydra Global Options".
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ....errors import EngineUnavailable
from ....protocol import environment
from .hosts import HostShare

Family = Literal["Open MPI", "MPICH", "Intel MPI"]

ANSWER_S = 20.0
_NAMES = ("mpirun", "mpiexec")
_MARKS: tuple[tuple[str, Family], ...] = (
    ("Intel(R) MPI", "Intel MPI"),
    ("Open MPI", "Open MPI"),
    ("OpenRTE", "Open MPI"),
    ("HYDRA build details", "MPICH"),
)
"""In what ``mpirun --version`` says. Intel's is a hydra, too: it comes first."""
_OPEN_MPI_5 = 5


class MpiProgram(msgspec.Struct, frozen=True):
    """An mpirun."""

    path: str
    family: Family
    version: str
    """As it says it: ``4.1.4``."""

    def command(
        self, shares: Sequence[HostShare], hostfile: Path, names: Sequence[str], program: Sequence[str]
    ) -> list[str]:
        """The whole line: ranks as in `shares`, which `hostfile` says in this family's way. `names`: of variables that
        the ranks are to get from mpirun's environment. `program`: what each of them runs.
        """
        num_ranks = sum(share.num_ranks for share in shares)
        own = self._open_mpi(names) if self.family == "Open MPI" else self._hydra()
        hosts = [_HOSTFILE[self.family], str(hostfile)] if len(shares) > 1 or not shares[0].is_here else []
        return [self.path, *own, *hosts, "-n", str(num_ranks), *program]

    def hostfile_text(self, shares: Sequence[HostShare]) -> str:
        """So many ranks on each host, in this order."""
        form = "{} slots={}\n" if self.family == "Open MPI" else "{}:{}\n"
        return "".join(form.format(share.host, share.num_ranks) for share in shares)

    def ssh(self, variables: Mapping[str, str]) -> tuple[str, ...]:
        """What it logs in to other hosts with, a program and its options; empty: it does not, by what is set."""
        launchers = [variables[name] for name in _LAUNCHER_VARIABLES[self.family] if variables.get(name)]
        if launchers and launchers[0] not in _LOG_IN:
            return ()
        for name in _SSH_VARIABLES[self.family]:
            # Open MPI takes several, of which the first is meant to be there.
            if words := variables.get(name, "").split(":")[0].split():
                return tuple(words)
        return ("ssh",)

    def _open_mpi(self, names: Sequence[str]) -> list[str]:
        is_new = int(self.version.partition(".")[0]) >= _OPEN_MPI_5
        crowded = ["--map-by", ":OVERSUBSCRIBE"] if is_new else ["--oversubscribe"]
        # In a container people are root; Open MPI wants to hear that they mean it.
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        # A rank is several processes, and its threads are the launcher's business.
        forwarded = [word for name in names for word in ("-x", name)]
        return [*root, *crowded, "--bind-to", "none", *forwarded]

    def _hydra(self) -> list[str]:
        # It forwards the whole environment; said, since a variable of its own can switch that off.
        return ["-genvall"]


_HOSTFILE: Mapping[Family, str] = {"Open MPI": "--hostfile", "MPICH": "-f", "Intel MPI": "-f"}
_SSH_VARIABLES: Mapping[Family, tuple[str, ...]] = {
    "Open MPI": ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"),
    "MPICH": ("HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP_EXEC"),
    "Intel MPI": ("I_MPI_HYDRA_BOOTSTRAP_EXEC",),
}
_LAUNCHER_VARIABLES: Mapping[Family, tuple[str, ...]] = {
    "Open MPI": ("OMPI_MCA_plm", "PRTE_MCA_plm"),
    "MPICH": ("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP"),
    "Intel MPI": ("I_MPI_HYDRA_BOOTSTRAP",),
}
_LOG_IN = ("ssh", "rsh")
"""Values of those that mean a log-in; others are a scheduler's: "slurm", "tm", "lsf"."""


def find_program(variables: Mapping[str, str]) -> MpiProgram:
    """The mpirun, or mpiexec, that `variables` have on PATH. Raises EngineUnavailable: which of them are not there, or
    what the one that is there says.
    """
    search = variables.get("PATH", os.defpath)
    path = next((found for name in _NAMES if (found := shutil.which(name, path=search))), None)
    if path is None:
        raise EngineUnavailable(
            f"backend='mpi' starts its ranks by mpirun, and neither {' nor '.join(_NAMES)} is on PATH ({search}). "
            "Install Open MPI, MPICH or Intel MPI, load its module, or leave backend out: backend='local' starts the "
            "ranks on this machine."
        )
    # Intel's mpirun is a script that runs what comes first on PATH.
    return _recognised(path, search, Path(path).stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _recognised(path: str, search: str, _changed_ns: int) -> MpiProgram:
    said = _said(path, search)
    family = next((family for mark, family in _MARKS if mark in said), None)
    number = re.search(r"\d+\.\d+(\.\d+)?", said)
    if family is None or number is None:
        first = next((line for line in said.splitlines() if line.strip()), "nothing")
        raise EngineUnavailable(
            f"backend='mpi': `{path} --version` says {first.strip()!r}, so it is none of Open MPI, MPICH, Intel MPI. "
            "Put the mpirun of one of them first on PATH."
        )
    return MpiProgram(path, family, number[0])


def _said(path: str, search: str) -> str:
    """In answer to the question for its version."""
    try:
        done = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=ANSWER_S, check=False, env={**environment.current(), "PATH": search},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineUnavailable(f"backend='mpi': `{path} --version` does not answer: {error}.") from error
    return done.stdout + done.stderr
