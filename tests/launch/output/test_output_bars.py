"""O06: real tqdm on a pipe gives one stable row per bar, and carriage returns never make lines."""

from __future__ import annotations

import pytest

from accel_nb.launch.output.bars import UPDATE_INTERVAL_S
from accel_nb.launch.output.rank_output import RankOutput
from accel_nb.protocol.events import ProgressRow
from tests.launch.output_events import events_of, final_rows_of, lines_of, rows_of

IMPORTS = "import sys, time\nfrom tqdm import tqdm, trange\n"
WHOLE_OR_BYTEWISE = pytest.mark.parametrize("read_bytes", [1 << 16, 5])


def ends(rows: list[ProgressRow]) -> list[tuple[int, int | None, int | None]]:
    return [(row.bar, row.n, row.total) for row in rows]


@WHOLE_OR_BYTEWISE
@pytest.mark.parametrize(
    "loop",
    [
        "for _ in tqdm(range(100)): time.sleep(.004)",
        "for _ in trange(100): time.sleep(.004)",
        "for _ in trange(100, ascii=True, file=sys.stdout): time.sleep(.004)",
        "for _ in trange(100, colour='green', desc='grün 日本'): time.sleep(.004)",
        "for _ in trange(100, ncols=60, mininterval=0): time.sleep(.004)",
        "from tqdm.auto import tqdm as auto\nfor _ in auto(range(100)): time.sleep(.004)",
        (
            "bar = tqdm(total=100)\n"
            "for _ in range(50): bar.update(2); bar.set_postfix(loss=[1, 2]); time.sleep(.008)\nbar.close()"
        ),
    ],
    ids=["tqdm", "trange", "ascii", "colour", "ncols", "auto", "manual"],
)
def test_o06_one_bar_is_one_row_that_ends_at_its_total(loop: str, read_bytes: int) -> None:
    events = events_of(IMPORTS + loop, read_bytes=read_bytes)

    assert lines_of(events) == []
    assert {row.bar for row in rows_of(events)} == {0}
    assert ends(final_rows_of(events)) == [(0, 100, 100)]
    assert "100/100" in rows_of(events)[-1].text
    counts = [row.n or 0 for row in rows_of(events)]
    assert counts == sorted(counts)
    assert counts[0] < 100, "it was seen while it ran"


@WHOLE_OR_BYTEWISE
def test_o06_nested_bars_that_stay(read_bytes: int) -> None:
    code = IMPORTS + "for _ in trange(3, desc='out'):\n  for _ in trange(50): time.sleep(.004)"
    events = events_of(code, read_bytes=read_bytes)

    assert lines_of(events) == []
    assert sorted(ends(final_rows_of(events))) == [(0, 3, 3), (1, 50, 50), (2, 50, 50), (3, 50, 50)]


def test_the_last_drawing_of_an_inner_bar_is_not_taken_for_an_earlier_inner_bar() -> None:
    """tqdm draws it in the outer bar's row, while the row above may still show the inner bar before."""
    output = RankOutput(0)
    inner, last = (b"\r%3d%%|# | %d/9 [00:00<00:00, 9.0it/s]" % (11 * n, n) for n in (0, 9))
    outer = [b"\r%3d%%|# | %d/3 [00:00<00:00, 9.0it/s]" % (33 * n, n) for n in range(3)]
    for n in range(2):
        output.feed(outer[n] + b"\n" + inner + b"\x1b[A", 0.0)
        output.feed(last + b"\n", 0.1)
    output.feed(outer[2] + b"\n", 0.1)

    assert ends(rows_of(output.finish(1.0))) == [(1, 9, 9), (2, 9, 9), (0, 2, 3)]


def test_a_rank_that_is_held_up_while_it_draws_keeps_its_bars() -> None:
    output = RankOutput(0)
    output.feed(b"\r  0%|  | 0/3 [00:00<?, ?it/s]\n\r  0%|  | 0/9 [00:00<?, ?it/s]", 0.0)
    output.flush_partial(0.9)
    output.feed(b"\x1b[A\r 33%|# | 1/3 [00:00<?, ?it/s]", 0.9)

    assert ends(rows_of(output.finish(1.0))) == [(0, 1, 3), (1, 0, 9)]


@WHOLE_OR_BYTEWISE
def test_o06_nested_bars_of_equal_length_and_no_description(read_bytes: int) -> None:
    code = IMPORTS + "for _ in trange(3):\n  for _ in trange(3): time.sleep(.05)"
    events = events_of(code, read_bytes=read_bytes)

    assert lines_of(events) == []
    assert sorted(ends(final_rows_of(events))) == [(bar, 3, 3) for bar in range(4)]


@WHOLE_OR_BYTEWISE
def test_o06_inner_bars_that_are_erased_leave_nothing_and_reuse_their_number(read_bytes: int) -> None:
    code = (
        IMPORTS + "for i in trange(5, desc='out'):\n  for _ in trange(20, desc=f'in {i}', leave=False): time.sleep(.01)"
    )
    events = events_of(code, read_bytes=read_bytes)

    assert lines_of(events) == []
    assert {row.bar for row in rows_of(events)} == {0, 1}
    assert ends(final_rows_of(events)) == [(0, 5, 5)]
    assert [row.text for row in rows_of(events) if row.bar == 1 and row.done][-1:] == [""]


def test_o06_bars_at_positions() -> None:
    code = IMPORTS + (
        "bars = [tqdm(total=40, position=p, desc=f'w{p}') for p in range(3)]\n"
        "for _ in range(40):\n  for bar in bars: bar.update(); time.sleep(.003)\n"
        "for bar in bars: bar.close()\nprint('after')"
    )
    events = events_of(code)

    assert [(row.bar, row.text[:3], row.n) for row in final_rows_of(events)] == [
        (0, "w0:", 40), (1, "w1:", 40), (2, "w2:", 40),
    ]  # fmt: skip
    assert lines_of(events) == ["after"]


def test_o06_a_rank_that_draws_below_the_others() -> None:
    """The usual ``position=rank``: rows above it stay empty."""
    code = IMPORTS + "for _ in trange(40, position=3, desc='w3'): time.sleep(.01)\nprint('after')"
    events = events_of(code)

    assert ends(final_rows_of(events)) == [(0, 40, 40)]
    assert lines_of(events) == ["after"]


@WHOLE_OR_BYTEWISE
@pytest.mark.parametrize("write", ["print('hello', i, flush=True)", "tqdm.write(f'hello {i}')"], ids=["print", "write"])
def test_o06_lines_between_updates_are_lines(write: str, read_bytes: int) -> None:
    code = IMPORTS + f"for i in trange(30):\n  time.sleep(.02)\n  if i % 10 == 0: {write}\nprint('bye')"
    events = events_of(code, read_bytes=read_bytes)

    assert lines_of(events) == ["hello 0", "hello 10", "hello 20", "bye"]
    assert ends(final_rows_of(events)) == [(0, 30, 30)]
    assert {row.bar for row in rows_of(events)} == {0}


@pytest.mark.parametrize("write", ["print('hello', i, flush=True)", "tqdm.write(f'hello {i}')"], ids=["print", "write"])
def test_o06_lines_written_through_nested_bars(write: str) -> None:
    code = IMPORTS + (
        "for i in trange(20, desc='out'):\n  for j in trange(20, leave=False):\n    time.sleep(.003)\n"
        f"    if i % 10 == 0 and j == 10: {write}\nprint('bye')"
    )
    events = events_of(code)

    assert lines_of(events) == ["hello 0", "hello 10", "bye"]
    assert ends(final_rows_of(events)) == [(0, 20, 20)]
    assert {row.bar for row in rows_of(events)} == {0, 1}


def test_a_slow_bar_goes_on_after_a_line_was_printed_behind_it() -> None:
    output = RankOutput(0)
    output.feed(b"\r 50%|#####     | 1/2 [01:00<01:00, 60.0s/it]", 0.0)
    events = output.feed(b"hello\nagain\n", 0.2)
    events += output.flush_partial(30.0)
    events += output.feed(b"\r100%|##########| 2/2 [02:00<00:00, 60.0s/it]", 60.0)

    assert lines_of(events) == ["hello", "again"]
    assert [(row.bar, row.n, row.done) for row in rows_of(events)] == [(0, 2, False)]


def test_the_number_of_an_erased_bar_is_given_to_a_later_one() -> None:
    output = RankOutput(0)
    drawn = b"\rone: 100%|##########| 9/9 [00:00<00:00, 50.0it/s]"
    events = output.feed(drawn + b"\r" + b" " * (len(drawn) - 1) + b"\r", 0.0)
    events += output.flush_partial(1.0)
    events += output.flush_partial(2.0)
    events += output.feed(b"between\n" + drawn.replace(b"one", b"two"), 2.0)
    events += output.finish(3.0)

    assert [(row.bar, row.text[:3], row.done) for row in rows_of(events)] == [
        (0, "one", False), (0, "", True), (0, "two", False), (0, "two", True),
    ]  # fmt: skip


def test_a_bar_comes_before_what_is_printed_after_it() -> None:
    events = events_of(IMPORTS + "for _ in trange(3): pass\nprint('bye')")

    kinds = ["bar" if isinstance(event, ProgressRow) and event.done else "line" for event in events]
    assert kinds[-2:] == ["bar", "line"]


def test_empty_lines_around_a_bar_stay() -> None:
    events = events_of("print('a'); print()\n" + IMPORTS + "for _ in trange(3): pass\nprint(); print('b')")

    assert lines_of(events) == ["a", "", "", "b"]


def test_an_unknown_total() -> None:
    events = events_of(IMPORTS + "for _ in tqdm((x for x in range(20)), unit='batch', desc='load 2'): time.sleep(.01)")

    assert ends(final_rows_of(events)) == [(0, 20, None)]
    assert lines_of(events) == []


def test_a_total_of_zero() -> None:
    events = events_of(IMPORTS + "for _ in tqdm([]): pass")

    assert ends(final_rows_of(events)) == [(0, 0, None)]


def test_scaled_units() -> None:
    code = IMPORTS + "with tqdm(total=2_500_000, unit='B', unit_scale=True) as bar:\n  bar.update(2_500_000)"
    events = events_of(code)

    assert ends(final_rows_of(events)) == [(0, 2_500_000, 2_500_000)]


def test_more_than_the_total_is_the_same_bar() -> None:
    code = IMPORTS + "with tqdm(total=10, desc='x', mininterval=0) as bar:\n  for _ in range(15): bar.update()"
    events = events_of(code)

    assert ends(final_rows_of(events)) == [(0, 15, None)]


def test_a_changing_description_is_the_same_bar() -> None:
    code = IMPORTS + (
        "bar = trange(30, mininterval=0)\nfor i in bar: bar.set_description(f'loss {i / 7:.2f}'); time.sleep(.01)"
    )
    events = events_of(code)

    assert {row.bar for row in rows_of(events)} == {0}
    assert ends(final_rows_of(events)) == [(0, 30, 30)]


def test_a_reset_bar_is_the_same_bar() -> None:
    code = IMPORTS + (
        "bar = tqdm(total=10, desc='x', mininterval=0)\n"
        "for _ in range(2):\n  for _ in range(10): bar.update(); time.sleep(.01)\n  bar.reset()\nbar.close()"
    )
    events = events_of(code)

    assert {row.bar for row in rows_of(events)} == {0}
    assert len(final_rows_of(events)) == 1


def test_a_loop_that_is_left_early_leaves_its_bar() -> None:
    events = events_of(IMPORTS + "for i in trange(50, mininterval=0):\n  if i == 20: break\nprint('after')")

    assert ends(final_rows_of(events)) == [(0, 20, 50)]
    assert lines_of(events) == ["after"]


def test_e07_the_bar_of_a_killed_rank_ends() -> None:
    output = RankOutput(0)
    output.feed(b"\r 40%|####      | 4/10 [00:01<00:01,  4.0it/s]", 0.0)

    assert [(row.n, row.total, row.done) for row in rows_of(output.finish(1.0))] == [(4, 10, True)]


def test_a_bars_own_format_is_one_final_line() -> None:
    code = (
        IMPORTS + "for _ in trange(50, bar_format='{desc} {n} of {total}', desc='x'): time.sleep(.02)\nprint('after')"
    )
    events = events_of(code)

    assert lines_of(events) == ["x 50 of 50", "after"]
    assert [row.text for row in rows_of(events) if not row.done], "it was seen while it ran"
    assert final_rows_of(events) == []


def test_a_bar_is_reported_at_most_ten_times_a_second_and_its_end_always() -> None:
    output = RankOutput(0)
    events = []
    for step in range(1000):
        drawn = b"\r%3d%%|#####     | %d/1000 [00:00<00:00, 500.0it/s]" % (step // 10, step)
        events += output.feed(drawn, step / 500)
    assert len(rows_of(events)) <= 2 / UPDATE_INTERVAL_S + 1

    events += output.feed(b"\r100%|##########| 1000/1000 [00:02<00:00, 500.0it/s]\nend\n", 2.0)

    assert ends(final_rows_of(events)) == [(0, 1000, 1000)]


def test_a_held_back_update_comes_when_nothing_more_is_written() -> None:
    output = RankOutput(0)
    output.feed(b"\r  0%|          | 0/10 [00:00<?, ?it/s]", 0.0)
    assert rows_of(output.feed(b"\r 50%|#####     | 5/10 [00:00<00:00, 50it/s]", 0.05)) == []

    assert [row.n for row in rows_of(output.flush_partial(0.15))] == [5]


@pytest.mark.parametrize(
    "text",
    ["50%|#| 5/10 [00:01<00:01, 5it/s]", "5it [00:01, 5it/s]", "took [00:01, fast]", "progress: 10/20"],
)
def test_a_printed_line_that_looks_like_a_bar_is_a_line(text: str) -> None:
    output = RankOutput(0)

    assert lines_of(output.feed(text.encode() + b"\n", 0.0)) == [text]
