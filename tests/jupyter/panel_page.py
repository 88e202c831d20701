"""The page's half of the panel, as far as a kernel can tell: requests in, replies and news out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

import msgspec

from accel_nb.protocol.front_end import WholeRun
from accel_nb.protocol.panel import (
    REQUEST,
    TARGET,
    Accepted,
    FollowRun,
    Hello,
    KernelFacts,
    PanelNews,
    PanelReply,
    PanelRequest,
    Refused,
    RunNews,
    RunsNow,
    RunSummary,
    StopNamedRun,
)
from tests.notebook_kernel import CommMessage, NotebookKernel

News = TypeVar("News", bound=msgspec.Struct)


class PanelPage:
    """One page beside the notebook of `kernel`."""

    def __init__(self, kernel: NotebookKernel) -> None:
        self._kernel = kernel
        self._seen = {id(message) for message in kernel.comm_messages}
        """The messages that this page has looked at, or that were before it. The kernel keeps them all."""

    @property
    def comms(self) -> list[str]:
        """Of the panel, that the kernel has opened; the newest last."""
        return [one.comm_id for one in self._kernel.comm_messages if one.kind == "comm_open" and one.target == TARGET]

    def ask(self, request: PanelRequest) -> PanelReply:
        content = self._kernel.ask(REQUEST, msgspec.to_builtins(request))
        return msgspec.convert(content, cast("type[PanelReply]", PanelReply), str_keys=True)

    def hello(self) -> KernelFacts:
        facts = self.ask(Hello())
        assert isinstance(facts, KernelFacts), facts
        return facts

    def follow(self, run_id: str) -> WholeRun:
        news = self.ask(FollowRun(run_id=run_id))
        assert isinstance(news, RunNews), news
        assert isinstance(news.message, WholeRun)
        return news.message

    def stop(self, run_id: str, *, now: bool = False) -> None:
        assert self.ask(StopNamedRun(run_id=run_id, now=now)) == Accepted()

    def refused(self, request: PanelRequest) -> str:
        reply = self.ask(request)
        assert isinstance(reply, Refused), reply
        return reply.problem

    def news(
        self, kind: type[News], is_wanted: Callable[[News], bool] = lambda _: True, timeout_s: float = 60.0
    ) -> News:
        """The first that this page has not looked at yet. Raises TimeoutError."""
        found: list[News] = []

        def is_it(message: CommMessage) -> bool:
            if id(message) in self._seen:
                return False
            news = self._read(message)
            self._seen.add(id(message))
            if isinstance(news, kind) and is_wanted(news):
                found.append(news)
            return bool(found)

        self._kernel.wait_for_comm(is_it, timeout_s)
        return found[0]

    def all_news(self) -> Iterator[tuple[float, PanelNews]]:
        """All that came so far, with the time of their arrival."""
        for message in list(self._kernel.comm_messages):
            if message.kind == "comm_msg" and message.comm_id in self.comms:
                yield message.time_s, msgspec.convert(message.data, cast("type[PanelNews]", PanelNews), str_keys=True)

    def begun_run(self) -> RunSummary:
        """The newest, once a rank of it runs. `hello` came before."""
        return self.news(RunsNow, lambda now: bool(now.runs) and now.runs[-1].status == "running").runs[-1]

    def ended_run(self, run_id: str) -> RunSummary:
        """Once it has ended. What has come before is looked at, too."""
        found: list[RunSummary] = []

        def tells_it(message: CommMessage) -> bool:
            news = self._read(message)
            runs = news.runs if isinstance(news, RunsNow) else ()
            found.extend(one for one in runs if one.run_id == run_id and one.duration_s is not None)
            return bool(found)

        self._kernel.wait_for_comm(tells_it, 60.0)
        return found[0]

    def _read(self, message: CommMessage) -> PanelNews | None:
        if message.kind != "comm_msg" or message.comm_id not in self.comms:
            return None  # a widget's
        return msgspec.convert(message.data, cast("type[PanelNews]", PanelNews), str_keys=True)
