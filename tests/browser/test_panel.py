"""The panel beside the notebook: what it shows, starts, stops, and what it says when it cannot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Opener, Screenshot
from tests.browser.lab import Lab, NotebookPage
from tests.browser.panel import Panel
from tests.browser.test_cell_view import STOPPED_WITHIN_S, TRAIN

if TYPE_CHECKING:
    from playwright.sync_api import Locator

COUNTS = """
from tqdm import tqdm
for step in tqdm(range(600), desc="training"):
    time.sleep(0.1)
"""
NOTES_THE_END = """
import time

def note_the_end(*_):
    global ended_s
    ended_s = time.time()

get_ipython().events.register("post_run_cell", note_the_end)
"""


@pytest.fixture
def panel(workbench: NotebookPage) -> Iterator[Panel]:
    opened = Panel(workbench)
    opened.section("Hardware").wait_for()
    yield opened
    opened.close()


def wait_for_row(run: Locator, beyond: int) -> int:
    """Until the first rank's bar in the panel is beyond so many percent; gives them."""
    bar = run.get_by_role("progressbar").first
    bar.wait_for()
    end_s = time.monotonic() + 60
    while (now := int(bar.get_attribute("aria-valuenow") or 0)) <= beyond:
        assert time.monotonic() < end_s, f"the bar stays at {now} %"
        run.page.wait_for_timeout(100)
    return now


def set_source(notebook: NotebookPage, index: int, source: str) -> None:
    notebook.page.evaluate(
        "([index, source]) => window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells[index]"
        ".setSource(source)",
        [index, source],
    )


def test_w08_two_ranks_are_chosen_inserted_run_and_stopped(
    workbench: NotebookPage, panel: Panel, screenshot: Screenshot
) -> None:
    panel.section("Hardware").get_by_role("article", name="CPU").wait_for()
    workbench.run(NOTES_THE_END)
    panel.choose_ranks(2)
    panel.root.get_by_role("status", name="What will start").get_by_text("2", exact=False).first.wait_for()
    screenshot(workbench, "chosen")

    panel.button("Insert cell").click()
    workbench.page.wait_for_function("() => document.querySelectorAll('.jp-CodeCell').length === 3")
    source = str(
        workbench.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells[2].source")
    )
    assert source.splitlines()[0] == "%%accelerate --num-processes 2"
    set_source(workbench, 2, source.splitlines()[0] + " --device cpu\n" + COUNTS.strip())
    workbench.run_cell(2)
    run = panel.open_run("Cell In")
    wait_for_row(run, 0)
    assert "*" in workbench.prompt(2)
    screenshot(workbench, "running")

    pressed_s = time.time()
    run.get_by_role("button", name="Stop").first.click()
    workbench.wait_for_cell(2)

    panel.run_named("Cell In").get_by_text("stopped").first.wait_for()
    told = workbench.run(f"print('took', ended_s - {pressed_s})").locator(".jp-OutputArea-output").inner_text()
    assert 0 < float(told.split()[-1]) < STOPPED_WITHIN_S
    saved = workbench.save()
    assert saved.metadata["accel_nb"]["choice"]["num_processes"] == 2
    screenshot(workbench, "stopped")


def test_o14_a_page_reloaded_while_the_cell_blocks_goes_on_in_the_panel(
    open_notebook: Opener, screenshot: Screenshot
) -> None:
    notebook = open_notebook([
        "%load_ext accel_nb\nimport time", "%%accelerate --num-processes 2 --device cpu\nprint('is ready')" + COUNTS,
        "print('ended', time.time())",
    ])  # fmt: skip
    notebook.run_cell(0)
    notebook.wait_for_cell(0)
    notebook.run_cell(1)
    notebook.run_cell(2)
    notebook.cell(1).get_by_text("training").first.wait_for()

    notebook.reload()
    panel = Panel(notebook)
    run = panel.open_run("Cell In")
    seen = wait_for_row(run, 0)
    wait_for_row(run, seen)
    run.get_by_text("is ready").first.wait_for()
    screenshot(notebook, "reloaded")

    panel.run_named("Cell In").get_by_role("button", name="Stop").first.click()
    run.get_by_text("stopped").first.wait_for()
    notebook.page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"
    )


def test_u02_one_click_loads_it_also_after_a_restart(open_notebook: Opener, screenshot: Screenshot) -> None:
    notebook = open_notebook([TRAIN])
    panel = Panel(notebook)
    panel.obstacle("not-loaded").wait_for()
    screenshot(notebook, "not-loaded")

    panel.button("Load accel_nb").press("Enter")
    panel.section("Hardware").get_by_role("article", name="CPU").wait_for()
    # The button has gone: the keyboard is still in the panel.
    notebook.page.wait_for_function("() => document.querySelector('#accel-nb-panel').contains(document.activeElement)")

    notebook.restart_kernel()
    panel.obstacle("not-loaded").wait_for()
    panel.button("Load accel_nb").click()
    panel.section("Hardware").get_by_role("article", name="CPU").wait_for()


def test_a_kernel_of_another_language_is_named(open_notebook: Opener, screenshot: Screenshot) -> None:
    notebook = open_notebook(["1"], kernel="other")
    panel = Panel(notebook)

    panel.obstacle("not-python").get_by_text("R", exact=False).first.wait_for()
    screenshot(notebook, "light")


def test_u01_the_panel_follows_the_notebook_in_front(open_notebook: Opener, lab: Lab) -> None:
    notebook = open_notebook(["%load_ext accel_nb"])
    notebook.run_cell(0)
    notebook.wait_for_cell(0)
    panel = Panel(notebook)
    panel.section("Hardware").get_by_role("article", name="CPU").wait_for()
    other = lab.write_notebook("other.ipynb", ["1"], "other")

    notebook.page.evaluate("(path) => window.jupyterapp.commands.execute('docmanager:open', {path})", other.name)
    panel.obstacle("not-python").wait_for()
    notebook.page.evaluate(
        "(path) => window.jupyterapp.commands.execute('docmanager:open', {path})", notebook.file.name
    )
    panel.section("Hardware").get_by_role("article", name="CPU").wait_for()
    lab.end_kernels({other.name})


def test_a_notice_tells_that_a_long_run_has_ended(open_notebook: Opener, lab: Lab, screenshot: Screenshot) -> None:
    with lab.settings("accel-nb/panel", {"notify": "always", "notifyAfterS": 0}):
        notebook = open_notebook(["%load_ext accel_nb", "%%accelerate --num-processes 1 --device cpu\n1 / 0"])
        notebook.run_cell(0)
        notebook.wait_for_cell(0)
        Panel(notebook).section("Hardware").wait_for()
        other = lab.write_notebook("elsewhere.ipynb", ["1"], "other")
        notebook.run_cell(1)
        notebook.wait_for_cell(1)

        notebook.page.evaluate("(path) => window.jupyterapp.commands.execute('docmanager:open', {path})", other.name)
        notebook.execute("apputils:display-notifications")
        notice = notebook.page.locator(".jp-Notification-List .jp-Notification-List-Item")
        notice.get_by_text(f"Cell In[2] in {notebook.file.name} failed after").wait_for()
        assert "ZeroDivisionError: division by zero" in notice.inner_text()
        screenshot(notebook, "light")
        notice.get_by_role("button", name="Show").click()
        notebook.page.wait_for_function(
            "(path) => { const { currentWidget } = window.jupyterapp.shell;"
            " return currentWidget.context?.path === path && currentWidget.content.activeCellIndex === 1; }",
            arg=notebook.file.name,
        )
        lab.end_kernels({other.name})


def test_l18_the_settings_file_is_shown_with_its_place_and_what_is_chosen_overrules_it(
    open_notebook: Opener, tmp_path: Path, screenshot: Screenshot
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("distributed_type: MULTI_CPU\nmixed_precision: bf16\nnum_processes: 3\nuse_cpu: true\n")
    notebook = open_notebook([f"import os\nos.environ['ACCEL_NB_CONFIG'] = {str(file)!r}\n%load_ext accel_nb"])
    notebook.run_cell(0)
    notebook.wait_for_cell(0)

    panel = Panel(notebook)
    panel.section("Start").get_by_text(str(file)).wait_for()
    panel.button("Run this cell on 3 ranks").wait_for()
    will_start = panel.root.get_by_role("status", name="What will start")
    will_start.get_by_text("3 ranks on cpu").wait_for()
    precision = panel.root.get_by_role("combobox", name="Precision")
    assert precision.locator("option:checked").inner_text() == "bf16 (file)"
    screenshot(notebook, "light")

    precision.select_option("no")

    panel.root.locator("code", has_text="%%accelerate --mixed-precision no").wait_for()
    will_start.get_by_text("precision no").wait_for()


def test_u02_versions_that_differ_are_told_beside_what_works(open_notebook: Opener, screenshot: Screenshot) -> None:
    other = "from accel_nb.jupyter.panel import reporter\nreporter.__version__ = '9.9.9'\n%load_ext accel_nb"
    notebook = open_notebook([other])
    notebook.run_cell(0)
    notebook.wait_for_cell(0)

    panel = Panel(notebook)

    panel.root.get_by_role("alert").get_by_text("The kernel has accel_nb 9.9.9, this panel is of").wait_for()
    panel.section("Hardware").get_by_role("article", name="CPU").wait_for()
    screenshot(notebook, "light")


def test_u06_sections_can_be_switched_off(open_notebook: Opener, lab: Lab) -> None:
    with lab.settings("accel-nb/panel", {"showStart": False}):
        notebook = open_notebook(["%load_ext accel_nb"])
        notebook.run_cell(0)
        notebook.wait_for_cell(0)
        panel = Panel(notebook)
        panel.section("Hardware").wait_for()

        assert panel.section("Runs").count() == 1
        assert panel.section("Start").count() == 0


def test_w08_a_key_that_can_do_nothing_says_why_whatever_of_the_panel_is_seen(
    open_notebook: Opener, screenshot: Screenshot
) -> None:
    notebook = open_notebook(["%load_ext accel_nb"])
    notebook.run_cell(0)
    notebook.wait_for_cell(0)
    panel = Panel(notebook)
    panel.section("Start").wait_for()
    notebook.execute("notebook:change-cell-to-markdown")
    why = "Select the code cell that is to run on the ranks."

    panel.root.get_by_role("heading", name="Start").click()
    panel.section("Start").wait_for(state="hidden")
    notebook.execute("accel-nb:run-cell")
    notebook.execute("apputils:display-notifications")
    notices = notebook.page.locator(".jp-Notification-List .jp-Notification-List-Item")
    notices.get_by_text(why).wait_for()
    screenshot(notebook, "light")

    panel.root.get_by_role("heading", name="Start").click()
    panel.section("Start").get_by_role("alert").get_by_text(why).wait_for()
    panel.section("Start").get_by_role("button", name="Run this cell on").click()
    notebook.execute("accel-nb:run-cell")
    notebook.execute("apputils:display-notifications")  # the click has closed it
    notices.get_by_text(why).nth(1).wait_for()
    assert notices.get_by_text(why).count() == 2, "beside the button it is told in the panel only"


def test_u05_a_layout_saved_by_another_version_loses_only_what_is_unknown(open_notebook: Opener, lab: Lab) -> None:
    kept = lab.write_notebook("kept.ipynb", ["1"])
    notebook = f"notebook:{kept.name}"
    layout = {
        "main": {"dock": {"type": "tab-area", "currentIndex": 0, "widgets": [notebook]}, "current": notebook},
        "right": {"collapsed": False, "visible": True, "current": "accel-nb-panel",
                  "widgets": ["accel-nb-plots-of-old", "accel-nb-panel", "jp-property-inspector"]},
    }  # fmt: skip
    data = {"layout-restorer:data": layout, notebook: {"data": {"path": kept.name, "factory": "Notebook"}}}
    lab.write_workspace("of-old", data)

    restored = open_notebook.again(kept, place="lab/workspaces/of-old")

    restored.page.locator("#accel-nb-panel").wait_for()
