"""The live view of a run in the cell, as a person sees and uses it in JupyterLab."""

from __future__ import annotations

import time

from tests.browser.conftest import Opener, Screenshot
from tests.browser.lab import NotebookPage
from tests.browser.panel import Panel

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
DEAF = """
from accel_nb import Timeouts, notebook_launcher

def deaf():
    import signal, time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("does not hear", flush=True)
    time.sleep(600)
"""
DEAF_LAUNCH = "notebook_launcher(deaf, num_processes=2, device='cpu', timeouts=Timeouts(stop_grace_s=600))"
"""Asked to end, it goes on until the test has failed."""
STOPPED_WITHIN_S = 5.0
"""Between the press and the end of the cell's code."""


def bar(notebook: NotebookPage) -> int:
    """How far the first rank's bar is, in percent."""
    return int(
        notebook.page.locator(".jp-CodeCell .accel-run [role=progressbar]").first.get_attribute("aria-valuenow") or 0
    )


def wait_for_bar(notebook: NotebookPage, beyond: int) -> None:
    notebook.page.wait_for_function(
        "(beyond) => Number("
        "document.querySelector('.jp-CodeCell .accel-run [role=progressbar]')?.ariaValueNow) > beyond",
        arg=beyond,
    )


def test_u08_rows_move_while_the_cell_blocks_and_stop_ends_the_run(
    workbench: NotebookPage, screenshot: Screenshot
) -> None:
    workbench.run(TRAIN)
    running = workbench.start(f"try:\n    {LAUNCH.format(60)}\nfinally:\n    ended_s = time.time()")
    wait_for_bar(workbench, 0)
    seen = bar(workbench)
    wait_for_bar(workbench, seen)

    assert "*" in workbench.prompt(running)
    assert workbench.page.locator(".jp-CodeCell .accel-run [aria-label=Ranks] tbody tr").count() == 2
    screenshot(workbench, "light")
    workbench.use_theme("JupyterLab Dark")
    screenshot(workbench, "dark")
    workbench.page.get_by_role("button", name="Stacks").click()
    workbench.page.wait_for_selector(".accel-run [aria-label=Stacks] pre")
    assert "in train" in workbench.page.locator(".jp-CodeCell .accel-run [aria-label=Stacks]").inner_text()

    assert "*" in workbench.prompt(running)
    pressed_s = time.time()
    workbench.page.locator(".jp-CodeCell .accel-stop").click()
    workbench.wait_for_cell(running)

    workbench.page.wait_for_selector("text=■ train stopped")
    assert workbench.page.locator(".jp-CodeCell .accel-run").count() == 0
    screenshot(workbench, "stopped")
    workbench.use_theme("JupyterLab Light")  # the server would keep it
    told = workbench.run(f"print('took', ended_s - {pressed_s})").locator(".jp-OutputArea-output").inner_text()
    assert 0 < float(told.split()[-1]) < STOPPED_WITHIN_S


def test_u08_stop_now_in_the_cell_ends_ranks_that_do_not_obey_the_stop_of_the_panel(
    open_notebook: Opener, screenshot: Screenshot
) -> None:
    notebook = open_notebook(["%load_ext accel_nb", DEAF, DEAF_LAUNCH])
    for index in range(2):
        notebook.run_cell(index)
        notebook.wait_for_cell(index)
    notebook.run_cell(2)
    panel = Panel(notebook)
    notebook.page.locator(".jp-CodeCell .accel-run").get_by_text("does not hear").first.wait_for()

    panel.button("Stop deaf").click()
    stop_now = notebook.page.locator(".jp-CodeCell .accel-stop", has_text="Stop now")
    stop_now.wait_for()
    screenshot(notebook, "stopping")
    stop_now.click()
    notebook.wait_for_cell(2)

    notebook.page.locator(".jp-CodeCell").get_by_text("■ deaf stopped").first.wait_for()
    screenshot(notebook, "stopped")


def test_u07_what_stays_is_shown_again_without_a_kernel(open_notebook: Opener, screenshot: Screenshot) -> None:
    notebook = open_notebook([TRAIN, LAUNCH.format(1)])
    for index in range(2):
        notebook.run_cell(index)
        notebook.wait_for_cell(index)
    notebook.page.wait_for_selector("text=✓ train finished")

    [output] = notebook.save().cells[1].outputs
    notebook.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    notebook.page.reload()
    notebook.page.wait_for_selector("text=✓ train finished")
    notebook.wait_until_ready()

    assert set(output["data"]) == {"text/html", "text/plain"}
    assert notebook.page.locator("text=Error displaying widget").count() == 0
    screenshot(notebook, "reopened")


def test_o14_a_reloaded_page_shows_the_history_of_a_background_run_and_goes_on(open_notebook: Opener) -> None:
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
    notebook.page.locator(".jp-CodeCell .accel-stop").click()
    notebook.page.wait_for_selector(".accel-status-stopped")


def test_o14_two_pages_show_the_same_run_and_either_stops_it(open_notebook: Opener, screenshot: Screenshot) -> None:
    first = open_notebook([TRAIN, LAUNCH.format(60).replace("device", "block=False, device")])
    first.run_cell(0)
    first.wait_for_cell(0)
    first.run_cell(1)
    wait_for_bar(first, 1)
    first.save()

    second = open_notebook.again(first.file)
    wait_for_bar(second, bar(first))
    seen = bar(first)
    wait_for_bar(first, seen)
    screenshot(second, "second")

    second.page.locator(".jp-CodeCell .accel-stop").click()
    second.page.wait_for_selector(".accel-status-stopped")
    first.page.wait_for_selector(".accel-status-stopped, :text('■ train stopped')")


def test_a_view_whose_kernel_has_died_says_so(open_notebook: Opener, screenshot: Screenshot) -> None:
    dies = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    notebook = open_notebook([TRAIN, LAUNCH.format(600).replace("device", "block=False, device"), dies])
    notebook.run_cell(0)
    notebook.wait_for_cell(0)
    notebook.run_cell(1)
    wait_for_bar(notebook, 0)

    notebook.run_cell(2)

    notebook.page.locator(".jp-CodeCell .accel-run").get_by_text("The kernel is gone").wait_for()
    assert notebook.page.locator(".jp-CodeCell .accel-stop").count() == 0
    assert notebook.page.locator(".jp-CodeCell .accel-run").get_by_text("cut off").count() == 1
    screenshot(notebook, "kernel-died")
