"""Ending ranks by degrees: SIGINT, SIGTERM, SIGKILL."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from msgspec.structs import replace

from ...protocol.failure import RankFailure
from .rank_process import RankProcess

TERM_TO_KILL_S = 1.0
KILLED_ENDS_S = 8.0
"""A process ends within milliseconds of SIGKILL, or within seconds where it has much memory to give back. One that the
system itself holds (uninterruptible sleep in a driver or a network file system) does not: the run ends without it.
"""


class Escalation:
    """Which signal is due when. SIGINT goes to the rank itself, so that its children do not add tracebacks of their
    own; the later ones go to its process group. Whatever left the group is ended with the run.
    """

    def __init__(self, now: float, grace_s: float) -> None:
        self._steps: list[tuple[float, signal.Signals]] = []
        self._sent: set[signal.Signals] = set()
        self.killed_s = float("inf")
        """When SIGKILL was first sent."""
        self.hurry(now, grace_s)

    @property
    def next_s(self) -> float:
        """When to call `act` again; infinity when nothing is left to do."""
        return self._steps[0][0] if self._steps else float("inf")

    def hurry(self, now: float, grace_s: float) -> None:
        """Start over with a shorter grace; signals already sent are not sent again. 0: SIGKILL now."""
        term = now + grace_s
        steps = [(now, signal.SIGINT), (term, signal.SIGTERM), (term + TERM_TO_KILL_S, signal.SIGKILL)]
        if grace_s <= 0:
            steps = [(now, signal.SIGKILL)]
        fresh = [step for step in steps if step[1] not in self._sent]
        if not self._steps or fresh[-1][0] <= self._steps[-1][0]:
            self._steps = fresh

    def act(self, now: float, ranks: Sequence[RankProcess]) -> None:
        """Send what is due."""
        while self._steps and self._steps[0][0] <= now:
            _, number = self._steps.pop(0)
            self._sent.add(number)
            if number == signal.SIGKILL:
                self.killed_s = min(self.killed_s, now)
            for rank in ranks:
                rank.send_signal(number, group=number != signal.SIGINT)


def in_context(failure: RankFailure, escalation: Escalation | None) -> RankFailure:
    """Once the ranks are being stopped, a KeyboardInterrupt or a later failure follows from the stop."""
    if escalation is None:
        return failure
    kind = "stopped" if failure.type_name in ("", "KeyboardInterrupt") else failure.kind
    return replace(failure, kind=kind, consequence=True)
