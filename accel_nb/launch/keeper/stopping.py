"""Ending ranks by degrees: once one has failed the others may report, then SIGINT, SIGTERM, SIGKILL."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from msgspec.structs import replace

from ...protocol.failure import RankFailure
from .rank_process import RankProcess

SETTLE_S = 0.5
"""After the first failure the other ranks get this long to report theirs: one cause, or the same error everywhere."""
TERM_TO_KILL_S = 1.0
KILLED_ENDS_S = 8.0
"""A process ends within milliseconds of SIGKILL, or within seconds where it has much memory to give back. One that the
system itself holds (uninterruptible sleep in a driver or a network file system) does not: the run ends without it.
"""


class Ending:
    """Of one attempt. Decides from what it is told; the keeper acts."""

    def __init__(self) -> None:
        self.by_user = False
        """Somebody has asked for it."""
        self._settle_until_s: float | None = None
        self._escalation: Escalation | None = None

    @property
    def is_stopping(self) -> bool:
        """Ranks are signalled."""
        return self._escalation is not None

    @property
    def has_begun(self) -> bool:
        """A rank has failed, or ranks are signalled."""
        return self._settle_until_s is not None or self.is_stopping

    @property
    def next_s(self) -> float:
        """When to look again; infinity when nothing is due."""
        until_s = float("inf") if self._settle_until_s is None else self._settle_until_s
        return until_s if self._escalation is None else min(until_s, self._escalation.next_s)

    def settle(self, failure: RankFailure, now: float) -> bool:
        """A rank has failed; whether that begins the end."""
        if self.has_begun:
            return False
        self._settle_until_s = now + SETTLE_S * (2 if failure.consequence else 1)
        return True

    def is_settled(self, now: float) -> bool:
        """Whether the others have had their time to report; true once."""
        if self._settle_until_s is None or now < self._settle_until_s:
            return False
        self._settle_until_s = None
        return True

    def stop(self, by: str, grace_s: float, now: float) -> None:
        """Signal the ranks from now on, or sooner than before. `by`: as in `StopRequested`."""
        self.by_user = self.by_user or by != "failure"
        if self._escalation is None:
            self._escalation = Escalation(now, grace_s)
        else:
            self._escalation.hurry(now, grace_s)

    def act(self, now: float, ranks: Sequence[RankProcess]) -> bool:
        """Send what is due. Whether ranks that are still there now will not end at all."""
        if self._escalation is None:
            return False
        self._escalation.act(now, ranks)
        return now >= self._escalation.killed_s + KILLED_ENDS_S

    def in_context(self, failure: RankFailure) -> RankFailure:
        """Once the ranks are being stopped, a KeyboardInterrupt or a later failure follows from the stop."""
        if self._escalation is None:
            return failure
        kind = "stopped" if failure.type_name in ("", "KeyboardInterrupt") else failure.kind
        return replace(failure, kind=kind, consequence=True)


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
