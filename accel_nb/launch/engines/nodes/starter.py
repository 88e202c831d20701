"""On node 0: what is known of the agents of all nodes. Its own is started here, the others by the kernels there."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from ....protocol.nodes import NodeNote
from ...processes import is_readable

EVIDENCE_S = 0.5
"""What there is to say of an agent elsewhere is known at once; that here leaves its exit."""
_ENDS_S = 10.0
"""A released agent waits for its keeper, which gives itself five seconds for what is left of the run."""


class NodeStarter:
    """An `AgentStarter`; see there. `process` is node 0's own agent, owned from now on."""

    def __init__(self, process: subprocess.Popen[bytes], notes: Sequence[NodeNote], log_file: str) -> None:
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._notes = notes
        self._log_file = log_file

    def fd(self) -> int:
        return self._pidfd

    def gone(self) -> Mapping[int, str]:
        return {0: f"{self._log_file} may say why"} if is_readable(self._pidfd) else {}

    def evidence(self, seat: int) -> str:
        if seat == 0:
            return f"{self._log_file} may say why"
        return (
            f"The kernel or the machine there, {self._notes[seat].host} ({self._notes[seat].address}), has ended, or "
            "the network in between"
        )

    def seat_text(self, seat: int) -> str:
        return f"node {seat} ({self._notes[seat].host})"

    def replaces(self, seat: int) -> bool:
        # Another node's kernel would come as a new one, and none takes part in a run that has begun.
        return seat == 0

    def kill(self) -> None:
        if not is_readable(self._pidfd):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        if not is_readable(self._pidfd, _ENDS_S):
            self.kill()
        self._process.wait()
        os.close(self._pidfd)
