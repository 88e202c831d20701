"""The thread that joins keepers into one run: gather the agents, have them meet, give orders, merge what they say, end.

gathering ──all came──▶ meeting ──all reach the store──▶ running ──all ended──▶ over ──Release──▶ left
    └────────── trouble: a sentence, and nothing of the run has begun ──────────────────────────┘
"""

from __future__ import annotations

import os
import time
from typing import Literal

from msgspec.structs import replace

from ....protocol.commands import (
    DumpStacks,
    EventBatch,
    GroupOpened,
    KeeperHello,
    KeeperMessage,
    Pull,
    RanksDescribed,
    RanksNoted,
    Release,
    RunCommand,
    Stacks,
    Stop,
    Value,
)
from ....protocol.events import Notice, Restarting, RunEnded, RunStarted
from ....protocol.remote import (
    AgentEnded,
    AgentFailed,
    AgentHello,
    AgentMessage,
    FilePart,
    MeetAt,
    Met,
    Refused,
    RunOver,
    StopAsked,
)
from ....protocol.wire import Skipped
from ...keeper.event_stream import EventStream
from ..engine import Attempt
from .file_copies import write_part
from .hub import Hub
from .joined_watch import JoinedWatch
from .losses import LossWatch
from .mailbox import EventOutlet, Mailbox
from .merging import Merging
from .placing import missing_text, order_of, placed, version_problem
from .reaching import versions
from .seat import Seat
from .stack_round import StackRound
from .starter import AgentStarter
from .trust import Trust

Phase = Literal["gathering", "meeting", "running", "over", "left"]

TICK_S = 0.1
LEAVE_S = 20.0
"""Released agents end within this, or are killed."""
REFUSED_S = 2.0
"""For telling agents that there will be no run."""


class Joining:
    """Of one attempt. `run` is the thread; of the rest, only what is said to be is for others."""

    def __init__(
        self,
        attempt: Attempt,
        hub: Hub,
        starter: AgentStarter,
        said: Mailbox[KeeperMessage],
        asked: Mailbox[RunCommand],
        *,
        start_s: float | None,
        evidence_s: float,
        trust: Trust,
    ) -> None:
        self.answered = False
        """For any thread: the keepers have the run."""
        self.trouble = ""
        """For any thread: why there is no run any more that could say so itself."""
        self._attempt = attempt
        self._payload_fd = os.dup(attempt.payload_fd)
        self._hub = hub
        self._trust = trust
        self._starter = starter
        self._said = said
        self._asked = asked
        self._seats = [Seat(number, ranks, hub.send) for number, ranks in enumerate(hub.contact.seats)]
        self._start_s = attempt.plan.timeouts.start_s if start_s is None else start_s
        self._events = EventStream(EventOutlet(said))
        # A keeper of all ranks watches them itself.
        self._merging = Merging(attempt, watches=len(self._seats) > 1)
        self._watch = JoinedWatch(attempt.plan, self._seats, self._merging, self._events)
        self._phase: Phase = "gathering"
        self._killed = False
        self._begun_s = time.monotonic()
        self._losses = LossWatch(self._seats, starter, evidence_s)
        self._leave_until_s = float("inf")
        self._stacks = StackRound(self._seats, said)

    def kill(self) -> None:
        """From any thread: end all agents, whatever they do."""
        self._killed = True
        self._asked.put(Release())

    # ---- the thread

    def run(self) -> None:
        """Until the attempt is released and nothing of it is left. Never raises: `trouble` says what went wrong."""
        try:
            while self._phase != "left":
                wake_fds = [fd for fd in (self._asked.fd, self._starter.fd()) if fd >= 0]
                self._hub.wait(wake_fds, self._timeout_s())
                self._turn(time.monotonic())
        except Exception as error:  # noqa: BLE001  told to the supervisor, which ends the run
            self._give_up(f"the keepers cannot be joined: {type(error).__name__}: {error}")
            self._starter.kill()
        finally:
            self._events.close()
            os.close(self._payload_fd)
            for seat in self._seats:
                seat.link.close()
            # An agent that is refused says elsewhere why.
            self._hub.close(0.0 if self.answered else REFUSED_S)
            self._starter.close()

    def _turn(self, now: float) -> None:
        for peer, data in self._hub.receive():
            self._take(peer, data, now)
        for command, fds in self._asked.take_all():
            self._obey(command)
            for fd in fds:
                os.close(fd)
        for seat, evidence in self._losses.look(now):
            self._lose(seat, evidence, now)
        match self._phase:
            case "gathering":
                self._gather(now)
            case "meeting":
                if all(seat.has_met for seat in self._seats):
                    self._give_orders()
            case "running":
                self._act(now)
            case _:
                pass
        if now >= self._leave_until_s or (self._is_released and all(seat.has_left for seat in self._seats)):
            self._phase = "left"
        self._events.send_due(now)

    @property
    def _is_released(self) -> bool:
        return self._leave_until_s < float("inf")

    def _timeout_s(self) -> float:
        busy = any(seat.link.wants_to_write for seat in self._seats if seat.is_there)
        return 0.005 if busy else min(TICK_S, max(0.0, self._events.due_in_s(time.monotonic())))

    # ---- what the supervisor says

    def _obey(self, command: RunCommand) -> None:
        match command:
            case Pull():
                self._events.ask()
            case Stop():
                self._tell(command)
            case DumpStacks():
                self._stacks.ask()
            case Release():
                self._release()
            case _:
                raise AssertionError(f"{type(command).__name__} is refused before a run over several machines begins")

    def _tell(self, command: Stop | Release) -> None:
        for seat in self._seats:
            seat.send(command)

    def _release(self) -> None:
        if self._killed:
            self._starter.kill()
        if self._is_released:
            return
        self._leave_until_s = time.monotonic() + LEAVE_S
        for seat in self._seats:
            if not seat.is_there:
                seat.has_left = True
            elif self._phase in ("gathering", "meeting"):
                seat.link.send(Refused(reason=self.trouble or "the run was given up before it began"))
                seat.link.flush()
                seat.has_left = True
        self._tell(Release())

    # ---- what agents say

    def _take(self, peer: bytes, data: bytes, now: float) -> None:
        seat = next((one for one in self._seats if one.peer == peer), None)
        if seat is None:
            self._admit(peer, data, now)
            return
        message = seat.link.take(data)
        if message is not None:
            self._note(seat, message, now)

    def _admit(self, peer: bytes, data: bytes, now: float) -> None:
        """The first that a new connection says."""
        newcomer = Seat(-1, (), self._hub.send)
        hello = newcomer.link.take(data)
        if not isinstance(hello, AgentHello) or not 0 <= hello.seat < len(self._seats):
            return
        seat = self._seats[hello.seat]
        if self._trust.is_other(hello):
            return
        if seat.hello is not None or self._phase != "gathering":
            newcomer.welcome(peer, hello, now)
            newcomer.link.send(Refused(reason=f"{self._starter.seat_text(hello.seat)} is there already"))
            return
        seat.welcome(peer, hello, now)
        if problem := version_problem(hello, versions(), self._attempt.plan.function_name):
            self._give_up(problem)

    def _note(self, seat: Seat, message: AgentMessage | Skipped, now: float) -> None:
        match message:
            case EventBatch():
                self._note_events(seat, message, now)
                seat.send(Pull())
            case Value():
                fd = seat.link.take_fd()
                if self._trust.takes_value(seat, message.rank):
                    self._said.put(message, [fd])
                os.close(fd)
            case Stacks():
                self._stacks.note(seat, message)
            case RanksNoted() | RanksDescribed():
                self._watch.take(seat, message)
            case FilePart():
                self._note_file(seat, message)
            case Skipped():
                self._events.add(Notice(text=f"skipped a message of {self._who(seat)}: {message.reason}"))
            case _:
                self._note_agent(seat, message, now)

    def _note_file(self, seat: Seat, part: FilePart) -> None:
        if not self._trust.takes_file(seat, part):
            return
        if trouble := write_part(self._attempt.log_dir, part, seat.ranks):
            self._events.add(Notice(text=trouble))

    def _note_agent(
        self,
        seat: Seat,
        message: AgentHello | AgentFailed | AgentEnded | Met | KeeperHello | GroupOpened | StopAsked,
        now: float,
    ) -> None:
        """How the agent itself fares."""
        match message:
            case Met(problem=""):
                seat.has_met = True
            case Met():
                self._give_up(message.problem)
            case AgentFailed():
                seat.reason = message.reason
                seat.notice_break(now)
            case AgentEnded():
                seat.has_left = seat.run_ended = True
            case StopAsked():
                self._tell(Stop(by=message.by, grace_s=message.grace_s))
            case AgentHello() | KeeperHello() | GroupOpened():
                pass

    def _note_events(self, seat: Seat, batch: EventBatch, now: float) -> None:
        seat.run_ended = seat.run_ended or any(isinstance(event, RunEnded | Restarting) for event in batch.events)
        self._events.add_all(self._merging.take(batch.events, now, seat.to_local))

    # ---- the clock

    def _lose(self, seat: Seat, evidence: str, now: float) -> None:
        """The agent is gone, and with it its ranks."""
        seat.has_left = True
        held = f"what held {self._who(seat)} is gone"
        what = seat.reason or (held if seat.hello is not None else f"no agent came for {self._who(seat)}")
        sentence = f"{what}. {evidence}".rstrip().rstrip(".") + "."
        if self._phase in ("gathering", "meeting"):
            self._give_up(sentence)
        elif self._phase == "running":
            seat.run_ended = True
            is_replaced = self._starter.replaces(seat.number)
            self._events.add_all(self._merging.lose(seat.ranks, sentence, now, is_replaced=is_replaced))

    def _gather(self, now: float) -> None:
        missing = [seat for seat in self._seats if seat.hello is None]
        if missing and now - self._begun_s > self._start_s:
            known = [(self._starter.seat_text(seat.number), self._starter.evidence(seat.number)) for seat in missing]
            self._give_up(missing_text(self._attempt.plan, known, len(self._seats), self._start_s))
        if missing or self.trouble:
            return
        store = self._store_seat().hello
        assert store is not None
        self._phase = "meeting"
        for seat in self._seats:
            seat.link.send(MeetAt(host=store.address, port=store.store_port))

    def _store_seat(self) -> Seat:
        return next(seat for seat in self._seats if 0 in seat.ranks)

    def _give_orders(self) -> None:
        attempt = self._attempt
        hellos = {seat.number: seat.hello for seat in self._seats if seat.hello is not None}
        try:
            plan = placed(attempt.plan, [seat.ranks for seat in self._seats], hellos)
        except ValueError as error:
            self._give_up(str(error))
            return
        order = order_of(attempt, plan, hellos[self._store_seat().number].store_port)
        self._events.begin(order)
        if attempt.number == 0:
            self._events.add(RunStarted(plan=plan.without_values(), log_dir=str(attempt.log_dir)))
            self._events.add_all(Notice(text=text) for text in attempt.notices)
        for seat in self._seats:
            has_payload = hellos[seat.number].has_payload
            seat.link.send(replace(order, notices=()), [] if has_payload else [self._payload_fd])
            seat.link.send(Pull())
        self._watch.begin(plan)
        self._phase = "running"
        self.answered = True

    def _act(self, now: float) -> None:
        until_s = self._merging.settle_until_s
        if until_s is not None and now >= until_s:
            self._merging.settle_until_s = float("inf")
            self._watch.explain_lost_peers()
            self._tell(Stop(by="failure", grace_s=self._attempt.plan.timeouts.stop_grace_s))
        self._watch.look(now)
        self._stacks.act(now)
        if all(seat.run_ended for seat in self._seats):
            self._phase = "over"
            if until_s != float("inf"):
                self._watch.explain_lost_peers()
            end = self._merging.end(now - self._begun_s)
            self._events.add(end)
            for seat in self._seats:
                seat.send(RunOver(end=end, ranks=tuple(self._merging.outcomes.values())))

    def _give_up(self, sentence: str) -> None:
        """Nothing of the run has begun, or nobody can go on with it."""
        self.trouble = self.trouble or sentence
        # Wakes the supervisor, which asks what was lost.
        self._said.put(GroupOpened())

    def _who(self, seat: Seat) -> str:
        text = self._starter.seat_text(seat.number)
        return text if seat.hello is None or seat.hello.host in text else f"{text} on {seat.hello.host}"
