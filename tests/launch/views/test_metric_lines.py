"""Metrics and batch sizes as lines of a run's text."""

from __future__ import annotations

import pytest

from accel_nb.launch.views.metric_lines import MAX_KINDS, MAX_NAMES, metrics_line
from accel_nb.protocol.events import (
    BatchSizeTried,
    CollectiveMismatch,
    LogLines,
    MetricsLogged,
    SettingsLogged,
    StopRequested,
)

from .test_view import Terminal


def logged(step: int | None = None, **values: float | None) -> MetricsLogged:
    return MetricsLogged(rank=0, values=values, step=step)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (logged(1200, loss=0.123456, epoch=3.0), "step 1,200: loss 0.1235, epoch 3"),
        (logged(loss=None), "loss not a finite number"),
        (logged(lr=1e-5, tokens=123456.0), "lr 1e-05, tokens 123,456"),
        (MetricsLogged(values={"a": -1e300}, texts={"phase": "warm-up"}), "a -1e+300, phase warm-up"),
        (logged(1, **{f"m{i}": 1.0 for i in range(MAX_NAMES + 3)}), "step 1: " + ", ".join(
            [*(f"m{i} 1" for i in range(MAX_NAMES)), "3 more"])),
    ],
)  # fmt: skip
def test_a_line_says_the_step_and_short_numbers(event: MetricsLogged, line: str) -> None:
    assert metrics_line(event) == line


def test_o13_what_is_logged_at_every_step_is_shown_once_a_second_the_newest() -> None:
    terminal = Terminal()
    for step in range(50):
        terminal.show(logged(step, loss=1.0))
        terminal.tick(0.1)

    shown = terminal.close()

    assert 4 <= len(shown) <= 7
    assert shown[0] == "[r0] step 0: loss 1"
    assert shown[-1] == "[r0] step 49: loss 1"


def test_what_is_logged_rarely_is_shown_beside_what_is_not() -> None:
    terminal = Terminal()
    terminal.show(logged(1, loss=1.0), logged(1, accuracy=0.5), logged(2, loss=2.0))

    assert terminal.close() == ["[r0] step 2: loss 2", "[r0] step 1: accuracy 0.5"]


def test_ever_new_names_do_not_flood_the_text() -> None:
    terminal = Terminal()
    terminal.show(*(logged(1, **{f"m{i}": 1.0}) for i in range(5 * MAX_KINDS)))

    assert len(terminal.close()) == MAX_KINDS


def test_after_a_stop_by_the_user_no_metrics_follow() -> None:
    terminal = Terminal()
    terminal.show(StopRequested(by="interrupt"), logged(1, loss=1.0))

    assert terminal.close() == ["accel_nb: stopping the ranks (interrupt)"]


def test_settings_are_one_line() -> None:
    terminal = Terminal()
    terminal.show(SettingsLogged(rank=0, project="digits", settings={"lr": "0.1", "epochs": "3"}))

    assert terminal.close() == ["accel_nb: digits: lr=0.1, epochs=3"]


def test_a_mismatch_is_one_line_with_what_each_rank_gave() -> None:
    terminal = Terminal()
    operations, given = ("accel_nb.utils.gather", "accel_nb.utils.reduce"), ("[2] int64", "[1] float32, 'sum'")
    terminal.show(CollectiveMismatch(rank=0, operations=operations, given=given))

    told = (
        "accel_nb: the ranks called operations that do not fit together: rank 0 accel_nb.utils.gather([2] int64); "
        "rank 1 accel_nb.utils.reduce([1] float32, 'sum')"
    )
    assert terminal.close() == [told]


def tried(rank: int, size: int, next_size: int | None, *, fits: bool = False) -> BatchSizeTried:
    reason = "" if fits else "CUDA out of memory."
    return BatchSizeTried(
        rank=rank, function="train", batch_size=size, fits=fits, duration_s=rank + 0.1, reason=reason,
        next_batch_size=next_size,
    )  # fmt: skip


def test_m03_each_batch_size_tried_is_a_line_once_for_all_ranks() -> None:
    terminal = Terminal()
    for rank in range(2):
        terminal.show(tried(rank, 16, 8), tried(rank, 8, None, fits=True), LogLines(rank=rank, text="done"))

    assert terminal.close() == [
        "[r0-r1] train: batch size 16 does not fit, trying again with 8 (CUDA out of memory.)",
        "[r0-r1] train: batch size 8 fits",
        "[r0-r1] done",
    ]


def test_m03_the_end_of_a_search_is_told() -> None:
    terminal = Terminal(num_ranks=1)
    terminal.show(tried(0, 1, None))

    assert terminal.close() == ["train: batch size 1 does not fit, giving up (CUDA out of memory.)"]
