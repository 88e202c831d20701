"""All pages that show the panel of this kernel: one comm to them, requests from them by the control channel.

page --REQUEST--> kernel.control_handlers --take--> Panel      (the kernel's thread for control messages)
page <--REPLY---- answer <------------------------- Panel      (any thread)
page <==TARGET=== Pages.send <--------------------- Panel      (any thread)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, cast

import msgspec

from ...protocol.panel import REPLY, REQUEST, TARGET, PanelNews, PanelReply, PanelRequest, Refused
from ...protocol.version import __version__

Content = Mapping[str, Any]
Answer = Callable[[PanelReply], None]
"""Gives the reply to one request, once; in any thread."""
Take = Callable[[PanelRequest, str, Answer], None]
"""Is told a request, and what tells its page from others; must return soon, for it is called in the thread that
interrupts and shuts down."""


class _Session(Protocol):
    def send(self, stream: object, msg_or_type: str, content: Content, parent: Content, ident: object) -> object: ...


class ControlledKernel(Protocol):
    """What we need of `ipykernel.kernelbase.Kernel`, alike in 6.31 and 7.4."""

    session: _Session
    control_handlers: dict[str, Callable[..., object]]


class _Comm(Protocol):
    """What we need of `comm.base_comm.BaseComm`."""

    comm_id: str

    def open(self, data: dict[str, Any]) -> None: ...
    def send(self, data: dict[str, Any]) -> None: ...
    def publish_msg(self, msg_type: str) -> None: ...
    def on_close(self, callback: Callable[[object], None] | None) -> None: ...


class Pages:
    """Any thread may send. One comm for as long as the extension is loaded, whichever pages come and go."""

    def __init__(self, kernel: ControlledKernel, take: Take) -> None:
        """Nothing is heard or said before `open`."""
        import comm

        self._kernel = kernel
        self._take = take
        self._manager = comm.get_comm_manager()
        self._comm = cast("_Comm", comm.create_comm(target_name=TARGET, primary=False))
        self._comm.on_close(self._stay_open)

    def open(self) -> None:
        """Listen to requests, then open the comm: a page asks as soon as it sees that. In the thread of a cell."""
        self._kernel.control_handlers[REQUEST] = self._receive
        self._comm.open(data={"version": __version__})

    @property
    def comm_id(self) -> str:
        return self._comm.comm_id

    def send(self, news: PanelNews) -> None:
        self._comm.send(msgspec.to_builtins(news, str_keys=True))

    def close(self) -> None:
        """Tell the pages, and answer no more."""
        if self._kernel.control_handlers.get(REQUEST) == self._receive:
            del self._kernel.control_handlers[REQUEST]
        self._comm.on_close(None)
        # Its own close() would tell nobody when one of several pages has closed its end before.
        self._comm.publish_msg("comm_close")
        self._manager.unregister_comm(cast("Any", self._comm))

    def _stay_open(self, _message: object) -> None:
        """A page has closed its end, or a front end knows no such target: that is no end for the others. What the
        next one that closes says is for a comm that is known, too.
        """
        self._manager.register_comm(cast("Any", self._comm))

    def _receive(self, stream: object, ident: object, message: Content) -> None:
        answer = _answer_to(self._kernel.session, stream, ident, message)
        try:
            request = msgspec.convert(message["content"], cast("type[PanelRequest]", PanelRequest))
        except msgspec.ValidationError as error:
            answer(Refused(problem=f"accel_nb {__version__} in this kernel does not understand the panel: {error}."))
            return
        self._take(request, message["header"].get("session", ""), answer)


def _answer_to(session: _Session, stream: object, ident: object, message: Content) -> Answer:
    """Sockets belong to their thread: what is answered elsewhere is sent by the loop that received the request."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    parent = {"header": message["header"]}

    def answer(reply: PanelReply) -> None:
        send = partial(session.send, stream, REPLY, msgspec.to_builtins(reply, str_keys=True), parent, ident)
        if threading.get_ident() == thread:
            send()
        elif not loop.is_closed():  # the kernel ends
            loop.call_soon_threadsafe(send)

    return answer
