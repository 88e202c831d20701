"""One node's part of a run over several machines as a `RankGroup`: first the nodes meet, then there are ranks.

meeting ──Placed──▶ introduced ──Met──▶ node 0: joins the keepers of all nodes; another node: follows it
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ....errors import AccelNbError
from ....protocol.commands import EventBatch, KeeperMessage, RunCommand, Stop
from ....protocol.events import Notice, Restarting
from ....protocol.nodes import MeetingNews, Met, NodeNote, NotMet, Placed
from ....protocol.remote import Summons
from ....protocol.wire import Skipped
from ...planning.nodes import NO_ID
from ...run_files import server_log
from ..engine import Attempt, RankGroup
from ..local import base_variables
from ..remote.agent import start_agent
from ..remote.hub import Hub
from ..remote.joined_group import JoinedGroup
from ..remote.trust import Trust
from .following import Following
from .notes import keys_for, new_salt, note_text, published, read_notes, understood, unlike
from .rendezvous import Rendezvous
from .starter import EVIDENCE_S, NodeStarter

_NO_VALUES = (
    "what ranks of other nodes return stays there: anybody who can reach the meeting point could have sent it. Give "
    "rdzv_id, a word that only you know and the same on every node, and it comes here, too."
)


class NodesGroup:
    """Used by one thread. Owns `rendezvous`, until the run starts again."""

    def __init__(self, attempt: Attempt, rendezvous: Rendezvous, meets_again: Callable[[Rendezvous], None]) -> None:
        """`meets_again` takes the rendezvous over when another attempt follows."""
        self._attempt = attempt
        self._payload_fd = os.dup(attempt.payload_fd)
        self._rendezvous = rendezvous
        self._meets_again = meets_again
        self._node = -1
        self._hub: Hub | None = None
        self._inner: RankGroup | None = None
        self._waiting: list[RunCommand] = []
        """What was said before there was anybody to hear it."""
        self._trouble = ""
        self._stopped_by = ""
        self._restarts = False
        self._announced = False

    @property
    def answered(self) -> bool:
        return self._inner is not None and self._inner.answered

    @property
    def answers_s(self) -> float | None:
        return float("inf")

    def fds(self) -> Sequence[int]:
        return self._rendezvous.fds() if self._inner is None else self._inner.fds()

    def receive(self) -> list[KeeperMessage | Skipped]:
        if self._inner is None:
            for news in self._rendezvous.receive():
                self._note(news)
        messages: list[KeeperMessage | Skipped] = []
        if not self._announced:
            self._announced = True
            messages.append(EventBatch(events=(Notice(text=self._waits_text(), time_s=time.time()),)))
        if self._inner is None:
            return messages
        for message in self._inner.receive():
            if isinstance(message, EventBatch):
                self._restarts = self._restarts or any(isinstance(event, Restarting) for event in message.events)
            messages.append(message)
        return messages

    def take_fd(self) -> int:
        assert self._inner is not None
        return self._inner.take_fd()

    def send(self, command: RunCommand, fds: Sequence[int] = ()) -> None:
        if isinstance(command, Stop):
            self._stopped_by = command.by
        if self._inner is None:
            self._waiting.append(command)
        else:
            self._inner.send(command, fds)

    def flush(self) -> bool:
        return self._inner is None or self._inner.flush()

    def lost(self) -> str | None:
        if self._trouble:
            return self._trouble
        if self._inner is not None:
            return self._inner.lost()
        if self._rendezvous.has_ended():
            what = "the process that meets the other nodes was killed or crashed"
            return f"{what}; {self._rendezvous.log_file} may say why."
        return None

    def kill(self) -> None:
        if self._inner is not None:
            self._inner.kill()

    def close(self) -> None:
        reason = ""
        if self._inner is not None:
            self._inner.close()
        else:
            if self._hub is not None:
                self._hub.close()
            what = "was stopped" if self._stopped_by else "has given up"
            reason = f"{self._who()} {what} while the nodes met."
        os.close(self._payload_fd)
        if self._restarts:
            self._meets_again(self._rendezvous)
        else:
            self._rendezvous.close(reason)

    # ---- until there are ranks

    def _note(self, message: MeetingNews) -> None:
        try:
            match message:
                case Placed():
                    self._node = message.node
                    self._rendezvous.introduce(note_text(self._own_note()))
                case Met():
                    self._begin(read_notes(message.notes))
                case NotMet():
                    self._trouble = message.reason
        except (AccelNbError, OSError, ValueError) as error:
            self._trouble = str(error)

    def _own_note(self) -> NodeNote:
        point, plan = self._rendezvous.point, self._attempt.plan
        note = NodeNote(
            host=self._rendezvous.name,
            address=self._rendezvous.way.own,
            num_ranks=self._num_own,
            device_kind=plan.device_kind,
        )
        if self._node > 0:
            return note
        salt = new_salt()
        seats = [range(node * self._num_own, (node + 1) * self._num_own) for node in range(point.num_nodes)]
        self._hub = Hub(
            [self._rendezvous.way.own],
            seats,
            run_id=plan.run_id,
            start_method=plan.start_method,
            keys=keys_for(point.id, salt),
        )
        return replace(note, contact=published(self._hub.contact, point.id, salt))

    @property
    def _num_own(self) -> int:
        return self._attempt.plan.num_ranks // self._rendezvous.point.num_nodes

    def _begin(self, notes: list[NodeNote]) -> None:
        if problem := unlike(notes):
            raise ValueError(problem)
        self._inner = self._joined(notes) if self._node == 0 else self._followed(notes)
        for command in self._waiting:
            self._inner.send(command)
        self._waiting.clear()

    def _joined(self, notes: list[NodeNote]) -> RankGroup:
        hub, attempt = self._hub, self._attempt
        assert hub is not None
        log_file = server_log()
        with log_file.open("ab") as log:
            word = secrets.token_hex()
            summons = Summons(contact=hub.contact, seat=0, node=0, word=word)
            process = start_agent(summons, variables=base_variables(attempt), output=log.fileno())
        open_to_all = self._rendezvous.point.id == NO_ID
        notices = (*attempt.notices, _NO_VALUES) if open_to_all else attempt.notices
        part = replace(attempt, payload_fd=self._payload_fd, notices=notices)
        starter = NodeStarter(process, notes, str(log_file))
        trust = Trust(words={0: word}) if open_to_all else Trust()
        self._hub = None
        return JoinedGroup(part, hub, starter, evidence_s=EVIDENCE_S, trust=trust)

    def _followed(self, notes: list[NodeNote]) -> RankGroup:
        contact = understood(notes[0].contact, self._rendezvous.point.id)
        return Following(self._attempt, self._payload_fd, contact, self._node, f"node 0 ({notes[0].host})")

    def _waits_text(self) -> str:
        point, within_s = self._rendezvous.point, self._attempt.plan.timeouts.rendezvous_s
        number = f" {point.node_rank}" if point.backend == "static" else ""
        who = f"node{number} ({self._rendezvous.name})"
        return f"{who} waits for the others of {point.num_nodes} at {point.shown}, at most {within_s:g} s."

    def _who(self) -> str:
        number = self._node if self._node >= 0 else self._rendezvous.point.node_rank
        return f"node {number} ({self._rendezvous.name})"
