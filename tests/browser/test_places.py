"""The same in other places: Notebook 7, and behind a hub's proxy."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Opener, Screenshot
from tests.browser.lab import BASE_URL, Lab
from tests.browser.panel import Panel
from tests.browser.proxy import running_proxy
from tests.browser.test_cell_view import LAUNCH, TRAIN, bar, wait_for_bar


def test_notebook_7_shows_a_run_and_its_stop_ends_it(open_notebook: Opener, screenshot: Screenshot) -> None:
    pytest.importorskip("notebook", reason="needs Notebook 7: tox -e browser")
    notebook = open_notebook([TRAIN, LAUNCH.format(60)], place="notebooks/{}")
    notebook.run_cell(0)
    notebook.wait_for_cell(0)
    panel = Panel(notebook)
    panel.obstacle("not-loaded").wait_for()
    panel.button("Load accel_nb").click()
    panel.section("Hardware").get_by_role("article", name="CPU").wait_for()
    notebook.run_cell(1)
    wait_for_bar(notebook, 0)
    wait_for_bar(notebook, bar(notebook))
    panel.open_run("train").get_by_role("progressbar").first.wait_for()
    screenshot(notebook, "running")

    assert "*" in notebook.prompt(1)
    notebook.page.locator(".jp-CodeCell .accel-stop").click()
    notebook.wait_for_cell(1)

    notebook.page.wait_for_selector("text=■ train stopped")
    screenshot(notebook, "stopped")


def test_u01_u02_behind_a_proxy_that_forwards_one_prefix_only(
    open_notebook: Opener, lab: Lab, screenshot: Screenshot
) -> None:
    with running_proxy(lab.port, BASE_URL) as address:
        notebook = open_notebook([TRAIN, LAUNCH.format(60)], address)
        notebook.run_cell(0)
        notebook.wait_for_cell(0)
        panel = Panel(notebook)
        panel.button("Load accel_nb").click()
        panel.section("Hardware").get_by_role("article", name="CPU").wait_for()
        notebook.run_cell(1)
        wait_for_bar(notebook, 0)
        wait_for_bar(notebook, bar(notebook))
        run = panel.open_run("train")
        run.get_by_role("progressbar").first.wait_for()
        screenshot(notebook, "running")
        panel.run_named("train").get_by_role("button", name="Stop").first.click()
        notebook.wait_for_cell(1)
        run.get_by_text("stopped").first.wait_for()
        notebook.page.close()
