"""A running mpirun: what holds the agents of one attempt."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ....errors import StartError
from ...processes import is_readable
from .hosts import HostShare

ENDS_S = 10.0
"""After its agents mpirun ends by itself, within about a second."""
_MAX_TOLD_CHARS = 1500
_NOISE = ("-----", "=====")


class Mpirun:
    """Of one attempt: an `AgentStarter`. Used by one thread."""

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        shares: Sequence[HostShare],
        log_file: Path,
    ) -> None:
        """Start it. `log_file` gets what it says itself: what ranks print comes another way. Raises StartError."""
        self._hosts = [share.host for share in shares for _ in range(share.num_ranks)]
        self._several = len(shares) > 1
        self._output = log_file
        self._begin = log_file.stat().st_size if log_file.exists() else 0
        """What stands before it was said in an attempt before this one."""
        try:
            with self._output.open("ab") as output:
                self._process = subprocess.Popen(
                    command, env=dict(variables), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise StartError(f"{command[0]} cannot be started: {error.strerror}.") from error
        self._pidfd = os.pidfd_open(self._process.pid)

    def fd(self) -> int:
        return -1 if self._process.returncode is not None else self._pidfd

    def gone(self) -> Mapping[int, str]:
        """All of them, once mpirun has ended: it ends its processes."""
        if self._process.poll() is None:
            return {}
        told = self._told()
        return dict.fromkeys(range(len(self._hosts)), told)

    def evidence(self, _seat: int) -> str:
        return self._told()

    def seat_text(self, seat: int) -> str:
        return f"rank {seat} on {self._hosts[seat]}" if self._several else f"rank {seat}"

    def replaces(self, _seat: int) -> bool:
        return True

    def kill(self) -> None:
        """mpirun's own process last: it takes those on other hosts along when it is told to end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
            if not is_readable(self._pidfd, ENDS_S):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        if not is_readable(self._pidfd, ENDS_S):
            self.kill()
        self._process.wait()
        os.close(self._pidfd)
        if self._output.exists() and not self._output.stat().st_size:
            self._output.unlink()

    def _told(self) -> str:
        """What mpirun has said, and how it ended."""
        data = self._output.read_bytes()[self._begin :] if self._output.exists() else b""
        text = data.decode(errors="replace")
        lines = [" ".join(line.split()) for line in text.splitlines()]
        said = " ".join(line for line in dict.fromkeys(lines) if line and not line.startswith(_NOISE))
        status = self._process.poll()
        ended = "" if status is None else f" mpirun ended with {_status_text(status)}."
        return f"mpirun said: {said[:_MAX_TOLD_CHARS]}{ended}" if said else ended.strip()


def _status_text(status: int) -> str:
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
