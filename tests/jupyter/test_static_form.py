"""What stays of a run in the notebook."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from accel_nb.jupyter.static_form import SPARK_POINTS, Written, headline, sparkline, static_html, static_text
from accel_nb.protocol.events import RankUsage
from accel_nb.protocol.run_state import Curve, RunState, advance_all
from tests.fixtures.recorded import names, recorded_events

NOTHING = Written((), 0, ())


def state_of(name: str) -> RunState:
    return advance_all(RunState(), recorded_events(name))


class _Elements(HTMLParser):
    """Names of all elements, their attributes, and whether each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", names())
def test_u07_it_is_well_formed_and_has_nothing_that_a_reader_takes_out(name: str) -> None:
    elements = _Elements()
    elements.feed(static_html(state_of(name), Written(["<script>"], 3, ["100%"]), raises=False))

    assert elements.open == []
    assert elements.seen <= {
        "div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "pre", "details", "summary", "code"
    }  # fmt: skip
    assert elements.attributes <= {"open"}


def test_the_headline_says_how_it_ended() -> None:
    assert re.fullmatch(r"✓ train finished: 2 ranks on cpu, \d\.\d s", headline(state_of("success")))
    assert headline(state_of("interrupted")).startswith("■ train stopped: 2 ranks on cpu")
    assert headline(state_of("user_error")).startswith("✗ train failed: 3 ranks on cpu")
    assert headline(RunState()) == "✗ The run did not start."


def test_the_headline_names_precision_and_attempt() -> None:
    state = state_of("success")
    assert state.plan is not None

    changed = replace(state, plan=replace(state.plan, mixed_precision="bf16"), attempt=1, duration_s=2.0)

    assert headline(changed) == "✓ train finished: 2 ranks on cpu, bf16, attempt 2, 2.0 s"


def test_the_odd_one_out_of_a_mismatch_is_marked() -> None:
    html = static_html(state_of("mismatch"), NOTHING, raises=True)

    [odd] = [row for row in html.splitlines() if "differs" in row]
    assert odd.startswith("<tr><td>2</td>")
    assert "[4, 3] float32" in odd


def test_the_batch_sizes_are_a_ladder() -> None:
    text = static_text(state_of("batch_sizes"), NOTHING, raises=True)

    [ladder] = [line for line in text.splitlines() if line.startswith("Batch sizes")]
    assert ladder.startswith("Batch sizes tried by inner: 64 ✗ too large on rank 1 → ")
    assert ladder.endswith(" ✓ fits")


def test_metrics_keep_their_course() -> None:
    text = static_text(state_of("success"), NOTHING, raises=True)

    [loss] = [line for line in text.splitlines() if line.startswith("loss")]
    assert loss.startswith("loss  0.03333  59  █")
    assert loss.endswith("▁")


def test_a_sparkline_is_short_and_survives_holes() -> None:
    long = Curve(points=tuple((step, float(step)) for step in range(1000)))

    assert len(sparkline(long)) <= SPARK_POINTS
    assert (sparkline(long)[0], sparkline(long)[-1]) == ("▁", "█")
    assert sparkline(Curve(points=((0, 1.0), (1, None), (2, 1.0)))) == "▁▁"
    assert sparkline(Curve(points=((0, 1.0),))) == ""


def test_lines_lose_their_colours_and_long_output_is_folded() -> None:
    few = static_html(state_of("success"), Written(["\x1b[31mred\x1b[0m"], 0, ()), raises=True)
    many = static_html(state_of("success"), Written(["line"] * 100, 23, ()), raises=True)

    assert "<details open><summary>Output, 1 lines</summary><pre><code>red</code></pre></details>" in few
    assert "<details><summary>Output, 123 lines</summary><pre><code>… 23 lines before these: " in many


def test_a_rank_that_was_ended_because_of_another_has_not_failed() -> None:
    text = static_text(state_of("killed_rank"), NOTHING, raises=True)

    assert [line.split("  ")[2] for line in text.splitlines() if line.startswith("rank ")] == ["stopped", "died"]


def test_u11_the_most_that_a_rank_took_stays() -> None:
    usage = RankUsage(rank=1, memory_bytes=3 << 30, cpus=1.0, device_memory_bytes=80 << 30, device_used_bytes=9 << 30)
    state = advance_all(state_of("success"), [usage])

    assert "up to 3.0 GiB, up to 9.0 GiB of its device</td>" in static_html(state, NOTHING, raises=False)
    assert "rank 1  cpu  finished  up to 3.0 GiB, up to 9.0 GiB of its device" in static_text(
        state, NOTHING, raises=False
    )
