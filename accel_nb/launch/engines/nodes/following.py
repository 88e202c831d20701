"""On every node but the first: the ranks of this node, which answer to node 0's kernel, as a `RankGroup` of this one.

kernel of node 0 (hub) ══zmq══ agent ── keeper ──▶ ranks of this node
                                 ╚══ kernel of this node
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from ....protocol.commands import (
    DumpStacks,
    EventBatch,
    KeeperHello,
    KeeperMessage,
    RunCommand,
    Stop,
)
from ....protocol.events import Notice, RankFailed, RankFinished, Restarting, RunEnded, RunEvent, RunStarted
from ....protocol.remote import AgentFailed, Contact, OwnPart, RunOver, Summons
from ....protocol.wire import Skipped, event_from_line, event_line
from ...channel import Channel
from ...processes import is_readable
from ...run_files import server_log
from ..engine import Attempt
from ..local import base_variables
from ..remote.agent import start_agent
from ..remote.witness import WitnessNews

_ENDS_S = 15.0
"""An agent whose run is over waits for its keeper; one that its kernel lets go ends within this, too."""


class Following:
    """A `RankGroup`; see there. Used by one thread."""

    def __init__(self, attempt: Attempt, payload_fd: int, contact: Contact, node: int, first: str) -> None:
        """Start the agent. `payload_fd` is borrowed. `first`: node 0, for people. Raises OSError."""
        self._attempt = attempt
        self._node = node
        self._first = first
        self._own_ranks = contact.seats[node]
        self._trouble = ""
        self._answered = self._over = False
        self._dead_ends: set[int] = set()
        """Own ranks of which it was told already what they waited for."""
        own = OwnPart(
            env=attempt.plan.env,
            log_dir=str(attempt.log_dir),
            first_sequence=attempt.first_sequence,
            notices=attempt.notices,
        )
        summons = Summons(contact=contact, seat=node, node=node, surroundings=attempt.surroundings, own=own)
        self._log_file = server_log()
        ours, theirs = socket.socketpair()
        with theirs, self._log_file.open("ab") as log:
            self._process = start_agent(
                summons,
                variables=base_variables(attempt),
                output=log.fileno(),
                witness_fds=(theirs.fileno(), payload_fd),
            )
        self._channel: Channel[WitnessNews] = Channel(ours, WitnessNews)
        self._agent_fd = os.pidfd_open(self._process.pid)

    @property
    def answered(self) -> bool:
        return self._answered

    @property
    def answers_s(self) -> float | None:
        return float("inf")

    def fds(self) -> Sequence[int]:
        return (self._channel.fileno(), self._agent_fd)

    def receive(self) -> list[KeeperMessage | Skipped]:
        said: list[KeeperMessage | Skipped] = []
        for message in self._channel.receive()[0]:
            match message:
                case EventBatch():
                    said.append(EventBatch(events=tuple(self._of_run(message.events))))
                case KeeperHello():
                    os.close(self._channel.take_fd())
                case RunOver():
                    self._over = True
                    said.append(EventBatch(events=self._recorded_end(message)))
                case AgentFailed():
                    self._trouble = message.reason
                case _:
                    said.append(message)
        return said

    def take_fd(self) -> int:
        return self._channel.take_fd()

    def send(self, command: RunCommand, fds: Sequence[int] = ()) -> None:
        """Only what ends or looks at ranks is passed on: orders come from node 0, and events without being asked."""
        if isinstance(command, Stop | DumpStacks):
            self._channel.send(command, fds)

    def flush(self) -> bool:
        self._channel.flush()
        return not self._channel.wants_to_write

    def lost(self) -> str | None:
        if self._trouble:
            return self._trouble
        if self._over or not is_readable(self._agent_fd):
            return None
        what = f"the agent of node {self._node}, which holds its ranks, was killed or crashed"
        return f"{what}; {self._log_file} may say why."

    def kill(self) -> None:
        if not is_readable(self._agent_fd):
            signal.pidfd_send_signal(self._agent_fd, signal.SIGKILL)

    def close(self) -> None:
        """Nothing of this node's part is left afterwards."""
        if not self._over:
            self._channel.close()
        if not is_readable(self._agent_fd, _ENDS_S):
            self.kill()
        self._process.wait()
        self._channel.close()
        os.close(self._agent_fd)

    # ---- what the run is for this kernel

    def _of_run(self, events: Sequence[RunEvent]) -> list[RunEvent]:
        """That this node's part has begun is the begin of the run here; that it has ended is not the run's end."""
        passed: list[RunEvent] = []
        for event in events:
            if isinstance(event, RunEnded | Restarting):
                continue
            passed.append(event)
            if isinstance(event, RankFailed) and event.failure.kind == "dead_end":
                self._dead_ends.add(event.failure.rank)
            if isinstance(event, RunStarted):
                self._answered = True
                passed.append(Notice(text=self._where_the_others_are()))
        return passed

    def _where_the_others_are(self) -> str:
        own = self._own_ranks
        ranks = f"rank {own[0]}" if len(own) == 1 else f"ranks {own[0]} to {own[-1]}"
        return (
            f"this is node {self._node}, with the output and the values of {ranks}; those of all ranks are in the "
            f"notebook of {self._first}."
        )

    def _recorded_end(self, over: RunOver) -> tuple[RunEvent, ...]:
        """How the others' ranks and the run have ended, and why those of this node could not go on, also in this node's
        recording, in which the keeper has written the end of its part. It writes no more.
        """
        news = [end for end in over.ranks if end.rank not in self._own_ranks or self._is_explained(end)]
        events = tuple(replace(event, sequence=0) for event in (*news, over.end))
        record = Path(self._attempt.log_dir) / "run.jsonl"
        lines = record.read_bytes().splitlines(keepends=True) if record.exists() else []
        kept = [line for line in lines if not isinstance(event_from_line(line), RunEnded | Restarting)]
        before = record.with_suffix(".part")
        before.write_bytes(b"".join([*kept, *map(event_line, events)]))
        before.replace(record)
        return events

    def _is_explained(self, end: RankFinished | RankFailed) -> bool:
        """Whether node 0, which knows of all ranks, has found out more than this node's rank itself has said."""
        return isinstance(end, RankFailed) and end.failure.kind == "dead_end" and end.rank not in self._dead_ends
