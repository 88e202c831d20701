"""Bytes of a rank become lines: in order, bounded, whatever is in them."""

from __future__ import annotations

import os

import pytest

from accel_nb.launch.output.rank_output import MAX_LINES_BYTES, PARTIAL_S, RankOutput
from accel_nb.protocol.events import LogLines
from tests.launch.output_events import events_of, lines_of, rows_of


def parsed(*chunks: bytes) -> list[str]:
    output = RankOutput(0)
    events = [event for chunk in chunks for event in output.feed(chunk, 0.0)]
    return lines_of([*events, *output.finish(0.0)])


def test_lines_of_one_read_are_one_event_with_the_rank_and_the_time() -> None:
    output = RankOutput(3, wall_clock=lambda: 1234.5)

    assert output.feed(b"a\nb\n", 0.0) == [LogLines(rank=3, text="a\nb", time_s=1234.5)]


@pytest.mark.parametrize("num_bytes", [1, 2, 3, 7])
def test_what_is_read_does_not_depend_on_how_it_is_cut(num_bytes: int) -> None:
    text = "grün 日本\r\n\x1b[31mred\x1b[0m\n\nx\r\r\n🎉 end\n\n\nlast"
    data = text.encode()

    assert parsed(*(data[i : i + num_bytes] for i in range(0, len(data), num_bytes))) == parsed(data)
    assert parsed(data) == ["grün 日本", "\x1b[31mred\x1b[0m", "", "x", "🎉 end", "", "", "last"]


def test_undecodable_bytes_are_replaced() -> None:
    assert parsed(b"a\xff\xfeb\n", b"\xe6\x97", b"\n") == ["a\ufffd\ufffdb", "\ufffd"]


def test_o01_a_line_without_its_end_is_given_out_after_a_while() -> None:
    output = RankOutput(0)
    assert output.feed(b"x", 10.0) == []
    waits = output.pending

    assert output.flush_partial(10.0 + PARTIAL_S / 2) == []
    assert lines_of(output.flush_partial(10.01 + PARTIAL_S)) == ["x"]

    assert (waits, output.pending) == (True, False)
    assert lines_of(output.feed(b"\n", 11.0)) == [], "the newline belongs to the line that was given out"
    assert lines_of(output.feed(b"\ny\n", 11.0)) + lines_of(output.feed(b"z\n", 11.0)) == ["", "y", "z"]


def test_what_follows_a_line_that_was_given_out_is_a_line_of_its_own() -> None:
    output = RankOutput(0)
    output.feed(b"x", 0.0)
    output.flush_partial(1.0)

    assert lines_of(output.feed(b"y\nz\n", 1.0)) == ["y", "z"]


def test_o03_a_long_line_is_cut_and_not_held() -> None:
    output = RankOutput(0)
    events = []
    for _ in range(64):
        events += output.feed(b"x" * (1 << 14), 0.0)
        assert len(output._partial) <= MAX_LINES_BYTES
    events += output.feed(b"\nafter\n", 0.0)
    lines = lines_of(events)

    assert sum(map(len, lines[:-1])) == 1 << 20
    assert lines[-1] == "after"


def test_o03_a_long_row_on_the_screen_is_cut_too() -> None:
    lines = parsed(b"\rab", b"x" * (1 << 20), b"\nafter\n")

    assert sum(map(len, lines[:-1])) == (1 << 20) + 2
    assert lines[-1] == "after"


@pytest.mark.parametrize("line", [b"x" * 99, "日本".encode() * 20, b"\xff" * 50], ids=["ascii", "wide", "invalid"])
def test_events_hold_at_most_64_kib(line: bytes) -> None:
    output = RankOutput(0)
    events = output.feed((line + b"\n") * 20_000, 0.0)

    assert max(len(event.text.encode()) for event in events if isinstance(event, LogLines)) <= 64 << 10
    assert lines_of(events) == [line.decode(errors="replace")] * 20_000


def test_o01_every_way_of_writing_arrives_in_order() -> None:
    code = (
        "import ctypes, logging, os, sys, warnings\n"
        "print('print', flush=True)\n"
        "print('error', file=sys.stderr)\n"
        "logging.warning('logging')\n"
        "warnings.warn('warning')\n"
        "os.write(1, b'write\\n')\n"
        "libc = ctypes.CDLL(None); libc.printf(b'printf\\n'); libc.fflush(None)\n"
        "os.system('echo echo')\n"
    )
    lines = lines_of(events_of(code))

    found = [line for line in lines if not line.startswith(" ")]
    assert [line.split(":")[-1].strip() for line in found] == [
        "print", "error", "logging", "warning", "write", "printf", "echo",
    ]  # fmt: skip


def test_colours_stay_in_the_text() -> None:
    red = b"\x1b[1;31mred\x1b[0m and plain"

    assert parsed(red + b"\n") == [red.decode()]
    assert parsed(b"\rold" + b"\r" + red + b"\n") == [red.decode()]


@pytest.mark.parametrize("ending", [b"\x1b[K", b"\x1b[0K", b"\x1b[m\x1b[K"], ids=repr)
def test_a_line_that_erases_to_its_end_is_a_line(ending: bytes) -> None:
    output = RankOutput(0)

    assert [line.removesuffix("\x1b[m") for line in lines_of(output.feed(b"text" + ending + b"\n", 0.0))] == ["text"]


def test_window_titles_and_unknown_sequences_are_left_out() -> None:
    assert parsed(b"\x1b]0;title\x07a\x1b(B\x1b[?2004hb\n", b"c\x1b") == ["ab", "c"]


def test_an_escape_sequence_may_be_cut_anywhere() -> None:
    output = RankOutput(0)
    data = b"\x1b[31mred\x1b[0m \x1b[2Kx\x1b]0;t\x1b\\\n"
    events = [event for i in range(len(data)) for event in output.feed(data[i : i + 1], 0.0)]

    assert "x" in lines_of([*events, *output.finish(0.0)])[0]
    assert "t" not in lines_of(events)


def test_a_flood_of_returns_is_no_flood_of_events() -> None:
    output = RankOutput(0)
    events = []
    for step in range(10_000):
        events += output.feed(b"\rstep %d" % step, step / 1000)
    events += output.finish(10.0)

    assert lines_of(events) == ["step 9999"]
    assert len(rows_of(events)) <= 102, "10 s, 10 updates each, and the end"


def test_log_files_are_not_this_modules_business_but_nothing_is_lost_from_the_events() -> None:
    lines = [os.urandom(20).hex() for _ in range(1000)]

    assert parsed("\n".join(lines).encode()) == lines
