"""The live view of a run in the cell, as a person sees and uses it in JupyterLab."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.conftest import OpenNotebook
from tests.browser.lab import NotebookPage

Screenshot = Callable[[NotebookPage, str], Path]

pytestmark = pytest.mark.timeout(300)

TRAIN = """
from accel_nb import Accelerator, notebook_launcher
import time

def train(seconds):
    from tqdm import tqdm
    accelerator = Accelerator(log_with="notebook")
    accelerator.init_trackers("demo")
    print(f"rank {accelerator.process_index} is ready")
    for step in tqdm(range(int(10 * seconds)), desc="training"):
        time.sleep(0.1)
        print(f"step {step}: loss {1 / (1 + step):.4f}")
        accelerator.log({"loss": 1 / (1 + step)}, step=step)
    accelerator.end_training()
    return accelerator.process_index
"""
LAUNCH = "result = notebook_launcher(train, ({},), num_processes=2, device='cpu')"
FAILING = """
def train():
    weights = {"a": 1}
    return weights["bias"]

notebook_launcher(train, num_processes=2, device="cpu")
"""


def bar(notebook: NotebookPage) -> int:
    """How far the first rank's bar is, in percent."""
    return int(notebook.page.locator(".accel-run [role=progressbar]").first.get_attribute("aria-valuenow") or 0)


def wait_for_bar(notebook: NotebookPage, beyond: int) -> None:
    notebook.page.wait_for_function(
        "(beyond) => Number(document.querySelector('.accel-run [role=progressbar]')?.ariaValueNow) > beyond",
        arg=beyond,
        timeout=60_000,
    )


def test_u08_rows_move_while_the_cell_blocks_and_stop_ends_the_run(
    open_notebook: OpenNotebook, screenshot: Screenshot
) -> None:
    notebook = open_notebook([TRAIN, LAUNCH.format(60)])
    notebook.run_cell(0)
    notebook.wait_for_cell(0)
    notebook.run_cell(1)
    wait_for_bar(notebook, 0)
    seen = bar(notebook)
    wait_for_bar(notebook, seen)

    assert "*" in notebook.prompt(1)
    assert notebook.page.locator(".accel-run [aria-label=Ranks] tbody tr").count() == 2
    screenshot(notebook, "light")
    notebook.use_theme("JupyterLab Dark")
    screenshot(notebook, "dark")
    notebook.page.get_by_role("button", name="Stacks").click()
    notebook.page.wait_for_selector(".accel-run [aria-label=Stacks] pre")
    assert "in train" in notebook.page.locator(".accel-run [aria-label=Stacks]").inner_text()

    pressed_s = time.monotonic()
    notebook.page.locator(".accel-stop").click()
    notebook.wait_for_cell(1)

    assert time.monotonic() - pressed_s < 10  # PROBLEMS U08
    notebook.page.wait_for_selector("text=■ train stopped")
    assert notebook.page.locator(".accel-run").count() == 0
    screenshot(notebook, "stopped")
    notebook.use_theme("JupyterLab Light")  # the server would keep it


def test_u07_what_stays_is_shown_again_without_a_kernel(open_notebook: OpenNotebook, screenshot: Screenshot) -> None:
    notebook = open_notebook([TRAIN, LAUNCH.format(1)])
    notebook.run_cell(0)
    notebook.wait_for_cell(0)
    notebook.run_cell(1)
    notebook.wait_for_cell(1)
    notebook.page.wait_for_selector("text=✓ train finished")

    [output] = notebook.save()[1]
    notebook.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    notebook.page.reload()
    notebook.page.wait_for_selector("text=✓ train finished", timeout=90_000)

    assert set(output["data"]) == {"text/html", "text/plain"}  # type: ignore[call-overload]
    assert notebook.page.locator("text=Error displaying widget").count() == 0
    screenshot(notebook, "reopened")


def test_o14_a_reloaded_page_shows_the_history_of_a_background_run_and_goes_on(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook([TRAIN, LAUNCH.format(60).replace("device", "block=False, device")])
    notebook.run_cell(0)
    notebook.wait_for_cell(0)
    notebook.run_cell(1)
    wait_for_bar(notebook, 1)
    before = bar(notebook)
    notebook.save()

    notebook.reload()
    wait_for_bar(notebook, before)

    notebook.page.get_by_label("Search the output").fill("is ready")
    notebook.page.wait_for_selector("text=rank 0 is ready")
    notebook.page.locator(".accel-stop").click()
    notebook.page.wait_for_selector(".accel-status-stopped")


def test_a_failure_shows_the_users_line_once(open_notebook: OpenNotebook, screenshot: Screenshot) -> None:
    notebook = open_notebook(["from accel_nb import notebook_launcher", FAILING])
    notebook.run_cell(0)
    notebook.wait_for_cell(0)
    notebook.run_cell(1)
    notebook.wait_for_cell(1)
    notebook.page.wait_for_selector("text=✗ train failed")

    outputs = notebook.page.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea-child").all_inner_texts()

    assert len(outputs) == 2, "the view, and the exception"
    assert ["failed at Cell In[2], line 3" in text for text in outputs] == [True, True]
    assert ['return weights["bias"]' in text for text in outputs] == [False, True]
    screenshot(notebook, "light")
