"""The kernel's half of the panel, asked in a real kernel as a page asks it: while cells block, and after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from accel_nb.jupyter.run_feed import SEND_INTERVAL_S
from accel_nb.launch.views.flow_limit import BYTES_PER_S
from accel_nb.protocol.events import LogLines
from accel_nb.protocol.front_end import NewEvents, StackTexts, WholeRun
from accel_nb.protocol.panel import (
    REQUEST,
    Accepted,
    AskPlan,
    AskStacksOf,
    Choice,
    FollowRun,
    HardwareNow,
    PlanAnswer,
    RunNews,
    RunsNow,
    StopNamedRun,
)
from accel_nb.protocol.run_state import advance_all
from accel_nb.protocol.version import __version__
from tests.launch.census import Census, wait_until
from tests.notebook_kernel import NotebookKernel

from .panel_page import PanelPage

pytestmark = pytest.mark.kernels

TWO_RANKS = "%%accelerate --num-processes 2 --device cpu"
SLEEPS = f"{TWO_RANKS}\nimport time\nprint('up')\ntime.sleep(600)"
COUNTS = (
    f"{TWO_RANKS}\nimport time\nfor number in range(40):\n    print('line', number, flush=True)\n    time.sleep(0.1)"
)
THREADS = "sorted(t.name for t in __import__('threading').enumerate() if t.name.startswith('accel_nb'))"


@pytest.fixture(scope="module")
def running(_session_environment: None) -> Iterator[NotebookKernel]:
    started = NotebookKernel()
    try:
        started.ok("%load_ext accel_nb")
        yield started
    finally:
        started.shutdown()


@pytest.fixture
def kernel(running: NotebookKernel) -> Iterator[NotebookKernel]:
    """One kernel for all tests here, in which nothing runs."""
    yield running
    left = PanelPage(running)
    for run in left.hello().runs:
        if run.duration_s is None:
            left.stop(run.run_id, now=True)
    Census(running).expect_only_servers()


@pytest.fixture
def page(kernel: NotebookKernel) -> PanelPage:
    made = PanelPage(kernel)
    made.hello()
    return made


# ---- who is there


def test_u02_a_page_needs_nothing_but_its_kernel_to_know_who_answers(kernel: NotebookKernel) -> None:
    facts = PanelPage(kernel).hello()

    assert (facts.version, facts.pid) == (__version__, kernel.pid)
    assert facts.comm_id == PanelPage(kernel).comms[-1]
    assert facts.hardware.cpu_count >= 1
    assert facts.now is not None
    assert 0 < facts.now.memory_used_bytes < facts.hardware.memory_bytes


def test_u02_a_page_that_asks_as_soon_as_it_sees_the_comm_is_answered() -> None:
    kernel = NotebookKernel()
    try:
        cell = kernel.start("%load_ext accel_nb\nimport time\ntime.sleep(600)")
        opened = kernel.wait_for_comm(lambda message: message.kind == "comm_open")
        facts = PanelPage(kernel).hello()
        still_runs = not kernel.so_far(cell).idle
        kernel.interrupt()
        kernel.collect(cell)

        assert facts.comm_id == opened.comm_id
        assert still_runs
    finally:
        kernel.shutdown()


def test_u11_the_hardware_is_told_again_and_again_while_a_cell_blocks(kernel: NotebookKernel, page: PanelPage) -> None:
    cell = kernel.start("while True:\n    pass")
    try:
        looks = [page.news(HardwareNow) for _ in range(3)]
    finally:
        kernel.interrupt()
        kernel.collect(cell)

    assert looks[0].time_s < looks[1].time_s < looks[2].time_s
    assert looks[2].cpu_utilization > 0, "the cell alone keeps a CPU busy"


def test_u10_front_ends_without_a_panel_see_nothing_and_end_nothing_for_others() -> None:
    kernel = NotebookKernel()
    try:
        loaded = kernel.ok("%load_ext accel_nb")
        page = PanelPage(kernel)
        [comm] = page.comms
        kernel.close_comm(comm)
        kernel.close_comm(comm)  # by a second one
        quiet = kernel.ok("1")

        assert page.hello().comm_id == comm
        page.news(HardwareNow)
        assert (loaded.text, loaded.displays, quiet.text) == ("", [], "")
        log = (kernel.dir / "kernel.log").read_text()
        assert "No such comm" not in log
        assert "Traceback" not in log
    finally:
        kernel.shutdown()


def test_what_this_version_does_not_understand_is_refused(kernel: NotebookKernel) -> None:
    reply = kernel.ask(REQUEST, {"type": "fly_to_the_moon"})

    assert reply["type"] == "refused"
    assert reply["problem"].startswith(f"accel_nb {__version__} in this kernel does not understand the panel: ")


def test_threads_live_while_somebody_listens_and_none_is_left_after_unloading() -> None:
    kernel = NotebookKernel()
    try:
        kernel.ok("%load_ext accel_nb\nimport accel_nb.jupyter.panel.panel as panel_module")
        before = kernel.value(THREADS)
        page = PanelPage(kernel)
        page.hello()
        listening = kernel.value(THREADS)
        kernel.ok("panel_module.LISTENS_S = 0.1")
        page.hello()
        kernel.ok("import time\nwhile " + THREADS + ":\n    time.sleep(0.05)")
        kernel.ok("panel_module.LISTENS_S = 600.0")
        page.hello()
        first = page.comms[-1]
        kernel.ok("%unload_ext accel_nb")
        after = kernel.value(THREADS)
        closed = [one.comm_id for one in kernel.comm_messages if one.kind == "comm_close"]
        kernel.ok("%load_ext accel_nb")

        assert before == []
        assert listening == ["accel_nb panel"]
        assert after == []
        assert closed == [first]
        assert page.hello().comm_id == page.comms[-1] != first
    finally:
        kernel.shutdown()


# ---- runs


def test_u01_the_running_job_is_found_with_its_cell(kernel: NotebookKernel, page: PanelPage) -> None:
    kernel.ok("before = 1")
    cell = kernel.start(SLEEPS, metadata={"cellId": "8e5a-of-the-notebook"})
    run = page.begun_run()
    other = PanelPage(kernel).hello().runs[-1]
    page.stop(run.run_id)
    kernel.collect(cell)

    assert (run.num_ranks, run.device_kind, run.duration_s, run.headline) == (2, "cpu", None, "")
    assert run.cell_id == "8e5a-of-the-notebook"
    assert f"Cell {run.cell}" == run.function_name
    assert Path(run.log_dir).name == f"run-{run.run_id}"
    assert other == run, "a page that comes while the cell blocks"


def test_u08_stop_in_the_panel_ends_a_run_of_a_cell_that_blocks(kernel: NotebookKernel, page: PanelPage) -> None:
    cell = kernel.start(SLEEPS)
    run = page.begun_run()

    page.stop(run.run_id)
    stopped = kernel.collect(cell, 20)

    assert stopped.ename == "RunStopped"
    assert "accel_nb: stopping the ranks (Stop was pressed in the panel)\n" in stopped.stdout
    assert page.ended_run(run.run_id).status == "stopped"
    assert page.refused(StopNamedRun(run_id=run.run_id)) == f"{run.function_name} ({run.run_id}) is over."


def test_u08_a_rank_that_is_deaf_is_killed_at_once_when_that_is_asked(kernel: NotebookKernel, page: PanelPage) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"
    cell = kernel.start(f"{TWO_RANKS} --timeouts stop_grace_s=600\n{deaf}\nimport time\nprint('deaf')\ntime.sleep(600)")
    kernel.wait_for(cell, "deaf")
    run = page.hello().runs[-1]

    page.stop(run.run_id)
    page.stop(run.run_id, now=True)

    assert kernel.collect(cell, 30).ename == "RunStopped"


def test_u08_the_stacks_of_a_cell_that_blocks(kernel: NotebookKernel, page: PanelPage) -> None:
    cell = kernel.start(SLEEPS)
    kernel.wait_for(cell, "up")
    run = page.hello().runs[-1]

    assert page.ask(AskStacksOf(run_id=run.run_id)) == Accepted()
    texts = page.news(RunNews, lambda news: isinstance(news.message, StackTexts)).message
    page.stop(run.run_id)
    kernel.collect(cell)

    assert isinstance(texts, StackTexts)
    assert set(texts.text_by_rank) == {0, 1}
    assert "line 4" in texts.text_by_rank[1]


def test_a_run_that_fails_is_told_by_one_line_and_its_values_are_not_held(
    kernel: NotebookKernel, page: PanelPage
) -> None:
    failed = kernel.run(f"{TWO_RANKS}\nraise ValueError('wrong number')")
    run = page.news(RunsNow, lambda now: bool(now.runs) and now.runs[-1].duration_s is not None).runs[-1]

    assert failed.ename == "RunFailed"
    assert (run.status, run.headline) == ("failed", "ValueError: wrong number")
    kernel.ok("import gc\nfrom accel_nb.jupyter.known_runs import KNOWN\ntry: 1 / 0\nexcept ZeroDivisionError: pass")
    kernel.run("1 / 0")  # IPython keeps the last exception
    assert kernel.value(f"gc.collect() >= 0 and KNOWN.handle(KNOWN.named({run.run_id!r})) is None") is True


def test_w02_runs_in_the_background_are_listed_followed_and_stopped(kernel: NotebookKernel, page: PanelPage) -> None:
    code = SLEEPS.replace(TWO_RANKS, f"{TWO_RANKS} --background")
    first, second = kernel.ok(code), kernel.ok(code)
    runs = page.hello().runs[-2:]
    page.follow(runs[0].run_id)

    page.stop(runs[0].run_id)
    page.stop(runs[1].run_id)
    ended = [page.ended_run(run.run_id).status for run in runs]

    assert first.idle
    assert second.idle
    assert ended == ["stopped", "stopped"]
    assert page.news(RunNews, lambda news: isinstance(news.message, WholeRun)).run_id == runs[0].run_id


def test_w05_stop_in_the_panel_ends_a_kept_cell_then_the_kept_ranks(kernel: NotebookKernel, page: PanelPage) -> None:
    kept = "%%accelerate --keep"
    kernel.ok(f"{kept} --num-processes 2 --device cpu\nimport time\ncount = 7")
    run = page.hello().runs[-1]
    cell = kernel.start(f"{kept}\nprint('begun')\ntime.sleep(600)")
    kernel.wait_for(cell, "begun")

    page.stop(run.run_id)
    stopped = kernel.collect(cell, 30)
    after = kernel.ok(f"{kept}\nprint(count)")
    page.stop(run.run_id)
    ended = page.ended_run(run.run_id)

    assert (run.function_name, run.num_ranks, run.duration_s) == (kept, 2, None)
    assert "the 2 ranks and their variables stay" in "\n".join(stopped.traceback)
    assert "7" in after.stdout
    assert (ended.status, ended.headline) == ("finished", "")


# ---- following


def lines_of(whole: WholeRun, rank: int) -> list[str]:
    return [line.text for line in whole.lines if line.rank == rank]


def test_o14_a_page_that_comes_late_is_told_all_and_misses_nothing_after(
    kernel: NotebookKernel, page: PanelPage
) -> None:
    cell = kernel.start(COUNTS)
    kernel.wait_for(cell, "line 5")
    run = page.hello().runs[-1]

    early = page.follow(run.run_id)
    kernel.wait_for(cell, "line 12")
    late = PanelPage(kernel).follow(run.run_id)
    kernel.collect(cell)
    end = page.news(RunNews, lambda news: isinstance(news.message, WholeRun)).message
    again = PanelPage(kernel).follow(run.run_id)

    expected = [f"line {number}" for number in range(40)]
    assert isinstance(end, WholeRun)
    assert end.state.status == "finished"
    for whole in (end, again):
        assert [lines_of(whole, rank) for rank in (0, 1)] == [expected, expected]
    for whole in (early, late):
        assert whole.state.status == "running"
        news = [one.message for _, one in page.all_news() if isinstance(one, RunNews) and one.run_id == run.run_id]
        events = [event for message in news if isinstance(message, NewEvents) for event in message.events]
        fresh = [event for event in events if event.sequence > whole.state.sequence]
        assert advance_all(whole.state, fresh).sequence == end.state.sequence
        seen = [event.text for event in fresh if isinstance(event, LogLines) and event.rank == 1]
        assert [*lines_of(whole, 1), *"\n".join(seen).split("\n")] == expected


def test_o14_after_a_restart_the_recording_of_a_run_is_still_shown() -> None:
    first = NotebookKernel()
    try:
        first.ok("%load_ext accel_nb")
        first.ok(f"{TWO_RANKS}\nprint('from before')")
        run_id = PanelPage(first).hello().runs[-1].run_id
        second = NotebookKernel(env={"ACCEL_NB_LOG_DIR": str(first.log_dir)})
        try:
            second.ok("%load_ext accel_nb")
            page = PanelPage(second)
            runs = page.hello().runs
            whole = page.follow(run_id)
        finally:
            second.shutdown()
    finally:
        first.shutdown()

    assert runs == ()
    assert whole.state.status == "finished"
    assert lines_of(whole, 1) == ["from before"]


@pytest.mark.parametrize("run_id", ["20200101-000000-00000000", "../../etc", ""])
def test_a_run_that_nobody_knows_is_refused(page: PanelPage, run_id: str) -> None:
    unknown = f"There is no run {run_id}: this kernel has not launched it, and it has no recording."

    assert page.refused(FollowRun(run_id=run_id)) == unknown
    assert page.refused(StopNamedRun(run_id=run_id)) == f"This kernel has launched no run {run_id}."


def test_o13_a_flood_reaches_pages_as_few_messages_and_a_whole_at_the_end(
    kernel: NotebookKernel, page: PanelPage
) -> None:
    cell = kernel.start(
        f"{TWO_RANKS}\nimport time\nend = time.monotonic() + 3\nnumber = 0\n"
        "while time.monotonic() < end:\n    print('x' * 80, number)\n    number += 1\nprint('last')"
    )
    run_id = page.begun_run().run_id
    began = time.monotonic()
    page.follow(run_id)
    kernel.collect(cell)
    end = page.news(RunNews, lambda news: isinstance(news.message, WholeRun)).message
    took_s = time.monotonic() - began

    sent = [news for _, news in page.all_news() if isinstance(news, RunNews) and news.run_id == run_id]
    assert len(sent) <= took_s / SEND_INTERVAL_S + 3
    assert isinstance(end, WholeRun)
    assert lines_of(end, 0)[-1] == "last"
    told = [event for news in sent if isinstance(news.message, NewEvents) for event in news.message.events]
    assert sum(len(event.text) for event in told if isinstance(event, LogLines)) < BYTES_PER_S * (took_s + 2)
    assert kernel.so_far(cell).stderr == ""


def test_o05_news_belong_to_no_cell(kernel: NotebookKernel, page: PanelPage) -> None:
    background = kernel.ok(COUNTS.replace(TWO_RANKS, f"{TWO_RANKS} --background"))
    page.follow(page.hello().runs[-1].run_id)
    others = [kernel.ok("print('mine')") for _ in range(5)]
    page.news(RunNews, lambda news: isinstance(news.message, WholeRun))

    assert {other.text for other in others} == {"mine\n"}
    assert background.stderr == ""


# ---- plans


def asked(page: PanelPage, number: int, **choice: object) -> PlanAnswer:
    assert page.ask(AskPlan(number=number, choice=Choice(**choice))) == Accepted()  # type: ignore[arg-type]
    return page.news(PlanAnswer, lambda answer: answer.number == number)


def test_w08_the_panel_is_told_in_words_what_would_start_while_a_cell_blocks(
    kernel: NotebookKernel, page: PanelPage
) -> None:
    cell = kernel.start("import time\ntime.sleep(600)")
    try:
        answer = asked(page, 1, num_processes=3, device="cpu", mixed_precision="bf16")
        refused = asked(page, 2, num_processes=0, device="cpu")
        unknown = asked(page, 3, device="abacus")
    finally:
        kernel.interrupt()
        kernel.collect(cell)

    assert answer.line.startswith("3 ranks on cpu (asked: 3), gloo, ")
    assert answer.line.endswith("precision bf16")
    assert answer.reasons
    assert answer.problem == ""
    assert "num_processes" in refused.problem
    assert "abacus" in unknown.problem
    assert (refused.line, unknown.line) == ("", "")


# ---- over a long time


def test_following_run_after_run_leaves_no_thread_and_no_descriptor(kernel: NotebookKernel, page: PanelPage) -> None:
    process = psutil.Process(kernel.pid)
    for number in range(8):
        cell = kernel.start(f"{TWO_RANKS}\nprint('here')")
        run_id = page.news(RunsNow, lambda now: bool(now.runs) and now.runs[-1].duration_s is None).runs[-1].run_id
        page.follow(run_id)
        kernel.collect(cell)
        page.ended_run(run_id)
        if number == 2:
            before = process.num_fds()

    kernel.ok("import time\nwhile " + THREADS + " != ['accel_nb panel']:\n    time.sleep(0.05)")
    # ipykernel takes back what threads have sent with every ten seconds (`IOPubThread._event_pipe_gc`).
    wait_until(lambda: process.num_fds() <= before + 2, 30, lambda: f"{before} became {process.num_fds()}")
