"""What ranks write, display and count, as the page shows it: complete, in order, in the cell that it belongs to."""

from __future__ import annotations

from tests.browser.conftest import Screenshot
from tests.browser.lab import NotebookPage

LAUNCH = 'notebook_launcher({}, num_processes=2, device="cpu")'
WRITES = """
def train():
    import logging, os, sys, time, warnings
    print("by print")
    print("by stderr", file=sys.stderr)
    logging.warning("by logging")
    warnings.warn("by warnings")
    os.write(1, b"by os.write\\n")
    os.system("echo by echo")
    while True:
        time.sleep(0.1)

""" + LAUNCH.format("train")
COUNTS = """
def train():
    from tqdm.auto import tqdm
    for epoch in tqdm(range(3), desc="epochs"):
        for batch in tqdm(range(50), desc=f"epoch {epoch}", leave=False):
            pass

""" + LAUNCH.format("train")
BACKGROUND = """
def train():
    import time
    for step in range(600):
        print("of the ranks", step)
        time.sleep(0.1)

run = notebook_launcher(train, num_processes=2, device="cpu", block=False)
print("after the launch")
"""
FLOODS = """
def train():
    import itertools, os
    rank = os.environ["RANK"]
    for number in itertools.count():
        print(number, "of rank", rank, "x" * 80)

""" + LAUNCH.format("train")
MOST_LINES = 60
"""Of a list that has thousands, as many as are seen."""
FROM_A_THREAD = """
import threading, time, ipywidgets
label = ipywidgets.Label()
display(label)

def count():
    for number in range(21):
        label.value = f"from a thread {number}"
        time.sleep(0.02)

threading.Thread(target=count).start()
"""
DISPLAYS = """
def train():
    from IPython.display import HTML, display
    for number in range(100):
        display(HTML(f"<i>{number}</i>"))

""" + LAUNCH.format("train")


def test_o01_what_a_rank_writes_by_any_means_is_in_the_cell(workbench: NotebookPage) -> None:
    running = workbench.start(WRITES)
    lines = workbench.cell(running).locator(".accel-log")

    for text in ("by print", "by stderr", "by logging", "by warnings", "by os.write", "by echo"):
        for rank in ("r0", "r1"):
            lines.locator(".accel-line", has_text=text).filter(has_text=rank).first.wait_for()

    workbench.page.locator(".jp-CodeCell .accel-stop").click()
    workbench.wait_for_cell(running)


def test_o06_bars_stay_in_their_rows_and_one_line_of_each_is_kept(workbench: NotebookPage) -> None:
    cell = workbench.run(COUNTS)
    cell.get_by_text("✓ train finished").wait_for()

    [kept] = [saved.outputs for saved in workbench.save().cells if saved.source == COUNTS.strip()]

    lines = [line for line in kept[0]["data"]["text/plain"].splitlines() if "epoch" in line]
    assert len(kept) == 1
    assert [line.split()[0] for line in lines] == ["[r0]", "[r1]"]
    assert all("epochs" in line and "3/3" in line for line in lines)


def test_o05_w02_output_of_a_background_run_stays_in_its_cell_while_others_run(
    workbench: NotebookPage, screenshot: Screenshot
) -> None:
    launched = workbench.start(BACKGROUND)
    workbench.wait_for_cell(launched)
    workbench.cell(launched).get_by_text("of the ranks 3", exact=False).first.wait_for()

    other = workbench.run("print('of the other cell', run.status)")

    seen = workbench.cell(launched).locator(".accel-line").last.inner_text()
    workbench.page.wait_for_function(
        "(seen) => [...document.querySelectorAll('.jp-CodeCell .accel-line')].at(-1).textContent !== seen", arg=seen
    )
    assert other.locator(".jp-OutputArea-output").inner_text().strip() == "of the other cell running"
    assert "after the launch" in workbench.cell(launched).inner_text()
    screenshot(workbench, "light")
    workbench.run("run.stop()")
    workbench.cell(launched).get_by_text("■ train stopped").wait_for()


def test_o13_a_flood_of_lines_leaves_a_page_that_answers(workbench: NotebookPage, screenshot: Screenshot) -> None:
    running = workbench.start(FLOODS)
    cell = workbench.cell(running)
    lines = cell.locator(".accel-line")
    cell.get_by_text("lines not shown").first.wait_for()

    cell.get_by_role("combobox", name="Which ranks").select_option("1")
    lines.filter(has_text="of rank 1").first.wait_for()
    cell.get_by_role("searchbox").fill("7 of rank")
    workbench.page.wait_for_function(
        "() => [...document.querySelectorAll('.jp-CodeCell .accel-line:not(.accel-ours)')]"
        ".every((line) => line.textContent.includes('7 of rank'))"
    )
    assert lines.count() < MOST_LINES
    assert "*" in workbench.prompt(running)
    screenshot(workbench, "light")
    workbench.page.locator(".jp-CodeCell .accel-stop").click()
    workbench.wait_for_cell(running)

    cell.get_by_text("■ train stopped").first.wait_for()
    assert "rate exceeded" not in workbench.page.locator("body").inner_text()


def test_u09_a_thread_feeds_the_view_and_the_users_own_widget(workbench: NotebookPage) -> None:
    launched = workbench.start(BACKGROUND)
    workbench.wait_for_cell(launched)
    other = workbench.run(FROM_A_THREAD)

    other.get_by_text("from a thread 20").wait_for()
    workbench.cell(launched).get_by_text("of the ranks", exact=False).first.wait_for()

    assert "Error" not in other.inner_text()
    workbench.run("run.stop()")
    workbench.cell(launched).get_by_text("■ train stopped").wait_for()
    assert "Error" not in workbench.cell(launched).inner_text()


def test_u12_all_displays_of_rank_0_arrive_in_order(workbench: NotebookPage) -> None:
    cell = workbench.run(DISPLAYS)
    cell.get_by_text("✓ train finished").wait_for()

    # The page itself draws no more than the first fifty of a cell's outputs until it is asked.
    [kept] = [saved.outputs for saved in workbench.save().cells if saved.source == DISPLAYS.strip()]
    assert [output.data["text/html"] for output in kept[1:]] == [f"<i>{number}</i>" for number in range(100)]


def test_w05_cells_share_the_variables_of_kept_ranks(workbench: NotebookPage) -> None:
    workbench.run("%%accelerate --keep --num-processes 2 --device cpu\nimport os\nx = int(os.environ['RANK'])")
    failed = workbench.run("%%accelerate --keep\n1 / x")
    failed.get_by_text("ZeroDivisionError").first.wait_for()

    cell = workbench.run("%%accelerate --keep --out x\nx += 10\nprint('x is', x)")

    cell.get_by_text("[r1] x is 11").first.wait_for()
    assert workbench.run("print(x)").locator(".jp-OutputArea-output").inner_text().strip() == "10"
    workbench.run("%accel_stop")
