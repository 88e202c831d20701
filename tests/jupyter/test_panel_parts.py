"""Parts of the kernel's half of the panel, with a clock that the test makes."""

from __future__ import annotations

import threading

import msgspec
from msgspec.structs import replace

from accel_nb.errors import PlanError
from accel_nb.jupyter.accelerate_magic import ACCELERATE
from accel_nb.jupyter.asked import asked_by_options
from accel_nb.jupyter.panel.followed import FollowedRun
from accel_nb.jupyter.panel.planning import Planning, request_of
from accel_nb.jupyter.run_feed import KEPT_LINES
from accel_nb.protocol.events import Display, LogLines, RunEvent
from accel_nb.protocol.front_end import NewEvents, WholeRun
from accel_nb.protocol.panel import AskPlan, Choice, PanelNews, PanelReply, PlanAnswer, RunNews
from accel_nb.protocol.plan import LaunchPlan, LaunchRequest
from accel_nb.protocol.run_state import RunState, advance_all

PLAN = LaunchPlan(
    run_id="r", function_name="train", engine="local", device_kind="cpu", process_group="gloo", ranks=(),
    env={"TOKEN": "secret"},
)  # fmt: skip


def line(sequence: int, text: str) -> LogLines:
    return LogLines(rank=0, sequence=sequence, text=text)


class Following:
    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[PanelNews] = []
        self.told: list[PanelReply] = []
        self.state = RunState()
        self.run = FollowedRun(PLAN, self.sent.append, lambda: 0.1, lambda: self.now)

    def update(self, *events: RunEvent, after_s: float = 0.1) -> list[PanelNews]:
        self.now += after_s
        before = len(self.sent)
        self.state = advance_all(self.state, events)
        self.run.update(events, self.state)
        return self.sent[before:]

    def whole(self) -> WholeRun:
        self.run.tell(self.told.append)
        news = self.told[-1]
        assert isinstance(news, RunNews)
        assert isinstance(news.message, WholeRun)
        return news.message


def texts(news: list[PanelNews]) -> list[str]:
    messages = [one.message for one in news if isinstance(one, RunNews)]
    events = [event for message in messages if isinstance(message, NewEvents) for event in message.events]
    return [event.text for event in events if isinstance(event, LogLines)]


def test_what_was_before_the_first_page_is_told_to_it_and_not_sent() -> None:
    following = Following()
    following.run.tell(following.told.append)
    before = list(following.told)

    sent = following.update(line(1, "a\nb"), line(2, "c"))

    assert before == [], "nothing is known before the first update"
    assert sent == []
    [news] = following.told
    assert isinstance(news, RunNews)
    assert isinstance(news.message, WholeRun)
    assert [one.text for one in news.message.lines] == ["a", "b", "c"]
    assert news.message.can_hear


def test_o13_at_most_one_message_per_interval() -> None:
    following = Following()
    following.update()

    sent = [following.update(line(number, str(number)), after_s=0.02) for number in range(1, 26)]

    assert len([news for news in sent if news]) <= 6
    assert texts(following.sent) == [str(number) for number in range(1, len(texts(following.sent)) + 1)]


def test_o14_a_page_between_two_messages_loses_no_line() -> None:
    following = Following()
    following.update()
    following.update(line(1, "a"))
    following.update(line(2, "waits"), after_s=0.01)

    whole = following.whole()
    later = following.update(line(3, "c"))

    assert whole.state.sequence == 2
    assert [one.text for one in whole.lines] == ["a", "waits"]
    assert texts(following.sent) == ["a", "waits", "c"]
    assert texts(later) == ["c"]


def test_the_end_is_sent_whole_with_all_that_waited() -> None:
    following = Following()
    following.update()
    following.update(line(1, "a"))
    following.update(line(2, "b"), after_s=0.01)

    following.run.close(following.state)

    last = following.sent[-1]
    assert isinstance(last, RunNews)
    assert isinstance(last.message, WholeRun)
    assert [one.text for one in last.message.lines] == ["a", "b"]


def test_a_page_is_told_no_values_of_variables_and_keeps_its_bounds() -> None:
    following = Following()
    following.update(line(1, "\n".join(map(str, range(KEPT_LINES + 10)))), Display(sequence=2, rank=0, data={"a": "b"}))

    whole = following.whole()

    assert "secret" not in str(msgspec.to_builtins(whole, str_keys=True))
    assert len(whole.lines) == KEPT_LINES


def test_w08_the_line_that_the_panel_writes_asks_for_all_of_its_choice() -> None:
    """The line of ALL in labextension/tests/choice.test.ts."""
    line = "--num-processes 2 --device cuda --devices 1,0 --mixed-precision bf16 --debug --backend local"

    def asked(line: str) -> LaunchRequest:
        return replace(asked_by_options(ACCELERATE.parse_args(line.split())), function_name="%%accelerate")

    choice = Choice(num_processes=2, device="cuda", devices=(1, 0), mixed_precision="bf16", debug=True, backend="local")
    assert asked(line) == request_of(choice)
    assert asked("--no-debug") == request_of(Choice(debug=False))
    assert asked("") == request_of(Choice())


def test_w08_of_the_questions_of_a_page_that_wait_only_the_newest_is_answered_whatever_others_ask() -> None:
    begun, go_on, answers = threading.Event(), threading.Event(), list[PanelNews]()
    asked: list[int | None] = []

    def plan(request: LaunchRequest) -> LaunchPlan:
        asked.append(request.num_processes)
        begun.set()
        assert go_on.wait(30)
        raise PlanError(f"no {request.num_processes} ranks here")

    def take(news: PanelNews) -> None:
        answers.append(news)
        if len(answers) == 3:
            done.set()

    done = threading.Event()
    planning = Planning(take, plan)
    planning.ask(AskPlan(number=1, choice=Choice(num_processes=1)), "first page")
    assert begun.wait(30)
    for number, page in ((2, "first page"), (3, "first page"), (4, "first page"), (7, "second page")):
        planning.ask(AskPlan(number=number, choice=Choice(num_processes=number)), page)
    go_on.set()
    assert done.wait(30)

    assert asked == [1, 4, 7]
    assert answers == [
        PlanAnswer(number=1, problem="no 1 ranks here"),
        PlanAnswer(number=4, problem="no 4 ranks here"),
        PlanAnswer(number=7, problem="no 7 ranks here"),
    ]
