"""The view under a page's security policy. anywidget loads the module from a blob; nothing else may be needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_nb.jupyter.cell_widget import MODULE, STATIC

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

ADDRESS = "http://page.test/"
"""Answered by the test."""
POLICY = "script-src 'self' blob:"
SHOW = """
async (source) => {
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const { default: widget } = await import(address);
  const on = (name, callback) => { if (name === "msg:custom") model.receive = callback; };
  const model = { on, off() {}, send() {} };
  widget.initialize({ model });
  widget.render({ el: document.getElementById("run"), model });
  const plan = { function_name: "train", device_kind: "cpu", mixed_precision: "no",
                 ranks: [{ rank: 0, local_rank: 0, device_label: "cpu" }] };
  const events = [
    { type: "run_started", plan, sequence: 1, time_s: 1e9 },
    { type: "progress_row", rank: 0, bar: 0, text: "1/2", n: 1, total: 2, sequence: 2 },
    { type: "metrics_logged", rank: 0, values: { loss: 0.5 }, step: 1, sequence: 3 },
    { type: "log_lines", rank: 0, text: "\\u001b[31mred\\u001b[0m", sequence: 4 },
  ];
  model.receive({ type: "new_events", events, now_s: 1e9 });
}
"""


def test_the_view_needs_no_more_than_scripts_of_the_page_and_blobs(page: Page) -> None:
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.route(f"{ADDRESS}**", _answer)
    page.goto(ADDRESS)

    page.evaluate(SHOW, (STATIC / MODULE).read_text())

    page.locator(".accel-line .accel-fg-red").wait_for()
    assert page.locator(".accel-run [role=progressbar]").get_attribute("aria-valuenow") == "50"
    assert page.locator(".accel-plot canvas").count() == 1
    assert problems == []


def _answer(route: Route) -> None:
    route.fulfill(
        body="<!doctype html><link rel=icon href='data:,'><div id=run></div>",
        content_type="text/html",
        headers={"Content-Security-Policy": POLICY},
    )
