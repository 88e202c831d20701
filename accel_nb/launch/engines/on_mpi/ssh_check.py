"""Whether ssh reaches other hosts without asking: what mpirun starts its helpers with there."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

SSH_TIMEOUT_S = 8
MAX_AT_ONCE = 16
_MORE_S = 2
"""For what ssh does beside connecting."""


def ssh_problems(
    ssh: Sequence[str], hosts: Sequence[str], variables: Mapping[str, str], timeout_s: int = SSH_TIMEOUT_S
) -> dict[str, str]:
    """Host -> what `ssh`, a program and its options, said where it did not get there within `timeout_s`; hosts that it
    reaches are left out.
    """
    if not hosts:
        return {}
    with ThreadPoolExecutor(min(len(hosts), MAX_AT_ONCE)) as pool:
        said = list(pool.map(lambda host: _why_not(ssh, host, variables, timeout_s), hosts))
    return {host: reason for host, reason in zip(hosts, said, strict=True) if reason}


def _why_not(ssh: Sequence[str], host: str, variables: Mapping[str, str], timeout_s: int) -> str:
    """Why `ssh` does not get to `host` without a question; empty: it does."""
    command = [*ssh, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={timeout_s}", "--", host, "true"]
    try:
        done = subprocess.run(
            command, env=dict(variables), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=timeout_s + _MORE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"nothing within {timeout_s + _MORE_S} s"
    except OSError as error:
        return f"{ssh[0]} cannot be started: {error.strerror}"
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
