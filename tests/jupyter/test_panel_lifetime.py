"""The kernel's half of the panel when pages come and go, drivers fail, and the extension is unloaded meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import comm
import pytest
from comm.base_comm import BaseComm, CommManager

from accel_nb.jupyter import extension, magics
from accel_nb.jupyter.known_runs import KnownRuns
from accel_nb.jupyter.panel import reporter as reporter_module
from accel_nb.jupyter.panel.followed import FollowedRun
from accel_nb.jupyter.panel.followers import Followers
from accel_nb.jupyter.panel.pages import ControlledKernel
from accel_nb.jupyter.panel.panel import Panel
from accel_nb.jupyter.panel.planning import Planning
from accel_nb.jupyter.panel.reporter import Reporter
from accel_nb.launch.run import Run
from accel_nb.protocol.panel import (
    REQUEST,
    AskPlan,
    Choice,
    HardwareNow,
    PanelNews,
    PanelReply,
    PlanAnswer,
    Refused,
)
from accel_nb.protocol.plan import LaunchPlan, LaunchRequest
from accel_nb.protocol.run_state import RunState
from tests.launch.census import wait_until

LOOK = HardwareNow(time_s=1.0, cpu_utilization=0.5, memory_used_bytes=1)


class OneRun:
    """A run of which the threads that follow it are held by the test."""

    def __init__(self) -> None:
        self.plan = SimpleNamespace(run_id="run-1", function_name="train", num_ranks=2, device_kind="cpu")
        self.log_dir = Path("/logs")
        self.status = "running"
        self.state = RunState()
        self.gates: list[tuple[threading.Event, threading.Event]] = []

    def wait(self, timeout_s: float) -> bool:
        return timeout_s < 0

    def when_over(self, act: Callable[[Run], None]) -> None:
        """It does not end here."""

    def draw_again(self, _view: FollowedRun, wanted: Callable[[], bool]) -> None:
        look, end = threading.Event(), threading.Event()
        self.gates.append((look, end))
        assert look.wait(30)
        wanted()
        look.clear()
        assert end.wait(30)


def known(run: OneRun) -> KnownRuns:
    runs = KnownRuns()
    runs.add(cast("Run", run))
    return runs


def num_threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


class Page:
    """Stands in for a kernel with one page at its comm."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self._replies: list[dict[str, Any]] = []
        self._came = asyncio.Event()
        self.session = SimpleNamespace(send=self._reply)
        self.control_handlers: dict[str, Callable[..., object]] = {}

    def _reply(self, _stream: object, _kind: str, content: dict[str, Any], *_rest: object) -> None:
        self._replies.append(content)
        self._came.set()

    def ask(self, handler: Callable[..., object], content: dict[str, Any]) -> dict[str, Any]:
        async def asked() -> dict[str, Any]:
            self._came = asyncio.Event()
            handler(None, None, {"header": {}, "content": content})
            await asyncio.wait_for(self._came.wait(), 60)
            return self._replies.pop()

        return asyncio.run(asked())


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    made = Page()

    class OneComm(BaseComm):
        def publish_msg(
            self, msg_type: str, data: dict[str, Any] | None = None, *_rest: object, **_keys: object
        ) -> None:
            made.sent.append({"msg_type": msg_type, **(data or {})})

    manager = CommManager()
    monkeypatch.setattr(comm, "create_comm", OneComm)
    monkeypatch.setattr(comm, "get_comm_manager", lambda: manager)
    yield made
    wait_until(lambda: num_threads("accel_nb panel") == 0, 30, lambda: "a thread of the panel is left")


def types(page: Page) -> list[str]:
    return [one["type"] for one in page.sent if "type" in one]


def test_a_page_that_has_not_asked_for_long_is_told_that_a_run_begins(page: Page) -> None:
    runs = KnownRuns()
    panel = Panel(cast("ControlledKernel", page), runs)
    runs.add(cast("Run", OneRun()))
    wait_until(lambda: types(page) == ["runs_now"], 30, lambda: f"{page.sent}")
    panel.close()


def test_a_request_while_the_extension_is_unloaded_leaves_no_thread(page: Page) -> None:
    panel = Panel(cast("ControlledKernel", page), KnownRuns())
    handler = page.control_handlers[REQUEST]
    panel.close()

    reply = page.ask(handler, {"type": "hello"})

    assert reply["type"] == "kernel_facts"
    assert page.control_handlers == {}
    wait_until(lambda: num_threads("accel_nb panel") == 0, 30, lambda: "it waits for the next request")
    assert page.sent[-1]["msg_type"] == "comm_close"


def test_two_generations_of_one_followed_run_do_not_end_each_other() -> None:
    run = OneRun()
    listens = False
    followers = Followers(known(run), list[PanelNews]().append, lambda: listens)

    def follow(expected: int) -> None:
        followers.follow("run-1", list[PanelReply]().append)
        wait_until(lambda: len(run.gates) >= expected, 30, lambda: f"{len(run.gates)} threads")

    follow(1)
    first_looks, first_ends = run.gates[0]
    first_looks.set()  # nobody listens
    wait_until(lambda: not first_looks.is_set(), 30, lambda: "it has not looked")
    listens = True
    follow(2)
    first_ends.set()
    wait_until(lambda: num_threads("accel_nb panel run-1") == 1, 30, lambda: "the first goes on")

    followers.follow("run-1", list[PanelReply]().append)

    assert num_threads("accel_nb panel run-1") == 1, "the second follows it for all"
    for looks, ends in run.gates[1:]:
        looks.set()
        ends.set()
    followers.close()
    assert num_threads("accel_nb panel run-1") == 0


def test_a_question_whose_plan_breaks_is_answered_and_so_is_the_next() -> None:
    def plan(_request: LaunchRequest) -> LaunchPlan:
        raise OSError("no pipe")

    answers: list[PanelNews] = []
    planning = Planning(answers.append, plan)
    for number in (1, 2):
        planning.ask(AskPlan(number=number, choice=Choice()), "page")
        wait_until(lambda number=number: len(answers) == number, 30, lambda: f"{answers}")  # type: ignore[misc]

    assert [cast("PlanAnswer", one).problem for one in answers] == ["No plan could be made: OSError('no pipe')."] * 2


class Meter:
    """Stands in for the drivers: one that is slow, or fails from its second look on."""

    looks = 0
    takes_s = 0.0
    fails = False

    def measure(self, _names: object) -> HardwareNow:
        Meter.looks += 1
        if Meter.fails and Meter.looks > 1:
            raise RuntimeError("the driver is gone")
        time.sleep(Meter.takes_s)
        return LOOK


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> type[Meter]:
    monkeypatch.setattr(reporter_module, "HardwareMeter", Meter)
    monkeypatch.setattr(reporter_module, "EVERY_S", 0.02)
    monkeypatch.setattr(reporter_module, "FRESH_S", 0.0)
    for name, value in (("looks", 0), ("takes_s", 0.0), ("fails", False)):
        monkeypatch.setattr(Meter, name, value)
    return Meter


def reported(until: Callable[[list[PanelNews]], bool], replies: list[PanelReply]) -> list[PanelNews]:
    listens = True
    news: list[PanelNews] = []
    made = Reporter(KnownRuns(), "comm-1", news.append, lambda: listens, news.append)
    made.tell_facts(replies.append)
    wait_until(lambda: until(news), 60, lambda: f"{news}")
    made.tell_facts(replies.append)
    wait_until(lambda: len(replies) == 2, 60, lambda: f"{replies}")
    listens = False
    made.close()
    return news


def test_drivers_that_are_slow_are_asked_seldom(meter: type[Meter], monkeypatch: pytest.MonkeyPatch) -> None:
    """After a look of 0.1 s the next is due in an hour; until then each interval of 0.02 s ends idly."""
    monkeypatch.setattr(meter, "takes_s", 0.1)
    monkeypatch.setattr(reporter_module, "AT_MOST_BUSY", 0.1 / 3600)
    wakes = 0

    def counted(_known: KnownRuns) -> tuple[()]:
        nonlocal wakes
        wakes += 1
        return ()

    monkeypatch.setattr(reporter_module, "summaries", counted)
    news = reported(lambda _news: wakes > 10, [])

    assert meter.looks == 2, "one for each page"
    assert not [one for one in news if isinstance(one, HardwareNow)]


def test_a_driver_that_fails_later_ends_no_thread_and_is_told_to_the_next_page(
    meter: type[Meter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "fails", True)
    died: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    replies: list[PanelReply] = []

    reported(lambda _news: meter.looks > 1, replies)

    assert died == []
    assert isinstance(replies[1], Refused)
    assert "the driver is gone" in replies[1].problem


def test_a_kernel_without_control_handlers_has_the_magics_and_no_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(extension, "watch_cells", lambda _shell: None)
    monkeypatch.setattr(magics, "register", lambda _shell: done.append("magics"))
    monkeypatch.setattr(extension, "warm_up", lambda: done.append("warm server"))
    monkeypatch.setattr(extension, "_panel", [])

    extension.load_ipython_extension(SimpleNamespace(kernel=SimpleNamespace(session=None)))

    assert done == ["magics", "warm server"]
    assert extension._panel == []
