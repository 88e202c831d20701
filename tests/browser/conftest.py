"""One JupyterLab and one Chromium for all tests of this folder, which run where both and the built view are there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from accel_nb.jupyter import cell_widget
from tests.browser.lab import REPOSITORY, Lab, NotebookPage, running_lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
SCREENSHOTS = REPOSITORY / "build" / "screenshots"
VIEWPORT_WIDTH, VIEWPORT_HEIGHT = 1200, 900


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: tox -e browser")
    if CHROMIUM is None:
        pytest.skip("needs Debian's chromium")
    if (lacks := cell_widget.unavailable_because()) is not None:
        pytest.skip(f"the view of a run: {lacks}")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        _wake(started)
        yield started
        started.close()


def _wake(browser: Browser) -> None:
    """Have it start the processes for network, storage and painting that it starts when they are needed first."""
    page = browser.new_page()
    page.route("http://page.test/**", lambda route: route.fulfill(body="awake", content_type="text/html"))
    page.goto("http://page.test/")
    page.evaluate("() => localStorage.setItem('awake', 'yes')")
    page.screenshot()
    page.close()


@pytest.fixture(scope="session")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    assert browser.is_connected()
    with running_lab(tmp_path_factory.mktemp("lab")) as started:
        yield started


@pytest.fixture
def open_notebook(lab: Lab, browser: Browser, request: pytest.FixtureRequest) -> Iterator[OpenNotebook]:
    """Opens a notebook of the given cells in a page of its own, in which nothing may be asked of another machine."""
    context = browser.new_context(viewport={"width": VIEWPORT_WIDTH, "height": VIEWPORT_HEIGHT})
    foreign: list[str] = []
    name = request.node.name.split("[")[0]

    def note(url: str) -> None:
        if not url.startswith((lab.url, lab.url.replace("http", "ws"), "data:", "blob:")):
            foreign.append(url)

    def open_it(cells: Sequence[str]) -> NotebookPage:
        page = context.new_page()
        page.on("request", lambda asked: note(asked.url))
        opened = NotebookPage(page, lab, lab.write_notebook(f"{name}.ipynb", cells))
        opened.open()
        return opened

    yield open_it
    context.close()
    lab.end_kernels()
    assert foreign == [], "asked of another machine"


OpenNotebook = Callable[[Sequence[str]], NotebookPage]


@pytest.fixture
def screenshot(request: pytest.FixtureRequest) -> Callable[[NotebookPage, str], Path]:
    """Keeps a picture of the page, to be looked at."""

    def take(notebook: NotebookPage, name: str) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        file = SCREENSHOTS / f"{request.node.name}-{name}.png"
        file.write_bytes(notebook.page.screenshot())
        return file

    return take
