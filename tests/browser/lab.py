"""A JupyterLab of this checkout, with nothing of the user's, and what a person does in it."""

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

if TYPE_CHECKING:
    from playwright.sync_api import Page

REPOSITORY = Path(__file__).parents[2]
START_S = 90.0
END_S = 20.0
NO_NEWS = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
"""A notice of news would cover what is looked at."""


class Lab:
    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        """Of the notebooks."""

    def write_notebook(self, name: str, cells: Sequence[str]) -> Path:
        # Without it JupyterLab asks for a kernel.
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata=metadata)
        file = self.folder / name
        nbformat.write(notebook, file)
        return file

    def end_kernels(self) -> None:
        """All of them, so that no test leaves one behind."""
        for session in json.loads(self._ask("api/sessions")):
            self._ask(f"api/sessions/{session['id']}", "DELETE")

    def _ask(self, path: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        with urllib.request.urlopen(request, timeout=END_S) as answer:
            return bytes(answer.read())


class NotebookPage:
    """One notebook in one page of JupyterLab."""

    def __init__(self, page: Page, lab: Lab, file: Path) -> None:
        self.page = page
        self._lab = lab
        self._file = file

    def open(self) -> None:
        self.page.goto(f"{self._lab.url}lab/tree/{self._file.name}?reset")
        self._wait_until_ready()

    def reload(self) -> None:
        self.page.reload()
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        self.page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.connectionStatus"
            " === 'connected'",
            timeout=START_S * 1000,
        )
        self.page.wait_for_selector(".jp-CodeCell", timeout=START_S * 1000)

    def run_cell(self, index: int) -> None:
        """Start it; give back at once."""
        self.page.evaluate(
            "async (index) => { const app = window.jupyterapp;"
            " app.shell.currentWidget.content.activeCellIndex = index;"
            " void app.commands.execute('notebook:run-cell'); }",
            index,
        )

    def wait_for_cell(self, index: int, timeout_s: float = 60.0) -> None:
        """Until it is over."""
        self.page.wait_for_function(
            "(index) => /\\[\\d+\\]/.test("
            "document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')[index].textContent)",
            arg=index,
            timeout=timeout_s * 1000,
        )

    def prompt(self, index: int) -> str:
        return str(self.page.locator(".jp-CodeCell .jp-InputPrompt").nth(index).inner_text())

    def save(self) -> list[list[dict[str, object]]]:
        """Gives the outputs of each cell, as they are in the file then."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        notebook = nbformat.read(self._file, as_version=4)
        return [cell.outputs for cell in notebook.cells]

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
    port = _free_port()
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", "--ServerApp.password=",
        f"--ServerApp.root_dir={notebooks}", "--expose-app-in-browser",
        "--ServerApp.disable_check_xsrf=True",
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
    lab = Lab(f"http://127.0.0.1:{port}/", notebooks)
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


def _environment(folder: Path) -> dict[str, str]:
    own = {
        "HOME": "home", "IPYTHONDIR": "ipython", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
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
