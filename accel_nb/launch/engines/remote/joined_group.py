"""Several keepers as one `RankGroup`: the supervisor's end of the thread that joins them."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence

from ....protocol.commands import KeeperMessage, RunCommand
from ....protocol.wire import Skipped
from ..engine import Attempt
from .hub import Hub
from .joining import Joining
from .losses import EVIDENCE_S
from .mailbox import Mailbox
from .starter import AgentStarter
from .trust import Trust


class JoinedGroup:
    """The keepers of one attempt, beside the agents that `starter` has started. Gives `hub` and `starter` back when it
    is closed.
    """

    def __init__(
        self,
        attempt: Attempt,
        hub: Hub,
        starter: AgentStarter,
        *,
        start_s: float | None = None,
        evidence_s: float = EVIDENCE_S,
        trust: Trust | None = None,
    ) -> None:
        """`start_s`: how long to wait for the agents; None: as long as the plan allows ranks to start. `evidence_s`:
        how long the engine may take to find out why a connection has broken, before the loss is told. `trust`: None
        where only agents of this launch can connect.
        """
        self._said: Mailbox[KeeperMessage] = Mailbox()
        self._asked: Mailbox[RunCommand] = Mailbox()
        self._fds: deque[int] = deque()
        self._joining = Joining(
            attempt,
            hub,
            starter,
            self._said,
            self._asked,
            start_s=start_s,
            evidence_s=evidence_s,
            trust=trust or Trust(),
        )
        self._thread = threading.Thread(
            target=self._joining.run, name=f"accel_nb join {attempt.plan.run_id}", daemon=True
        )
        self._thread.start()

    @property
    def answered(self) -> bool:
        return self._joining.answered

    @property
    def answers_s(self) -> float | None:
        return float("inf")

    def fds(self) -> Sequence[int]:
        return (self._said.fd,)

    def receive(self) -> list[KeeperMessage | Skipped]:
        messages: list[KeeperMessage | Skipped] = []
        for message, fds in self._said.take_all():
            messages.append(message)
            self._fds.extend(fds)
        return messages

    def send(self, command: RunCommand, fds: Sequence[int] = ()) -> None:
        self._asked.put(command, fds)

    def flush(self) -> bool:
        return True

    def take_fd(self) -> int:
        return self._fds.popleft()

    def lost(self) -> str | None:
        return self._joining.trouble or None

    def kill(self) -> None:
        self._joining.kill()

    def close(self) -> None:
        """Wait until nothing of the attempt is left, or is given up."""
        self._thread.join()
        while self._fds:
            os.close(self._fds.popleft())
        self._said.close()
        self._asked.close()
