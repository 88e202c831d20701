"""One JupyterLab and one Chromium for all tests of this folder, which run where both and the built view are there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from accel_nb.jupyter import cell_widget
from tests.browser.lab import EXTENSION, REPOSITORY, Lab, NotebookPage, running_lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
SCREENSHOTS = REPOSITORY / "build" / "screenshots"
VIEWPORT_WIDTH, VIEWPORT_HEIGHT = 1200, 900
TEST_TIMEOUT_S = 300
WAIT_S = 90.0
"""For what a person waits a moment for, on a machine that has much else to do."""
NOT_OURS = frozenset({
    "Cannot read properties of undefined (reading 'schema')", "Command 'filebrowser:open-path' not registered.",
})  # fmt: skip
"""Notebook 7.6 raises them in its own page: it has no file browser there. Nothing of ours runs that command."""
WORKBENCH = "workbench.ipynb"
FIRST_RUN = """
%load_ext accel_nb
from accel_nb import Accelerator, notebook_launcher
notebook_launcher(print, ("warm",), num_processes=2, device="cpu")
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of this folder are told apart from the rest; a page and a kernel take their time on a busy machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: tox -e browser")
    if CHROMIUM is None:
        pytest.skip("needs Debian's chromium")
    if (lacks := cell_widget.unavailable_because()) is not None:
        pytest.skip(f"the view of a run: {lacks}")
    if not EXTENSION.exists():
        pytest.skip("the panel has not been built: run `npm ci && npm run build` in the checkout")
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


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Of a context of its own, without JupyterLab."""
    context = _new_context(browser)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="session")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    assert browser.is_connected()
    with running_lab(tmp_path_factory.mktemp("lab")) as started:
        yield started


class Opener:
    """Opens notebooks in pages of their own, in which nothing may be asked of another machine."""

    def __init__(self, lab: Lab, context: BrowserContext, name: str) -> None:
        self._lab = lab
        self._context = context
        self._name = name
        self._opened: list[NotebookPage] = []

    def __call__(
        self, cells: Sequence[str], address: str = "", place: str = "lab/tree/{}?reset", kernel: str = "python3"
    ) -> NotebookPage:
        """`address` and `place`: where the browser finds the server, and in it the notebook."""
        file = self._lab.write_notebook(f"{self._name}-{len(self._opened)}.ipynb", cells, kernel)
        return self.again(file, address, place)

    def again(self, file: Path, address: str = "", place: str = "lab/tree/{}?reset") -> NotebookPage:
        """A notebook that is there, in one more page."""
        page = self._context.new_page()
        opened = NotebookPage(page, file, address or self._lab.url)
        self._opened.append(opened)
        opened.open(place)
        return opened

    def close(self) -> None:
        self._context.close()
        self._lab.end_kernels({opened.file.name for opened in self._opened})
        for opened in self._opened:
            assert opened.foreign == [], "asked of another machine"
            assert set(opened.errors) <= NOT_OURS


def _new_context(browser: Browser) -> BrowserContext:
    context = browser.new_context(viewport={"width": VIEWPORT_WIDTH, "height": VIEWPORT_HEIGHT})
    context.set_default_timeout(WAIT_S * 1000)
    return context


@pytest.fixture
def open_notebook(lab: Lab, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Opener]:
    opener = Opener(lab, _new_context(browser), request.node.name.split("[")[0])
    yield opener
    opener.close()


@pytest.fixture(scope="session")
def _warm_notebook(lab: Lab, browser: Browser) -> Iterator[NotebookPage]:
    context = _new_context(browser)
    notebook = NotebookPage(context.new_page(), lab.write_notebook(WORKBENCH, []), lab.url)
    notebook.open()
    notebook.run(FIRST_RUN)
    yield notebook
    context.close()
    lab.end_kernels({WORKBENCH})


@pytest.fixture
def workbench(_warm_notebook: NotebookPage) -> Iterator[NotebookPage]:
    """An empty notebook with a kernel in which accel_nb has been loaded and has launched: tests share page and kernel.

    For what neither reloads the page nor ends the kernel.
    """
    notebook = _warm_notebook
    notebook.clear()
    yield notebook
    foreign, errors = notebook.foreign.copy(), notebook.errors.copy()
    notebook.foreign.clear()
    notebook.errors.clear()
    if notebook.is_busy():
        # The test has failed half way; the next one has to find a kernel that listens.
        notebook.restart_kernel()
        notebook.clear()
        notebook.run(FIRST_RUN)
    assert foreign == [], "asked of another machine"
    assert errors == []


@pytest.fixture
def screenshot(request: pytest.FixtureRequest) -> Callable[[NotebookPage, str], Path]:
    """Keeps a picture of the page, to be looked at."""

    def take(notebook: NotebookPage, name: str) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        file = SCREENSHOTS / f"{request.node.name}-{name}.png"
        file.write_bytes(notebook.page.screenshot())
        return file

    return take


Screenshot = Callable[[NotebookPage, str], Path]
