"""An agent's work: find the kernel, take the order, pass on what kernel and keeper say, until nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import zmq

from ....protocol import environment
from ....protocol.commands import (
    DescribeRanks,
    DumpStacks,
    FailRanks,
    KeeperHello,
    KeeperMessage,
    PartMessage,
    Pull,
    PullNotes,
    RanksDescribed,
    RanksNoted,
    Release,
    RunOrder,
    Stop,
    TakeUp,
    Value,
)
from ....protocol.remote import (
    AgentEnded,
    AgentFailed,
    AgentHello,
    HubMessage,
    MeetAt,
    Met,
    Refused,
    RunOver,
    StopAsked,
    Summons,
)
from ....protocol.wire import Skipped
from ...channel import Channel
from ...planning.hardware import usable_cpus
from ...processes import is_readable
from .adapting import adapted
from .file_copies import FileCopies
from .reaching import Unreachable, device_names, interface_of, listen, place, reach, store_problem, versions
from .wire import Wire
from .witness import Witness

_TICK_MS = 100
ANSWER_S = 30.0
"""A kernel that does not answer within this is none of ours."""
_SEND_RETRY_MS = 10
_LAST_WORDS_S = 10.0
_FIRST_IS_GONE = (
    "the connection to the kernel of node 0, which leads the run, is gone: it has ended, or its machine, or the "
    "network in between."
)


def relay(
    summons: Summons,
    run: socket.socket,
    guard_pid: int,
    folder: Path,
    witness: Witness | None = None,
    payload_fd: int | None = None,
) -> int:
    """The agent's whole life beside the keeper at the other end of `run`; gives its exit status. `folder`: in place
    of the kernel's, for the keeper. `witness` and `payload_fd` as for `serve` in `agent`.

    Raises Unreachable. `run` is closed when it returns, so that the keeper ends.
    """
    if witness is not None:
        payload_fd = witness.payload_fd
    contact = summons.contact
    ranks = contact.seats[summons.seat]
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"the agent of ranks {ranks[0]} to {ranks[-1]}"
    address, own_address = reach(contact.addresses, contact.port, who)
    store = listen(own_address, None) if 0 in ranks else None
    try:
        hello = AgentHello(
            seat=summons.seat,
            node=summons.node,
            place=place(),
            host=socket.gethostname(),
            pid=os.getpid(),
            versions=versions(),
            address=own_address,
            interface=interface_of(own_address),
            store_port=0 if store is None else store.getsockname()[1],
            cpu_count=len(usable_cpus()),
            devices=device_names(),
            monotonic_s=time.monotonic(),
            has_payload=payload_fd is not None,
            has_kernel=witness is not None,
            word=summons.word,
        )
        guard_fd = os.pidfd_open(guard_pid)
        try:
            wire = Wire(summons, address)
            return Relay(summons, hello, wire, run, guard_fd, folder, store, who, witness, payload_fd).run()
        finally:
            os.close(guard_fd)
    finally:
        if store is not None:
            store.close()


class Relay:
    """One thread."""

    def __init__(
        self,
        summons: Summons,
        hello: AgentHello,
        wire: Wire,
        run: socket.socket,
        guard_fd: int,
        folder: Path,
        store: socket.socket | None,
        who: str,
        witness: Witness | None,
        payload_fd: int | None,
    ) -> None:
        self._summons = summons
        self._hello = hello
        self._wire = wire
        self._link = wire.link
        self._channel: Channel[KeeperMessage | PartMessage] = Channel(run, KeeperMessage | PartMessage)
        self._guard_fd = guard_fd
        self._folder = folder
        self._store = store
        self._who = who
        self._witness = witness
        self._payload_fd = payload_fd
        self._copies = FileCopies(folder, self._link.send)
        self._released = self._refused = self._failed = False
        self._terminated = 0
        self._begun_s = time.monotonic()

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note_signal)
        self._link.send(self._hello)
        try:
            while not (self._wire.is_gone or self._refused or self._failed):
                self._wait()
                for message in self._wire.receive():
                    self._obey(message)
                self._pass_on()
                self._hear_witness()
                if self._released and is_readable(self._guard_fd):
                    return self._leave()
                self._tick()
        finally:
            if self._wire.is_gone and not self._released:
                self._tell_witness(AgentFailed(reason=_FIRST_IS_GONE))
            # The keeper takes that for the end of its run.
            self._channel.close()
            self._wire.close(_LAST_WORDS_S if self._failed else 0.0)
        # Of what the kernel knows an engine need not be told, which may end all the others for it.
        return 0 if self._failed or self._refused else 1

    def _note_signal(self, number: int, _frame: object) -> None:
        self._terminated = number

    def _wait(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wire.socket, zmq.POLLIN)
        poller.register(self._wire.monitor, zmq.POLLIN)
        if not self._released:
            poller.register(self._channel.fileno(), zmq.POLLIN)
        poller.register(self._guard_fd, zmq.POLLIN)
        for fd in () if self._witness is None or self._witness.is_gone else self._witness.fds():
            poller.register(fd, zmq.POLLIN)
        busy = self._link.wants_to_write or self._channel.wants_to_write
        poller.poll(_SEND_RETRY_MS if busy else _TICK_MS)

    def _obey(self, message: HubMessage | Skipped) -> None:
        match message:
            case RunOrder():
                self._begin(message)
            case MeetAt():
                self._link.send(Met(problem=store_problem(message.host, message.port, self._who)))
            case Refused():
                self._refused = True
                self._tell_witness(AgentFailed(reason=message.reason))
            case RunOver():
                self._tell_witness(message)
            case Release():
                self._released = True
                self._channel.send(message)
            case Skipped():
                self._fail(f"{self._who} cannot read what the kernel says: {message.reason}")
            case Pull() | Stop() | DumpStacks() | PullNotes() | DescribeRanks() | FailRanks() | TakeUp():
                self._channel.send(message)

    def _begin(self, order: RunOrder) -> None:
        payload = self._link.take_fd() if self._payload_fd is None else os.dup(self._payload_fd)
        try:
            own = adapted(
                order,
                self._hello,
                self._folder,
                own=environment.current(),
                surroundings=self._summons.surroundings,
                kernels_place=self._hello.place == self._summons.contact.place,
            )
            if self._witness is not None:
                own = self._witness.part_of(own)
            cwd = os.fsdecode(own.surroundings.cwd)
            if not Path(cwd).is_dir():
                self._fail(
                    f"{self._hello.host} has no folder {cwd}, the kernel's working directory, in which its ranks "
                    "are to start. Put the project at the same place everywhere, or change to a folder that all have."
                )
                return
            fds = [payload] if self._store is None else [payload, self._store.fileno()]
            self._channel.send(own, fds)
        finally:
            os.close(payload)

    def _pass_on(self) -> None:
        """What the keeper says."""
        messages, closed = self._channel.receive()
        for message in messages:
            fds = [self._channel.take_fd()] if isinstance(message, KeeperHello | Value) else []
            if isinstance(message, Skipped):
                continue  # both are of one version
            # The keeper's pidfd is for processes of its machine.
            self._link.send(message, fds if isinstance(message, Value) else [])
            if not isinstance(message, RanksNoted | RanksDescribed):
                self._tell_witness(message, fds)
            for fd in fds:
                os.close(fd)
        if (closed or is_readable(self._guard_fd)) and not self._released:
            self._fail(f"the keeper of {self._who} on {self._hello.host} was killed from outside, or crashed")

    def _hear_witness(self) -> None:
        """What the kernel beside this agent wants, as long as it is there."""
        witness = self._witness
        if witness is None:
            return
        for command in witness.hear():
            if isinstance(command, Stop):
                self._link.send(StopAsked(by=command.by, grace_s=command.grace_s))
            else:
                self._channel.send(command)
        if witness.is_gone and not self._released:
            self._fail(
                f"the kernel on {self._hello.host} that takes part with {self._who} has ended, or given the run up"
            )

    def _tell_witness(self, message: msgspec.Struct, fds: Sequence[int] = ()) -> None:
        if self._witness is not None:
            self._witness.tell(message, fds)

    def _tick(self) -> None:
        self._link.flush()
        if self._witness is not None:
            self._witness.flush()
        self._channel.flush()
        if self._terminated and not self._failed:
            name = signal.Signals(self._terminated).name
            self._fail(f"the agent of {self._who} on {self._hello.host} was ended by {name}")
        if not self._link.wants_to_write:
            self._copies.send_logs()
        if not self._wire.is_welcome and time.monotonic() - self._begun_s > ANSWER_S:
            contact = self._summons.contact
            raise Unreachable(
                f"{self._who} on {self._hello.host}: what listens at {', '.join(contact.addresses)}:{contact.port} "
                f"has not answered within {ANSWER_S:g} s: it is not the notebook's kernel, or wants no such agent."
            )

    def _fail(self, reason: str) -> None:
        self._failed = True
        self._link.send(AgentFailed(reason=reason))
        self._is_all_sent(time.monotonic() + _LAST_WORDS_S)

    def _leave(self) -> int:
        """The keeper has ended: what is still to be told, and out."""
        end_s = time.monotonic() + _LAST_WORDS_S
        self._copies.send_rest(lambda: self._is_all_sent(end_s))
        self._link.send(AgentEnded())
        self._is_all_sent(end_s)
        self._wire.close(_LAST_WORDS_S)
        return 0

    def _is_all_sent(self, end_s: float) -> bool:
        """Whether that was possible until `end_s`, by the monotonic clock."""
        while self._link.wants_to_write and not self._wire.is_gone and time.monotonic() < end_s:
            self._wire.receive()
            self._link.flush()
            self._wire.socket.poll(_SEND_RETRY_MS)
        return not self._link.wants_to_write
