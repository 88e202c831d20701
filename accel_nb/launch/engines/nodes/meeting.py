"""The process in which one node meets the others: torch's rendezvous, and in its store who has come and what they say.

kernel ══channel══ meeting ──TCPStore, torch.distributed.elastic.rendezvous── meetings of the other nodes

A process of its own, since the kernel imports no torch on our behalf. On the node that hosts the store it lives until
the run is over.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn, TypeVar

from ....protocol.nodes import Introduce, Leave, MeetAgain, MeetingCommand, MeetingOrder, Met, NotMet, Placed
from ....protocol.wire import Skipped
from ... import processes
from ...channel import Channel

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]  # public, not in __all__
    from torch.distributed.elastic.rendezvous import RendezvousHandler

Wanted = TypeVar("Wanted", bound=MeetingCommand)

_LOOK_S = 0.1
_LONG_S = 60.0
_CONNECT_S = 5.0
_TOLD_S = 3.0
"""The others get this long to read why the host of the store gives up."""
_ENDS_S = 5.0
"""Without its kernel a meeting has this long to tell the others, whatever it waits in."""
_BUSY = "another launch of {count} nodes is under way there"


class GaveUp(Exception):
    """The meeting comes to nothing; the text says why."""


def meet_in_interpreter(channel_fd: int, kernel_pid: int) -> None:
    """Everything a fresh interpreter does as a meeting; it ends when its kernel closes the channel, or is gone."""
    processes.reset_signals()
    kernel_fd = os.pidfd_open(kernel_pid)
    if os.getppid() != kernel_pid:
        return
    # torch's rendezvous and its store wait for as long as nodes may take, and look at nothing meanwhile.
    threading.Thread(target=_end_with_kernel, args=(channel_fd, kernel_fd), daemon=True).start()
    channel = Channel[MeetingCommand](socket.socket(fileno=channel_fd), MeetingCommand)
    meeting: _Meeting | None = None
    try:
        meeting = _Meeting(channel)
        meeting.hold()
    except GaveUp as error:
        channel.send(NotMet(reason=str(error)))
    except RuntimeError as error:
        # The store's: it goes with its host.
        gone = "the node that hosts the meeting went away before all had met"
        channel.send(NotMet(reason=f"{gone} ({_first_line(error)})."))
    # What the kernel says now concerns nobody any more; `meeting` holds the store for those who still read.
    while not channel.receive()[1]:
        processes.is_readable(channel.fileno(), _LONG_S)


def _end_with_kernel(channel_fd: int, kernel_fd: int) -> None:
    poll = select.poll()
    poll.register(kernel_fd, select.POLLIN)
    poll.register(channel_fd, select.POLLRDHUP)
    poll.poll()
    time.sleep(_ENDS_S)
    os._exit(0)


class _Meeting:
    """Of one run. One thread; `hold` returns when the kernel has closed the channel."""

    def __init__(self, channel: Channel[MeetingCommand]) -> None:
        self._channel = channel
        self._waiting: list[MeetingCommand] = []
        self._order = self._next(MeetingOrder)
        self._end_s = time.monotonic() + self._order.deadline_s
        self._store: TCPStore | None = None
        self._handler: RendezvousHandler | None = None
        self._round = 0
        self._last_error = ""
        """Why the meeting point has not let this node in so far."""
        self._names: dict[int, str] = {}
        """Number -> host of those that have come; numbered as they came where the rendezvous decides."""

    def hold(self) -> None:
        self._store = self._opened_store()
        while True:
            self._end_s = time.monotonic() + self._order.deadline_s
            self._names.clear()
            self._arrive()
            self._wait(self._all_here, self._missing_text)
            node = self._placed()
            self._channel.send(Placed(node=node))
            note = self._next(Introduce).note
            self._said().set(self._key(f"note/{node}"), note)
            self._wait(self._all_said, self._silent_text)
            notes = [self._said().get(self._key(f"note/{other}")).decode() for other in range(self._order.num_nodes)]
            self._complete()
            self._channel.send(Met(notes=tuple(notes)))
            self._round = self._next(MeetAgain).attempt

    # ---- the store that all meet in

    def _opened_store(self) -> TCPStore:
        """Raises GaveUp when the meeting point did not answer in time."""
        order = self._order
        if order.hosts:
            return self._connected(self._channel.take_fd())
        while True:
            self._wait(self._answers, self._no_answer_text, every_s=0.3)
            store = self._connected(None)
            # A launch before this one may not have closed yet; one that has begun takes nobody in.
            if not store.check(["0/complete"]):
                return store
            self._last_error = _BUSY.format(count=order.num_nodes)
            self._sleep(_LOOK_S)

    def _connected(self, listening_fd: int | None) -> TCPStore:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, not in __all__

        order = self._order
        try:
            return TCPStore(
                order.host,
                order.port,
                is_master=listening_fd is not None,
                wait_for_workers=False,
                # Shared with the handler, which opens one there, too.
                multi_tenant=True,
                timeout=timedelta(seconds=_CONNECT_S),
                use_libuv=False,  # torch 2.6's libuv server takes no listening descriptor; the plain one always does
                **({} if listening_fd is None else {"master_listen_fd": listening_fd}),
            )
        except (RuntimeError, ValueError) as error:
            raise GaveUp(f"{self._place} does not answer as the meeting point of nodes: {_first_line(error)}") from None

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self._order.host, self._order.port), _CONNECT_S):
                return True
        except OSError as error:
            self._last_error = error.strerror or str(error)
            return False

    def _said(self) -> Store:
        assert self._store is not None
        return self._store

    def _key(self, name: str) -> str:
        return f"{self._round}/{name}"

    # ---- who comes

    def _arrive(self) -> None:
        """Say that this node is here. Raises GaveUp when another one says that it is this node."""
        order, store = self._order, self._said()
        if self._round == 0:
            store.add("arrivals", 1)
        number = order.node_rank if order.backend == "static" else store.add(self._key("arrived"), 1) - 1
        told = f"{order.num_nodes}"
        first = store.compare_set("num_nodes", "", told).decode()
        if first != told:
            self._give_up(f"{order.name} was told num_nodes={told}, and another node num_nodes={first}: say the same.")
        if store.compare_set("run_id", "", order.run_id).decode() != order.run_id:
            self._give_up(f"{order.name} has another rdzv_id than the node before it: give the same on all.")
        before = store.add(self._key(f"came/{number}"), 1) - 1
        if before and number < order.num_nodes:
            other = store.get(self._key(f"here/{number}")).decode()
            self._give_up(
                f"{order.name} and {other} both say node_rank={number}; number the {order.num_nodes} nodes from 0 on."
            )
        if number >= order.num_nodes:
            self._give_up(f"{order.name} came as one node more than num_nodes={order.num_nodes}.")
        store.set(self._key(f"here/{number}"), order.name)

    def _all_here(self) -> bool:
        for number in range(self._order.num_nodes):
            if number not in self._names and self._said().check([self._key(f"here/{number}")]):
                self._names[number] = self._said().get(self._key(f"here/{number}")).decode()
        return len(self._names) == self._order.num_nodes

    def _placed(self) -> int:
        """This node's number, by torch's rendezvous."""
        from torch.distributed.elastic.rendezvous.api import RendezvousError

        if self._handler is None:
            self._handler = _handler(self._order)
        try:
            info = self._handler.next_rendezvous()
        except (RendezvousError, RuntimeError, ValueError) as error:
            raise GaveUp(
                f"torch's {self._order.backend} rendezvous at {self._place} failed: {_first_line(error)}"
            ) from None
        return info.rank

    def _all_said(self) -> bool:
        return self._said().check([self._key(f"note/{node}") for node in range(self._order.num_nodes)])

    def _complete(self) -> None:
        """This node has read what all have said; the store stays until all have."""
        store, end = self._said(), time.monotonic() + _TOLD_S
        store.add(self._key("complete"), 1)
        while self._order.hosts and store.add(self._key("complete"), 0) < self._order.num_nodes:
            if time.monotonic() >= end:
                return
            time.sleep(_LOOK_S / 10)

    # ---- waiting, and giving up

    def _wait(self, is_so: Callable[[], bool], complaint: Callable[[], str], every_s: float = _LOOK_S) -> None:
        """Raises GaveUp with `complaint` at the deadline, or with what another node gave up for."""
        try:
            while not is_so():
                if self._store is not None and self._store.check(["gave_up"]):
                    self._give_up(self._store.get("gave_up").decode())
                if time.monotonic() >= self._end_s:
                    self._give_up(complaint())
                self._sleep(every_s)
        except RuntimeError as error:
            # The store's: it goes with its host.
            gone = f"the node that hosts the meeting at {self._place} went away while the others were waited for"
            raise GaveUp(f"{gone} ({_first_line(error)}).") from None

    def _sleep(self, within_s: float) -> None:
        """Until the kernel says something; a Leave ends the meeting."""
        if not processes.is_readable(self._channel.fileno(), within_s):
            return
        self._read()
        for command in self._waiting:
            if isinstance(command, Leave):
                self._give_up(command.reason)

    def _give_up(self, reason: str) -> NoReturn:
        """End, and see to it that the others do for the same reason, the first that was found."""
        store = self._store
        if store is not None:
            reason = store.compare_set("gave_up", "", reason).decode()
            store.add("left", 1)
            end = time.monotonic() + _TOLD_S
            while self._order.hosts and store.add("left", 0) < store.add("arrivals", 0) and time.monotonic() < end:
                time.sleep(_LOOK_S)
        raise GaveUp(reason)

    @property
    def _place(self) -> str:
        return f"{self._order.host}:{self._order.port}"

    def _no_answer_text(self) -> str:
        order = self._order
        if self._last_error.startswith("another launch"):
            why = self._last_error
        else:
            why = f"{self._last_error or 'no answer'}; tried from {order.name}"
        first = "node 0" if order.backend == "static" else "the node at that address"
        return (
            f"{first} never came: nobody let this node in at {self._place} within {order.deadline_s:g} s ({why}). Run "
            f"the same call there{' with node_rank=0' if order.backend == 'static' else ''}, and let port {order.port} "
            "through firewalls."
        )

    def _missing_text(self) -> str:
        order = self._order
        missing = [number for number in range(order.num_nodes) if number not in self._names]
        here = ", ".join(
            f"node {number} ({name})" if order.backend == "static" else name
            for number, name in sorted(self._names.items())
        )
        came = f"{len(self._names)} of {order.num_nodes} nodes came"
        text = f"{came} to {self._place} within {order.deadline_s:g} s: {here}."
        if order.backend == "static":
            ranks = " or ".join(f"node_rank={number}" for number in missing)
            return f"{text} Missing: {_numbered(missing)}. Run the same call there with {ranks}."
        return f"{text} Missing: {len(missing)} more. Run the same call there."

    def _silent_text(self) -> str:
        silent = [node for node in range(self._order.num_nodes) if not self._said().check([self._key(f"note/{node}")])]
        return f"{_numbered(silent)} came to {self._place}, and did not get ready within {self._order.deadline_s:g} s."

    # ---- the kernel

    def _next(self, kind: type[Wanted]) -> Wanted:
        """The kernel's next command of that kind, waited for without a deadline: a kernel may be busy.

        Raises GaveUp when it says Leave, SystemExit when it has closed the channel.
        """
        while True:
            for index, command in enumerate(self._waiting):
                if isinstance(command, kind):
                    return self._waiting.pop(index)  # type: ignore[return-value]  # the very one
                if isinstance(command, Leave):
                    self._give_up(command.reason)
            processes.is_readable(self._channel.fileno(), _LONG_S)
            self._read()

    def _read(self) -> None:
        messages, closed = self._channel.receive()
        self._waiting += [message for message in messages if not isinstance(message, Skipped)]
        if not closed:
            return
        # It wants nothing more, or is gone.
        for command in self._waiting:
            if isinstance(command, Leave):
                self._give_up(command.reason)
        raise SystemExit(0)


def _handler(order: MeetingOrder) -> RendezvousHandler:
    """torch's, with our deadline where the user has not set one."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    deadline = max(1, round(order.deadline_s))
    own: dict[str, int | bool] = {"timeout": deadline, "rank": order.node_rank}
    if order.backend == "c10d":
        own = {"join_timeout": deadline, "is_host": order.hosts}
    parameters = RendezvousParameters(
        backend=order.backend,
        endpoint=f"{order.host}:{order.port}",
        run_id=order.run_id,
        min_nodes=order.num_nodes,
        max_nodes=order.num_nodes,
        local_addr=order.own,
        **{**own, **order.settings},
    )
    return get_rendezvous_handler(parameters)


def _numbered(nodes: Sequence[int]) -> str:
    numbers = ", ".join(map(str, nodes))
    return f"node {numbers}" if len(nodes) == 1 else f"nodes {numbers}"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
