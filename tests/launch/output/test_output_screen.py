"""Progress that is not tqdm's: it ends as ordinary lines, and changes in place until then."""

from __future__ import annotations

import pytest

from accel_nb.launch.output.rank_output import RankOutput
from accel_nb.launch.output.screen import LIVE_AFTER_S, MAX_ROWS, SETTLE_S
from tests.launch.output_events import events_of, final_rows_of, lines_of, rows_of


def test_o06_carriage_returns_never_make_lines() -> None:
    output = RankOutput(0)
    events = [event for i in range(21) for event in output.feed(b"\rDownloading %d%%" % (5 * i), i * 0.1)]
    events += output.feed(b"\nDone\n", 2.1)

    assert lines_of(events) == ["Downloading 100%", "Done"]
    live = [row for row in rows_of(events) if not row.done]
    assert live[0].text == "Downloading 15%"
    assert all(row.n is None and row.total is None for row in live)
    assert final_rows_of(events) == [], "the line replaces the row"


def test_a_return_at_the_end_of_each_state() -> None:
    output = RankOutput(0)
    events = []
    for i in range(21):
        events += output.feed(b"%d%%\r" % (5 * i), i * 0.5)
        events += output.flush_partial(i * 0.5 + 0.25)
    events += output.finish(11.0)

    assert lines_of(events) == ["100%"]


def test_a_shorter_state_leaves_the_rest_of_a_longer_one_as_terminals_do() -> None:
    output = RankOutput(0)
    output.feed(b"\r12345\rab\n", 0.0)

    assert lines_of(output.flush_partial(SETTLE_S)) == ["ab345"]


def test_backspaces_move_back() -> None:
    assert lines_of(events_of("print('abc\\b\\bX')")) == ["aXc"]


def test_a_spinner_is_one_line() -> None:
    output = RankOutput(0)
    events = [event for i in range(40) for event in output.feed(b"|/-\\"[i % 4 : i % 4 + 1] + b"\b", i * 0.1)]
    events += output.feed(b"ok\n", 4.0)
    events += output.finish(4.0)

    assert lines_of(events) == ["ok"]


def test_a_row_that_is_not_rewritten_shows_nevertheless() -> None:
    output = RankOutput(0)
    output.feed(b"\rcompiling", 0.0)

    assert [row.text for row in rows_of(output.flush_partial(LIVE_AFTER_S))] == ["compiling"]
    assert output.pending


def test_rich_progress_of_two_tasks() -> None:
    pytest.importorskip("rich")
    code = (
        "import time\nfrom rich.console import Console\nfrom rich.progress import Progress\n"
        "console = Console(force_terminal=True, width=70)\nconsole.print('before')\n"
        "with Progress(console=console) as bars:\n"
        "  one, two = bars.add_task('one', total=30), bars.add_task('two', total=60)\n"
        "  for i in range(30):\n"
        "    bars.update(one, advance=1); bars.update(two, advance=2); time.sleep(.03)\n"
        "    if i == 10: bars.console.print('logged')\n"
        "console.print('after')\n"
    )
    events = events_of(code)

    words = [line.split()[0] for line in lines_of(events)]
    assert words == ["before", "logged", "one", "two", "after"]
    assert "100%" in lines_of(events)[2]
    assert any(row.text.startswith("one") and "\x1b" not in row.text for row in rows_of(events))
    assert final_rows_of(events) == []


def test_pip_like_progress_with_erased_lines() -> None:
    output = RankOutput(0)
    events = [event for i in range(11) for event in output.feed(b"\r\x1b[2K %d/10 MB" % i, i * 0.1)]
    events += output.feed(b"\r\x1b[2KInstalled\n", 1.1)
    events += output.finish(1.1)

    assert lines_of(events) == ["Installed"]


def test_rows_that_are_rewritten_from_below_stay_open() -> None:
    output = RankOutput(0)
    events = []
    for step in range(20):
        up = b"\x1b[2A" if step else b""
        events += output.feed(b"%s\r\x1b[2Ka %d\n\r\x1b[2Kb %d\n" % (up, step, step), step * 0.1)
    events += output.finish(2.0)

    assert lines_of(events) == ["a 19", "b 19"]


def test_moving_up_without_end_holds_a_bounded_number_of_rows() -> None:
    output = RankOutput(0)
    for _ in range(100):
        output.feed(b"\x1b[1000Ax\n\x1b[99999999B\x1b[99999999Cy\n", 0.0)

        assert len(output._screen._rows) <= MAX_ROWS


def test_many_rows_with_returns_are_given_out_in_order() -> None:
    output = RankOutput(0)
    events = [event for i in range(500) for event in output.feed(b"\rline %d\n" % i, 0.0)]
    events += output.finish(0.0)

    assert lines_of(events) == [f"line {i}" for i in range(500)]


def test_the_screen_comes_to_rest_and_plain_lines_pass_again() -> None:
    output = RankOutput(0)
    output.feed(b"\r 50%|#####     | 5/10 [00:00<00:00, 50it/s]\r100%|##########| 10/10 [00:00<00:00, 50it/s]\n", 0.0)

    output.feed(b"plain\n", 0.0)

    assert output._screen.idle
    assert not output.pending
