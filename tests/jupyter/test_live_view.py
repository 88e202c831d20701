"""The live view: what a page is sent, what its buttons do, and what stays in the cell."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import cast

import msgspec
import pytest

from accel_nb.errors import InvalidArgument
from accel_nb.jupyter import cell_widget
from accel_nb.jupyter.cell_output import CellOutput
from accel_nb.jupyter.display import NotebookView
from accel_nb.jupyter.live_view import FIRST_RESEND_S, LOADED_WITHIN_S, LiveView
from accel_nb.jupyter.run_feed import KEPT_LINES
from accel_nb.launch.run import Run
from accel_nb.protocol.events import Display, EventsDropped, LogLines, ProgressRow, RunEvent
from accel_nb.protocol.front_end import (
    AskStacks,
    Connect,
    FromFrontEnd,
    Loaded,
    NewEvents,
    StackTexts,
    StopRun,
    ToFrontEnd,
    WholeRun,
)
from accel_nb.protocol.plan import LaunchPlan
from accel_nb.protocol.run_state import RunState, advance_all
from tests.fixtures.recorded import recorded_events
from tests.notebook_kernel import CommMessage, Executed, NotebookKernel

HAS_SUBSHELLS = int(version("ipykernel").split(".")[0]) >= 7
IS_BUILT = cell_widget.unavailable_because() is None
needs_build = pytest.mark.skipif(not IS_BUILT, reason="needs `npm ci && npm run build`")

FROM_A_PAGE = {"cellId": "a"}
WIDGET = "application/vnd.jupyter.widget-view+json"


class FakePage:
    """Keeps what it is sent."""

    can_hear = True
    is_heard = True

    def __init__(self) -> None:
        self.sent: list[ToFrontEnd] = []
        self.closed = False

    def send(self, message: ToFrontEnd) -> None:
        msgspec.json.encode(message)
        self.sent.append(message)

    def data(self, text: str) -> dict[str, str]:
        return {"widget": "1", "text/plain": text}

    def close(self) -> None:
        self.closed = True


class FakeCell:
    """Keeps what is shown in it."""

    is_own_thread = True

    def __init__(self) -> None:
        self.shown: list[tuple[str, dict[str, str]]] = []

    def display(self, _display_id: str, data: dict[str, str], _metadata: str = "") -> None:
        self.shown.append(("display", dict(data)))

    def write(self, text: str) -> None:
        self.shown.append(("write", {"text": text}))

    def update(self, _display_id: str, data: dict[str, str], _metadata: str = "") -> None:
        self.shown.append(("update", dict(data)))


class FakeRun:
    """Keeps how it was stopped."""

    plan = LaunchPlan(
        run_id="r", function_name="train", engine="local", device_kind="cpu", process_group="gloo", ranks=()
    )

    def __init__(self, stacks: dict[int, str] | None = None) -> None:
        self.stops: list[tuple[float | None, str]] = []
        self._stacks = stacks

    def stop(self, grace_s: float | None = None, *, by: str) -> None:
        self.stops.append((grace_s, by))

    def stacks(self) -> dict[int, str]:
        if self._stacks is None:
            raise TimeoutError("they did not come")
        return self._stacks


class Showing:
    """A live view whose time the test makes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.page = FakePage()
        self.cell = FakeCell()
        self.state = RunState()
        cell = cast("CellOutput", self.cell)
        self.view = LiveView(cell, lambda _: self.page, lambda: NotebookView(cell), lambda: self.now)

    def update(self, *events: RunEvent, after_s: float = 0.1) -> list[ToFrontEnd]:
        """What the page is sent upon it."""
        self.now += after_s
        before = len(self.page.sent)
        self.state = advance_all(self.state, events)
        self.view.update(events, self.state)
        return self.page.sent[before:]

    def serve(self, run: FakeRun, *, raises: bool = False) -> None:
        self.view.serve(cast("Run", run), raises=raises)

    def do(self, message: FromFrontEnd) -> None:
        self.view.take(message)


@pytest.fixture(name="showing")
def _showing() -> Showing:
    made = Showing()
    made.update(*recorded_events("success")[:6])
    return made


def lines(text: str, sequence: int = 0) -> LogLines:
    return LogLines(rank=0, text=text, sequence=sequence)


def bar(n: int, sequence: int = 0) -> ProgressRow:
    return ProgressRow(rank=0, bar=9, n=n, total=10_000, text=f"{n}/10000", sequence=sequence)


def test_the_first_message_is_the_whole_run_and_then_come_events(showing: Showing) -> None:
    [whole] = showing.page.sent
    [news] = showing.update(lines("one"))

    assert isinstance(whole, WholeRun)
    assert (whole.state.sequence, whole.started_s > 1e9) == (6, True)
    assert isinstance(news, NewEvents)
    assert [event.text for event in news.events if isinstance(event, LogLines)] == ["one"]


def test_o13_events_are_sent_ten_times_a_second_at_most(showing: Showing) -> None:
    showing.do(Connect())
    sent = [message for n in range(100) for message in showing.update(bar(n), after_s=0.01)]

    assert 8 <= len(sent) <= 11, "the first of them is the whole run"
    assert all(len(message.events) == 1 for message in sent if isinstance(message, NewEvents)), "only the newest counts"


def test_o13_of_a_flood_the_newest_lines_are_sent_and_the_others_counted(showing: Showing) -> None:
    [news] = showing.update(lines("\n".join(f"line {n}" for n in range(100_000))))

    assert isinstance(news, NewEvents)
    assert len(msgspec.json.encode(news)) < 150_000
    state = advance_all(RunState(), [*recorded_events("success")[:6], *news.events])
    assert state.ranks[0].log_tail[-1] == "line 99999"
    first = int(cast("LogLines", news.events[-1]).text.split("\n")[0].split()[1])
    assert state.ranks[0].dropped_lines == first


def test_o14_a_page_that_connects_late_is_sent_all_lines_in_order(showing: Showing) -> None:
    showing.update(lines("one\ntwo"))
    showing.do(Connect())
    [whole] = showing.update(lines("three"))

    assert isinstance(whole, WholeRun)
    assert [line.text for line in whole.lines][-3:] == ["one", "two", "three"]
    assert all(rank.log_tail == () for rank in whole.state.ranks.values())
    assert len(whole.lines) <= KEPT_LINES


def test_a_page_that_connects_late_is_told_how_many_lines_were_left_out(showing: Showing) -> None:
    showing.do(Connect())
    showing.update()
    [news] = showing.update(lines("\n".join(f"line {n}" for n in range(100_000))))
    showing.do(Connect())
    [whole] = showing.update(after_s=1)

    assert isinstance(news, NewEvents)
    assert isinstance(whole, WholeRun)
    left_out = [event.lines for event in news.events if isinstance(event, EventsDropped)]
    assert [rank.dropped_lines for rank in whole.state.ranks.values()] == [*left_out, 0]
    [first, *_] = [line.text for line in whole.lines if line.text.startswith("line ")]
    assert int(first.split()[1]) >= left_out[0] > 0


def test_what_was_before_the_view_is_shown_without_a_cut() -> None:
    showing = Showing()
    before = [f"{n} {'x' * 200}" for n in range(KEPT_LINES)]

    [whole] = showing.update(*recorded_events("success")[:6], lines("\n".join(before)))

    assert isinstance(whole, WholeRun)
    assert [line.text for line in whole.lines] == before
    assert whole.state.ranks[0].dropped_lines == 0


def test_a_page_that_cannot_ask_is_sent_the_whole_run_again_ever_more_rarely(showing: Showing) -> None:
    times = [
        showing.now
        for _ in range(100)
        for message in showing.update(after_s=FIRST_RESEND_S / 5)
        if isinstance(message, WholeRun)
    ]

    assert [round(later / earlier, 1) for earlier, later in itertools.pairwise(times)] == pytest.approx(
        [2.0] * (len(times) - 1), abs=0.4
    )
    assert len(times) >= 4
    showing.do(Connect())
    assert [type(message) for message in showing.update(after_s=1)] == [WholeRun]
    assert [message for _ in range(200) for message in showing.update()] == []


def test_u08_stop_reaches_the_run_at_once_and_stop_now_does_not_wait(showing: Showing) -> None:
    run = FakeRun()
    showing.serve(run)

    showing.do(StopRun())
    showing.do(StopRun(now=True))

    assert run.stops == [(None, "view"), (0.0, "view")]


def test_u08_stop_now_ends_at_once_a_run_that_was_stopped_elsewhere(showing: Showing) -> None:
    run = FakeRun()
    showing.serve(run)

    showing.do(StopRun(now=True))

    assert run.stops == [(0.0, "view")]


def test_stops_before_the_run_is_known_are_not_lost(showing: Showing) -> None:
    run = FakeRun()

    showing.do(StopRun())
    showing.do(StopRun(now=True))
    showing.serve(run)

    assert run.stops == [(None, "view"), (0.0, "view")]


@pytest.mark.parametrize(
    ("stacks", "answer"),
    [
        ({0: "in train"}, StackTexts(text_by_rank={0: "in train"})),
        ({}, StackTexts(problem="No rank runs now.")),
        (None, StackTexts(problem="they did not come")),
    ],
)
def test_stacks_are_found_beside_the_drawing(
    showing: Showing, stacks: dict[int, str] | None, answer: StackTexts
) -> None:
    showing.serve(FakeRun(stacks))
    showing.do(AskStacks())
    showing.update()

    end = time.monotonic() + 10
    while not (sent := showing.update()) and time.monotonic() < end:
        time.sleep(0.01)

    assert sent == [answer]


def test_u07_what_stays_has_no_widget(showing: Showing) -> None:
    showing.update(*recorded_events("success")[6:])
    showing.view.close(showing.state)
    showing.view.close(showing.state)

    assert [kind for kind, _ in showing.cell.shown] == ["display", "update"]
    data = showing.cell.shown[-1][1]
    assert set(data) == {"text/html", "text/plain"}
    assert showing.page.closed
    assert "✓ train finished: 2 ranks on cpu" in data["text/html"]
    assert "[r0-r1] green and bold red" in data["text/plain"]
    assert "loss 1" not in data["text/plain"], "metrics are a table"
    assert data["text/plain"].count("epoch 2: 100%") == 2, "one line per bar"


def test_o14_a_page_that_was_reloaded_keeps_its_widget_and_may_be_reloaded_again(showing: Showing) -> None:
    showing.do(Connect())
    showing.do(Connect())
    showing.update(*recorded_events("success")[6:])
    showing.view.close(showing.state)
    showing.do(Connect())

    assert not showing.page.closed
    assert [type(message) for message in showing.page.sent[-2:]] == [WholeRun, WholeRun]
    assert showing.page.sent[-1] == showing.page.sent[-2]
    assert cast("WholeRun", showing.page.sent[-1]).state.status == "finished"


def test_a_page_that_stays_is_told_the_last_lines(showing: Showing) -> None:
    showing.do(Connect())
    showing.do(Connect())
    showing.update()
    showing.update(lines("the last"), after_s=0.01)
    showing.view.close(showing.state)

    assert cast("WholeRun", showing.page.sent[-1]).lines[-1].text == "the last"


def test_a_page_that_stays_lets_the_run_go(showing: Showing) -> None:
    run = FakeRun()
    showing.serve(run)
    showing.do(Connect())
    showing.do(Connect())
    showing.update()
    kept = weakref.ref(run)

    showing.view.close(showing.state)
    showing.do(StopRun())
    showing.do(AskStacks())
    stops = run.stops
    del run

    assert stops == []
    assert kept() is None


def test_u10_a_page_that_cannot_load_the_widget_is_given_text(showing: Showing) -> None:
    assert showing.update(lines("before"), after_s=LOADED_WITHIN_S - 1) != []

    showing.update(*recorded_events("success")[6:], after_s=2)
    showing.view.close(showing.state)

    assert showing.page.closed
    assert "this page has not loaded the live view" in showing.cell.shown[1][1]["text/plain"]
    text = "".join(data["text"] for kind, data in showing.cell.shown if kind == "write")
    assert text.splitlines()[0].startswith("accel_nb: train: 2 ranks on cpu")
    assert "[r0] before\n" in text
    assert "WARNING:root:the last epoch is over" in text
    assert not any("text/html" in data for _, data in showing.cell.shown)


@pytest.mark.parametrize(("can_hear", "is_heard"), [(True, True), (True, False), (False, False)])
def test_a_page_that_has_loaded_or_cannot_say_so_keeps_the_widget(
    showing: Showing, *, can_hear: bool, is_heard: bool
) -> None:
    showing.page.can_hear, showing.page.is_heard = can_hear, is_heard
    if is_heard:
        showing.do(Loaded())

    showing.update(after_s=10 * LOADED_WITHIN_S)

    assert not showing.page.closed


@pytest.mark.parametrize("waits", [True, False])
def test_stop_waits_only_where_the_cell_waits_and_the_kernel_does_not_hear(showing: Showing, *, waits: bool) -> None:
    showing.cell.is_own_thread = waits
    showing.page.is_heard = False
    showing.do(Connect())

    [whole] = showing.update()

    assert isinstance(whole, WholeRun)
    assert whole.can_hear is not waits


def test_a_run_is_seen_before_its_ranks_are_there() -> None:
    showing = Showing()
    showing.serve(FakeRun())

    [whole] = showing.update()

    assert isinstance(whole, WholeRun)
    assert (whole.state.plan, whole.state.status) == (FakeRun.plan, "starting")


def test_a_run_that_is_over_is_shown_without_a_page() -> None:
    showing = Showing()

    showing.update(*recorded_events("success"))
    showing.view.close(showing.state)

    assert [kind for kind, _ in showing.cell.shown] == ["display"]
    assert showing.page.sent == []


def test_u12_what_rank_0_displays_is_shown_below(showing: Showing) -> None:
    showing.update(
        Display(rank=0, data={"text/plain": "figure"}, display_id="d"), Display(rank=1, data={"text/plain": "no"})
    )

    assert showing.cell.shown[1:] == [("display", {"text/plain": "figure"})]


def test_a_failure_that_the_cell_raises_is_not_told_twice() -> None:
    told = []
    for raises in (True, False):
        showing = Showing()
        showing.serve(FakeRun(), raises=raises)
        showing.update(*recorded_events("user_error"))
        showing.view.close(showing.state)
        told.append(showing.cell.shown[-1][1]["text/html"])

    assert ["weights[&quot;bias&quot;]" in text for text in told] == [False, True]
    assert all("rank 1 of 3 (cpu) failed at Cell In[1], line 10" in text for text in told)


# ---- in a real kernel

TRAIN = """
from accel_nb import notebook_launcher

def train(seconds):
    import os, time
    for i in range(int(seconds * 10)):
        print("step", i, flush=True)
        time.sleep(0.1)
    return int(os.environ["RANK"])
"""


@pytest.fixture(name="kernel")
def _kernel() -> Iterator[NotebookKernel]:
    started = NotebookKernel()
    started.ok(TRAIN)
    yield started
    started.shutdown()


def launched(kernel: NotebookKernel, seconds: float, metadata: Mapping[str, object] | None = None) -> str:
    code = f"result = notebook_launcher(train, ({seconds},), num_processes=2, device='cpu')"
    return kernel.start(code, metadata=metadata)


def is_of_run(message: CommMessage) -> bool:
    return message.kind == "comm_msg" and "type" in message.data.get("content", {})


def shown_in(executed: Executed) -> list[set[str]]:
    return [set(display.data) for display in executed.displays]


def test_a_batch_tool_gets_text(kernel: NotebookKernel) -> None:
    executed = kernel.collect(launched(kernel, 0.2))

    assert "step 1" in executed.stdout
    assert kernel.comm_messages == []


@needs_build
def test_a_front_end_gets_the_widget_and_keeps_html_and_text(kernel: NotebookKernel) -> None:
    executed = kernel.collect(launched(kernel, 1.0, FROM_A_PAGE))

    assert executed.ename is None, executed.described()
    assert executed.stdout == ""
    assert shown_in(executed) == [{WIDGET, "text/plain"}, {"text/html", "text/plain"}]
    assert executed.displays[0].display_id == executed.displays[1].display_id
    kinds = [message.kind for message in kernel.comm_messages if message.comm_id == kernel.comm_messages[-1].comm_id]
    assert (kinds[0], kinds[-1]) == ("comm_open", "comm_close")
    contents = [message.data["content"] for message in kernel.comm_messages if is_of_run(message)]
    assert contents[0]["type"] == "whole_run"
    assert {content["type"] for content in contents} == {"whole_run", "new_events"}


@needs_build
@pytest.mark.skipif(not HAS_SUBSHELLS, reason="ipykernel 6 hears nothing while a cell runs")
def test_u08_stop_in_the_cell_ends_a_run_while_the_cell_blocks(kernel: NotebookKernel) -> None:
    subshell = kernel.create_subshell()
    cell = launched(kernel, 60, FROM_A_PAGE)
    first = kernel.wait_for_comm(is_of_run)
    kernel.send_comm(first.comm_id, {"method": "custom", "content": {"type": "connect"}}, subshell)
    kernel.wait_for_comm(lambda message: is_of_run(message) and "step 5" in str(message.data))

    pressed_s = time.monotonic()
    kernel.send_comm(first.comm_id, {"method": "custom", "content": {"type": "stop_run"}}, subshell)
    executed = kernel.collect(cell, 15)

    assert executed.ename == "RunStopped", executed.described()
    assert time.monotonic() - pressed_s < 10
    assert "■ train stopped" in str(executed.displays[-1].data["text/plain"])


@needs_build
@pytest.mark.skipif(not HAS_SUBSHELLS, reason="ipykernel 6 hears nothing while a cell runs")
def test_stacks_come_while_the_cell_blocks_and_what_is_unknown_is_ignored(kernel: NotebookKernel) -> None:
    subshell = kernel.create_subshell()
    cell = launched(kernel, 60, FROM_A_PAGE)
    first = kernel.wait_for_comm(is_of_run)
    # A page that does not say so is given text after a while, in which a first launch may not have begun.
    kernel.send_comm(first.comm_id, {"method": "custom", "content": {"type": "loaded"}}, subshell)
    kernel.wait_for_comm(lambda message: is_of_run(message) and "step 1" in str(message.data), 60)
    for content in ({"type": "from_the_future"}, {"type": "ask_stacks"}):
        kernel.send_comm(first.comm_id, {"method": "custom", "content": content}, subshell)

    answer = kernel.wait_for_comm(
        lambda message: is_of_run(message) and message.data["content"]["type"] == "stack_texts"
    )

    assert "in train" in answer.data["content"]["text_by_rank"]["0"]
    kernel.interrupt()
    assert kernel.collect(cell).ename == "RunInterrupted"


@needs_build
@pytest.mark.parametrize("block", [True, False])
def test_a_page_without_a_subshell_is_told_that_stop_waits_for_a_cell_that_blocks(
    kernel: NotebookKernel, *, block: bool
) -> None:
    code = f"run = notebook_launcher(train, (60,), num_processes=2, device='cpu', block={block})"
    cell = kernel.start(code, metadata=FROM_A_PAGE)

    whole = kernel.wait_for_comm(is_of_run)

    assert whole.data["content"]["can_hear"] is not block
    if block:
        kernel.interrupt()
        assert kernel.collect(cell).ename == "RunInterrupted"
    else:
        kernel.collect(cell)
        kernel.send_comm(whole.comm_id, {"method": "custom", "content": {"type": "stop_run", "now": True}}, None)
        assert "stopped" in kernel.ok("run.wait(30); print(run.status)").stdout


@needs_build
def test_the_choice_of_the_user_wins(kernel: NotebookKernel) -> None:
    kernel.ok("import os; os.environ['ACCEL_NB_VIEW'] = 'text'")
    assert "step 1" in kernel.collect(launched(kernel, 0.2, FROM_A_PAGE)).stdout

    kernel.ok("os.environ['ACCEL_NB_VIEW'] = 'widget'")
    executed = kernel.collect(launched(kernel, 0.2))
    assert shown_in(executed) == [{WIDGET, "text/plain"}, {"text/html", "text/plain"}]


def test_a_view_that_does_not_exist_is_refused_before_anything_starts(kernel: NotebookKernel) -> None:
    kernel.ok("import os; os.environ['ACCEL_NB_VIEW'] = 'hologram'")
    executed = kernel.collect(launched(kernel, 0.2))

    assert (executed.ename, executed.evalue) == (
        "InvalidArgument",
        "ACCEL_NB_VIEW='hologram': give one of 'auto', 'widget', 'text'.",
    )


def test_u04_without_the_built_module_a_front_end_gets_text(kernel: NotebookKernel, tmp_path: Path) -> None:
    hide = "import pathlib; from accel_nb.jupyter import cell_widget; cell_widget.STATIC = pathlib.Path({!r})"
    kernel.ok(hide.format(str(tmp_path)))
    assert "step 1" in kernel.collect(launched(kernel, 0.2, FROM_A_PAGE)).stdout

    kernel.ok("import os; os.environ['ACCEL_NB_VIEW'] = 'widget'")
    executed = kernel.collect(launched(kernel, 0.2, FROM_A_PAGE))
    assert executed.ename == InvalidArgument.__name__
    assert executed.evalue.startswith("ACCEL_NB_VIEW='widget': it has not been built: run `npm ci && npm run build`")
