"""``python -m tests.browser.screenshots`` makes the pictures of docs/images from the real thing.

With names only those are made.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM, FLAGS
from tests.browser.lab import REPOSITORY, NotebookPage, running_lab
from tests.browser.panel import Panel

IMAGES = REPOSITORY / "docs" / "images"
WIDTH, HEIGHT = 1320, 900
MOST_BYTES = 150_000
NUM_COLOURS = 128
"""Enough for a light theme, and a third of the bytes."""
FIRST = """
%load_ext accel_nb
import math, random, time, torch
from accel_nb import Accelerator, notebook_launcher
from tqdm.auto import tqdm
"""
TRAIN = """
def train(epochs):
    accelerator = Accelerator(log_with="notebook")
    accelerator.init_trackers("demo")
    print(f"rank {accelerator.process_index} has its share of the data")
    for epoch in range(epochs):
        for batch in tqdm(range(80), desc=f"epoch {epoch}"):
            time.sleep(0.03)
            step = 80 * epoch + batch
            loss = 2.3 * math.exp(-step / 150) + 0.05 * random.random()
            accelerator.log({"loss": loss, "accuracy": 1 - loss / 2.5}, step=step)
        print(f"epoch {epoch}: loss {loss:.3f}")

notebook_launcher(train, (40,), num_processes=4, device="cpu")
"""
FAILURE = """
def train():
    weights = {"layer.weight": torch.zeros(3)}
    return weights["layer.bias"]

notebook_launcher(train, num_processes=2, device="cpu")
"""
MISMATCH = """
def evaluate():
    accelerator = Accelerator()
    rows = 4 if accelerator.process_index == 2 else 8
    accelerator.gather(torch.ones(rows, 3))

notebook_launcher(evaluate, num_processes=3, device="cpu")
"""
IN_THE_PANEL = """%%accelerate --num-processes 2 --device cpu
for step in tqdm(range(600), desc="training"):
    time.sleep(0.05)
"""


def live_view(notebook: NotebookPage) -> bytes:
    running = notebook.start(TRAIN)
    cell = notebook.cell(running)
    cell.get_by_text("epoch 4: loss", exact=False).first.wait_for()
    taken: bytes = cell.locator(".accel-run").screenshot()
    _stop(notebook, running)
    return taken


def failure(notebook: NotebookPage) -> bytes:
    cell = notebook.run(FAILURE)
    cell.get_by_text("train failed").wait_for()
    taken: bytes = cell.screenshot()
    return taken


def mismatch(notebook: NotebookPage) -> bytes:
    cell = notebook.run(MISMATCH)
    cell.get_by_text("evaluate failed").wait_for()
    taken: bytes = cell.locator(".jp-OutputArea-child").first.screenshot()
    return taken


def panel(notebook: NotebookPage) -> bytes:
    opened = Panel(notebook)
    opened.section("Hardware").wait_for()
    opened.choose_ranks(2)
    running = notebook.start(IN_THE_PANEL)
    run = opened.open_run("Cell In")
    run.get_by_role("progressbar").first.wait_for()
    notebook.page.wait_for_function(
        "() => Number(document.querySelector('#accel-nb-panel [role=progressbar]')?.ariaValueNow) > 20"
    )
    taken: bytes = notebook.page.screenshot()
    _stop(notebook, running)
    return taken


PICTURES: dict[str, Callable[[NotebookPage], bytes]] = {
    "live-view": live_view,
    "failure": failure,
    "mismatch": mismatch,
    "panel": panel,
}


def _stop(notebook: NotebookPage, running: int) -> None:
    notebook.page.locator(".accel-stop").first.click()
    notebook.wait_for_cell(running)


def keep(name: str, picture: bytes) -> int:
    """Gives the size in bytes. Raises ValueError when it is too large for a page of documentation."""
    target = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(NUM_COLOURS).save(target, "PNG", optimize=True)
    if len(target.getvalue()) > MOST_BYTES:
        raise ValueError(f"{name}: {len(target.getvalue())} bytes are more than {MOST_BYTES}. Show less of the page.")
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / f"{name}.png").write_bytes(target.getvalue())
    return len(target.getvalue())


def main() -> None:
    """Make the pictures named on the command line, or all."""
    names = sys.argv[1:] or list(PICTURES)
    with (
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as playwright,
        running_lab(Path(folder)) as lab,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
        page.set_default_timeout(120_000)
        notebook = NotebookPage(page, lab.write_notebook("training.ipynb", []), lab.url)
        notebook.open()
        notebook.execute("application:toggle-left-area")
        notebook.run(FIRST)
        for name in names:
            notebook.clear()
            print(f"{name}: {keep(name, PICTURES[name](notebook))} bytes", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
