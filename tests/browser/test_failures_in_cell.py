"""What a person is shown of a run that goes wrong, in JupyterLab."""

from __future__ import annotations

import os
import signal

from tests.browser.conftest import Screenshot
from tests.browser.lab import NotebookPage

LAUNCH = 'notebook_launcher(train, num_processes={}, device="cpu")'
RAISES = """
def train():
    weights = {"a": 1}
    return weights["bias"]

""" + LAUNCH.format(2)
WAITS = """
def train():
    import os, time
    print(f"rank {os.environ['RANK']} is process {os.getpid()};")
    time.sleep(60)

""" + LAUNCH.format(2)
MISMATCH = """
import torch

def train():
    accelerator = Accelerator()
    rows = 4 if accelerator.process_index == 2 else 8
    accelerator.gather(torch.ones(rows, 3))

""" + LAUNCH.format(3)
OUT_OF_MEMORY = """
from accel_nb import find_executable_batch_size

def train():
    import torch
    accelerator = Accelerator()

    @find_executable_batch_size(starting_batch_size=64, reduction="halve")
    def fit(batch_size):
        if batch_size > 16 and accelerator.process_index == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.10 GiB.")
        accelerator.wait_for_everyone()
        return batch_size

    found = fit()
    input_file = "/nowhere"
    {}
    return found

""" + LAUNCH.format(2)


def test_a_failure_shows_the_users_line_once(workbench: NotebookPage, screenshot: Screenshot) -> None:
    cell = workbench.run(RAISES)
    cell.get_by_text("✗ train failed").wait_for()

    outputs = cell.locator(".jp-OutputArea-child").all_inner_texts()

    number = cell.locator(".jp-InputPrompt").inner_text().strip("[]:")
    assert len(outputs) == 2, "the view, and the exception"
    assert [f"failed at Cell In[{number}], line 3" in text for text in outputs] == [True, True]
    assert ['return weights["bias"]' in text for text in outputs] == [False, True]
    screenshot(workbench, "light")


def test_a_killed_rank_is_named(workbench: NotebookPage, screenshot: Screenshot) -> None:
    running = workbench.start(WAITS)
    told = workbench.page.locator(".jp-CodeCell .accel-line", has_text="rank 1 is process").first
    told.wait_for()

    os.kill(int(told.inner_text().split("process ")[1].split(";")[0]), signal.SIGKILL)

    workbench.wait_for_cell(running)
    cell = workbench.cell(running)
    cell.get_by_text("✗ train failed").wait_for()
    text = cell.inner_text()
    assert "rank 1" in text
    assert "SIGKILL" in text
    screenshot(workbench, "light")


def test_a_mismatch_is_a_table_with_the_odd_rank_marked(workbench: NotebookPage, screenshot: Screenshot) -> None:
    cell = workbench.run(MISMATCH)
    cell.get_by_text("✗ train failed").wait_for()

    rows = cell.locator("table", has_text="[4, 3]").locator("tr", has_text="gather").all_inner_texts()

    assert ["differs" in row for row in rows] == [False, False, True]
    assert "[4, 3] float32" in rows[2]
    assert "rank 2 of 3 (cpu) does not fit together with the others at Cell In[" in cell.inner_text()
    screenshot(workbench, "light")


def test_the_batch_sizes_that_were_tried_are_shown(workbench: NotebookPage, screenshot: Screenshot) -> None:
    running = workbench.start(OUT_OF_MEMORY.replace("{}", "__import__('time').sleep(60)"))
    ladder = workbench.cell(running).locator("[aria-label='Batch sizes of fit'] li")
    ladder.filter(has_text="fits").wait_for()

    steps = [" ".join(step.split()) for step in ladder.all_inner_texts()]
    assert steps == ["64 ✗ too large on rank 1", "32 ✗ too large on rank 1", "16 ✓ fits"]
    screenshot(workbench, "light")
    workbench.page.locator(".jp-CodeCell .accel-stop").click()
    workbench.wait_for_cell(running)
