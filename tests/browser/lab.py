"""A JupyterLab and a Notebook of this checkout, with nothing of the user's, and what a person does in them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

REPOSITORY = Path(__file__).parents[2]
EXTENSION = REPOSITORY / "accel_nb" / "labextension"
"""Made by ``npm run build``."""
START_S = 90.0
END_S = 20.0
BASE_URL = "/user/x/"
"""As behind a hub."""
NO_NEWS = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
"""A notice of news would cover what is looked at."""


class Lab:
    def __init__(self, port: int, folder: Path, settings: Path) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}{BASE_URL}"
        self._folder = folder
        self._settings = settings

    def write_notebook(self, name: str, cells: Sequence[str], kernel: str = "python3") -> Path:
        # Without it JupyterLab asks for a kernel.
        metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": ""}}
        notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata=metadata)
        file = self._folder / name
        nbformat.write(notebook, file)
        return file

    def end_kernels(self, notebooks: Collection[str] | None = None) -> None:
        """Those of the notebooks named, or all, so that no test leaves one behind."""
        for session in json.loads(self._ask("api/sessions")):
            if notebooks is None or session["path"] in notebooks:
                self._ask(f"api/sessions/{session['id']}", "DELETE")

    def write_workspace(self, name: str, data: dict[str, object]) -> None:
        """What JupyterLab keeps of a page, to be opened as ``lab/workspaces/NAME``."""
        content = {"data": data, "metadata": {"id": name}}
        self._ask(f"lab/api/workspaces/{name}", "PUT", json.dumps(content).encode())

    @contextlib.contextmanager
    def settings(self, plugin: str, values: dict[str, object]) -> Iterator[None]:
        """For the pages that are opened meanwhile. `plugin` is as in ``accel-nb/panel``."""
        file = self._settings / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
        yield
        file.unlink()

    def _ask(self, path: str, method: str = "GET", data: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.url}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=END_S) as answer:
            return bytes(answer.read())


class NotebookPage:
    """One notebook in one page of JupyterLab, or of Notebook 7. `address` is where the browser finds the server."""

    def __init__(self, page: Page, file: Path, address: str) -> None:
        self.page = page
        self.file = file
        self.errors: list[str] = []
        """Exceptions that no code of the page caught."""
        self.foreign: list[str] = []
        """What was asked of another machine, or of this server beside `address`."""
        self._address = address
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda asked: self._note(asked.url))
        page.on("websocket", lambda opened: self._note(opened.url))

    def _note(self, url: str) -> None:
        if not url.startswith((self._address, self._address.replace("http", "ws", 1), "data:", "blob:")):
            self.foreign.append(url)

    def open(self, place: str = "lab/tree/{}?reset") -> None:
        """`place` is a JupyterLab's or, as ``notebooks/{}``, a Notebook's."""
        self.page.goto(self._address + place.format(self.file.name))
        self.wait_until_ready()

    def reload(self) -> None:
        self.page.reload()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        self.page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.connectionStatus"
            " === 'connected'",
            timeout=START_S * 1000,
        )
        # Not "visible": of a notebook that is scrolled, JupyterLab hides the cells out of sight.
        self.page.wait_for_selector(".jp-CodeCell", state="attached", timeout=START_S * 1000)

    def cell(self, index: int) -> Locator:
        return self.page.locator(".jp-CodeCell").nth(index)

    def add_cell(self, source: str) -> int:
        """At the end of the notebook; gives its index."""
        index = self.page.evaluate(
            "(source) => { const model = window.jupyterapp.shell.currentWidget.content.model.sharedModel;"
            " model.addCell({ cell_type: 'code', source }); return model.cells.length - 1; }",
            source.strip(),
        )
        self.cell(int(index)).wait_for()
        return int(index)

    def clear(self) -> None:
        """One empty cell is left: an empty notebook would get one, a moment later."""
        self.page.evaluate(
            "() => { const model = window.jupyterapp.shell.currentWidget.content.model.sharedModel;"
            " model.insertCell(0, { cell_type: 'code', source: '' }); model.deleteCellRange(1, model.cells.length); }"
        )
        self.page.wait_for_function("() => document.querySelectorAll('.jp-CodeCell').length === 1")

    def run(self, source: str) -> Locator:
        """A new cell, to its end; gives it."""
        index = self.add_cell(source)
        self.run_cell(index)
        self.wait_for_cell(index)
        return self.cell(index)

    def start(self, source: str) -> int:
        """A new cell; gives its index at once."""
        index = self.add_cell(source)
        self.run_cell(index)
        return index

    def run_cell(self, index: int) -> None:
        """Start it; give back at once."""
        self.page.evaluate(
            "async (index) => { const app = window.jupyterapp;"
            " app.shell.currentWidget.content.activeCellIndex = index;"
            " void app.commands.execute('notebook:run-cell'); }",
            index,
        )

    def wait_for_cell(self, index: int, timeout_s: float = 90.0) -> None:
        """Until it is over."""
        self.page.wait_for_function(
            "(index) => /\\[\\d+\\]/.test("
            "document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')[index]?.textContent)",
            arg=index,
            timeout=timeout_s * 1000,
        )

    def prompt(self, index: int) -> str:
        return str(self.page.locator(".jp-CodeCell .jp-InputPrompt").nth(index).inner_text())

    def is_busy(self) -> bool:
        """Whether a cell runs, or waits for its turn."""
        return any("*" in text for text in self.page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts())

    def execute(self, command: str) -> None:
        """A command of the front end, to its end."""
        self.page.evaluate("(command) => window.jupyterapp.commands.execute(command)", command)

    def restart_kernel(self) -> None:
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
        self.wait_until_ready()

    def save(self) -> nbformat.NotebookNode:
        """Gives what is in the file then, as nbformat reads it."""
        self.execute("docmanager:save")
        saved: nbformat.NotebookNode = nbformat.read(self.file, as_version=4)
        return saved

    def use_theme(self, name: str) -> None:
        self.page.evaluate("(theme) => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name)
        self.page.wait_for_selector(f"body[data-jp-theme-name='{name}']", state="attached")
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")


@contextlib.contextmanager
def running_lab(folder: Path) -> Iterator[Lab]:
    """Ended with its kernels on exit. `folder` is for it alone."""
    notebooks, settings = folder / "notebooks", folder / "settings"
    notices = settings / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    for path in (notebooks, notices.parent, folder / "workspaces"):
        path.mkdir(parents=True)
    notices.write_text(json.dumps(NO_NEWS))
    _install(folder / "data")
    port = _free_port()
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", "--ServerApp.password=",
        f"--ServerApp.root_dir={notebooks}", f"--ServerApp.base_url={BASE_URL}", "--expose-app-in-browser",
        "--JupyterNotebookApp.expose_app_in_browser=True", "--ServerApp.disable_check_xsrf=True",
    ]  # fmt: skip
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    lab = Lab(port, notebooks, settings)
    try:
        _wait_for(lab, process, folder / "server.log")
        yield lab
        lab.end_kernels()
    finally:
        # The first one asks, the second one means it.
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _install(data: Path) -> None:
    """The extension of this checkout, and a kernel of another language."""
    extensions, kernel = data / "labextensions", data / "kernels" / "other"
    extensions.mkdir(parents=True)
    (extensions / "accel-nb").symlink_to(EXTENSION)
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "tests.browser.other_kernel", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "R (stand-in)", "language": "R"}))


def _environment(folder: Path) -> dict[str, str]:
    own = {
        "HOME": "home", "IPYTHONDIR": "ipython", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        # Before the environment's folder, where an earlier build of the extension may be installed.
        "JUPYTER_PATH": "data",
    }  # fmt: skip
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **{name: str(folder / part) for name, part in own.items()}}


def _free_port() -> int:
    """Of a server that takes no socket of ours: somebody else might take it first, which the test then tells."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(lab: Lab, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            lab.end_kernels()
            return
        time.sleep(0.2)
    raise TimeoutError(f"JupyterLab did not come up. {log.read_text()[-2000:]}")
