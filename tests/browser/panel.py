"""The panel beside the notebook, as a person uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.browser.lab import NotebookPage

if TYPE_CHECKING:
    from playwright.sync_api import Locator


class Panel:
    def __init__(self, notebook: NotebookPage) -> None:
        """Opened, if it was not."""
        notebook.execute("accel-nb:open-panel")
        self._notebook = notebook
        self.root = notebook.page.locator("#accel-nb-panel")
        self.root.wait_for()

    def button(self, name: str) -> Locator:
        return self.root.get_by_role("button", name=name, exact=True)

    def section(self, name: str) -> Locator:
        return self.root.get_by_role("region", name=name, exact=True)

    def obstacle(self, kind: str) -> Locator:
        return self.root.locator(f".accel-panel-obstacle[data-state='{kind}']")

    def choose_ranks(self, number: int) -> None:
        self.root.get_by_role("spinbutton", name="Number of ranks").fill(str(number))
        self.root.get_by_role("spinbutton", name="Number of ranks").press("Enter")
        self.root.locator("code.accel-panel-code", has_text=f"--num-processes {number}").wait_for()

    def run_named(self, name: str) -> Locator:
        """The newest of that name: those that go on come first."""
        return self.root.locator(".accel-panel-run", has_text=name).first

    def open_run(self, name: str) -> Locator:
        """One that goes on: the panel opens it by itself."""
        run = self.run_named(name)
        run.locator(".accel-run").wait_for()
        return run

    def close(self) -> None:
        self._notebook.page.evaluate(
            "() => { const shell = window.jupyterapp.shell; shell.collapseRight?.(); shell.expandLeft?.(); }"
        )
