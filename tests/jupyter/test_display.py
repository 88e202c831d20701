"""What a run looks like in a real kernel: in the cell that launched it, in order, and in the saved notebook."""

from __future__ import annotations

from collections.abc import Iterator

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from accel_nb.launch.views.flow_limit import BACKLOG_BYTES, BURST_BYTES
from tests.jupyter.kernels import ROOT, Kernel, running_kernel

SET_UP = "from tests.jupyter.shown_runs import *"


@pytest.fixture(name="kernel")
def _kernel() -> Iterator[Kernel]:
    with running_kernel() as kernel:
        kernel.run(SET_UP)
        yield kernel


def test_o04_o05_a_background_run_writes_into_its_own_cell_while_others_run(kernel: Kernel) -> None:
    launching = kernel.run("run = ShownRun(); thread = print_for(run, 5, 1.0)")
    others = []
    for i in range(6):
        others.append(kernel.run(f"print('other', {i})"))
        kernel.listen(0.7)
    kernel.run("thread.join()")
    kernel.listen(0.5)

    texts = [message for message in kernel.published if message.kind == "stream" and "line" in message.content["text"]]
    assert {message.parent for message in texts} == {launching}
    assert [line for line in kernel.text_of(launching).splitlines() if "line" in line] == [
        f"[r1] line {i}" for i in range(5)
    ]
    assert texts[-1].time_s - texts[0].time_s >= 3.5, "streamed, not delivered at the end"
    displays = [message for message in kernel.published if message.kind.endswith("display_data")]
    assert len(displays) >= 5
    assert {message.parent for message in displays} == {launching}
    assert [kernel.text_of(cell) for cell in others] == [f"other {i}\n" for i in range(6)]


def test_e07_prints_of_the_cell_and_lines_of_the_run_keep_their_order(kernel: Kernel) -> None:
    cell = kernel.run(
        "print('one'); run = ShownRun(1); print('two'); run.show(lines(0, 'three'), bar(0, 9, 9, text='four'))\n"
        "run.wait(0.3); print('five'); run.show(lines(0, 'six')); run.close(); print('seven')"
    )

    shown = kernel.of(cell, "stream", "display_data")
    text = [m.content["text"] if m.kind == "stream" else m.content["data"]["text/plain"] for m in shown]
    lines = [line for line in "\n".join(text).splitlines() if line]
    assert lines[1].startswith("accel_nb: train: 1 rank on cpu")
    assert [lines[0], *lines[2:]] == ["one", "two", "three", "four", "five", "six", "seven"]


def test_o06_bars_are_one_display_that_is_replaced(kernel: Kernel) -> None:
    cell = kernel.run(
        "run = ShownRun()\n"
        "for n in range(31):\n"
        "    run.show(bar(0, n, 30), bar(1, n // 2, 30)); run.wait(0.05)\n"
        "run.close()"
    )

    [first] = kernel.of(cell, "display_data")
    updates = kernel.of(cell, "update_display_data")
    assert {m.content["transient"]["display_id"] for m in updates} == {first.content["transient"]["display_id"]}
    times = [message.time_s for message in (first, *updates[:-1])]
    assert 5 <= len(updates) <= 5 * (times[-1] - times[0]) + 3, "at most five a second"
    last = updates[-1].content["data"]
    assert last["text/plain"].splitlines() == [
        "[r0] 100%|##########| 30/30 [00:01<00:01, 50.0it/s]",
        "[r1]  50%|#####     | 15/30 [00:01<00:01, 50.0it/s]",
    ]
    assert "30/30" not in kernel.text_of(cell)


def test_only_the_newest_of_many_ended_bars_stay(kernel: Kernel) -> None:
    cell = kernel.run(
        "run = ShownRun(1)\nfor i in range(60): run.show(bar(0, 9, 9, number=i, text=f'bar {i}'))\nrun.close()"
    )

    rows = kernel.of(cell, "update_display_data")[-1].content["data"]["text/plain"].splitlines()
    assert rows == ["… 10 more bars that have ended", *(f"bar {i}" for i in range(10, 60))]


def test_o13_a_flood_stays_under_the_limits(kernel: Kernel) -> None:
    cell = kernel.run("run = ShownRun(8); flood(run, range(8), 3.0, 10_000)")

    shown = [
        m for m in kernel.published if m.parent == cell and m.kind in {"stream", "display_data", "update_display_data"}
    ]
    most_bytes = 2 * BURST_BYTES + BACKLOG_BYTES  # a second after a quiet one, in which the run ends
    for start in shown:
        window = [m for m in shown if start.time_s <= m.time_s < start.time_s + 0.9]
        assert len(window) <= 20
        assert sum(len(m.content["text"]) for m in window if m.kind == "stream") <= most_bytes
    text = kernel.text_of(cell)
    assert "lines not shown: /logs/rank_7.log" in text
    assert "[r7] rank 7 line" in text


def test_captured_stdout_gets_plain_text(kernel: Kernel) -> None:
    cell = kernel.run(
        "%%capture captured\nrun = ShownRun(); run.show(lines(0, 'hidden'), bar(0, 9, 9, text='bar')); run.close()"
    )
    shown = kernel.run("print(captured.stdout)")

    assert kernel.text_of(cell) == ""
    assert kernel.of(cell, "display_data") == []
    assert kernel.text_of(shown).splitlines()[1:] == ["[r0] hidden", "[r0] bar", ""]


def test_no_cell_no_notebook_view(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.jupyter.shown_runs import ShownRun, bar, lines

    run = ShownRun()
    run.show(lines(0, "grün"), bar(1, 9, 9, text="100%|█| 9/9"))
    run.close()

    assert capsys.readouterr().out.splitlines()[1:] == ["[r0] grün", "[r1] 100%|█| 9/9"]


def test_o06_a_saved_notebook_holds_readable_text_and_one_line_per_bar() -> None:
    code = (
        "run = ShownRun()\n"
        "run.show(lines(0, 'starting'), lines(1, 'starting'))\n"
        "for n in range(1, 11):\n"
        "    run.show(bar(0, n, 10), bar(1, n, 10)); run.wait(0.1)\n"
        "run.show(lines(0, 'loss 0.1'))\n"
        "run.close()"
    )
    notebook = new_notebook(cells=[new_code_cell(SET_UP), new_code_cell(code)])

    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(ROOT)}}).execute()

    nbformat.validate(notebook)
    outputs = notebook.cells[1].outputs
    [bars] = [output for output in outputs if output.output_type == "display_data"]
    assert bars.data["text/plain"].splitlines() == [
        f"[r{rank}] 100%|##########| 10/10 [00:01<00:01, 50.0it/s]" for rank in range(2)
    ]
    assert set(bars.data) == {"text/plain"}
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert text.splitlines()[1:] == ["[r0-r1] starting", "[r0] loss 0.1"]
    assert "\r" not in text
    assert "\x1b" not in text
