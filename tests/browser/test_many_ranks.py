"""A run of many ranks in a page: everything is drawn, and no more than that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_nb.jupyter.cell_widget import MODULE, STATIC, STYLE

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

ADDRESS = "http://page.test/"
"""Answered by the test."""
UPDATE = """
async ([numRanks, numUpdates]) => {
  const { default: widget } = await import("/module.js");
  const el = document.getElementById("run");
  let receive;
  const on = (name, callback) => { if (name === "msg:custom") receive = callback; };
  widget.render({ el, model: { on, off() {}, send() {} } });
  let sequence = 0;
  const made = (event) => ({ ...event, sequence: ++sequence, time_s: 1e9 + sequence / 1000 });
  const indices = [...Array(numRanks).keys()];
  const ranks = indices.map((rank) => ({ rank, local_rank: rank, device_label: `cuda:${rank}` }));
  const plan = { function_name: "train", device_kind: "cuda", ranks, mixed_precision: "bf16" };
  receive({ type: "new_events", events: [made({ type: "run_started", plan })], now_s: 1e9 });
  for (let n = 1; n <= numUpdates; n++) {
    const events = indices.flatMap((rank) => [
      made({ type: "progress_row", rank, bar: 0, text: `${n}/${numUpdates}`, n, total: numUpdates }),
      made({ type: "log_lines", rank, text: `line ${n} of ${rank}` }),
    ]);
    events.push(made({ type: "metrics_logged", rank: 0, values: { loss: 1 / n }, step: n }));
    receive({ type: "new_events", events, now_s: 1e9 + n });
    await new Promise(requestAnimationFrame);
  }
  await new Promise(requestAnimationFrame);
}
"""


def test_o13_64_ranks_are_drawn_to_the_end_and_only_the_lines_that_are_seen_exist(page: Page) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.route(f"{ADDRESS}**", _answer)
    page.goto(ADDRESS)
    page.add_style_tag(content=(STATIC / STYLE).read_text())

    page.evaluate(UPDATE, [64, 50])

    assert errors == []
    bars = page.locator(".accel-run [role=progressbar]")
    assert bars.count() == 64
    assert {bar.get_attribute("aria-valuenow") for bar in bars.all()} == {"100"}
    assert page.locator(".accel-line").last.inner_text() == "[r63] line 50 of 63"
    assert page.locator(".accel-line").count() < 40


def _answer(route: Route) -> None:
    if route.request.url.endswith(".js"):
        route.fulfill(body=(STATIC / MODULE).read_text(), content_type="text/javascript")
    else:
        route.fulfill(body="<div id=run></div>", content_type="text/html")
