// @vitest-environment jsdom
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import "./browserStandIns";
import { RunFeed, type Shown } from "../src/comm/feed";
import type { RunEvent } from "../src/protocol/decode";
import { type Actions, NO_ACTIONS } from "../src/views/actions";
import { RunView } from "../src/views/RunView";
import { RUN_NAMES, recordedEvents } from "./recorded";

let box: HTMLElement;

beforeEach(() => {
  box = document.createElement("div");
  document.body.append(box);
});

afterEach(() => {
  act(() => render(null, box));
  box.remove();
});

function shownAfter(events: RunEvent[]): Shown {
  const feed = new RunFeed(
    () => {},
    () => {},
  );
  feed.receive({ type: "new_events", events, now_s: Date.now() / 1000 });
  return feed.shown;
}

function show(shown: Shown, actions: Actions = NO_ACTIONS): void {
  act(() => render(<RunView shown={shown} actions={actions} />, box));
}

function text(selector: string): string[] {
  return [...box.querySelectorAll(selector)].map((element) => (element.textContent ?? "").replace(/\s+/g, " ").trim());
}

function button(name: string): HTMLButtonElement {
  const found = [...box.querySelectorAll("button")].find((one) => one.textContent?.includes(name));
  if (found === undefined) {
    throw new Error(`There is no button ${name}.`);
  }
  return found;
}

function choose(label: string, value: string): void {
  const control = box.querySelector<HTMLSelectElement | HTMLInputElement>(`[aria-label="${label}"]`);
  act(() => {
    if (control !== null) {
      control.value = value;
      control.dispatchEvent(new Event(control instanceof HTMLSelectElement ? "change" : "input", { bubbles: true }));
    }
  });
}

describe.each(RUN_NAMES)("every moment of the recorded run %s", (name) => {
  it("can be drawn, with one row per rank", () => {
    const events = recordedEvents(name);
    for (const count of [0, 1, Math.floor(events.length / 2), events.length]) {
      show(shownAfter(events.slice(0, count)));
    }

    const shown = shownAfter(events);
    expect(text("[aria-label=Ranks] tbody tr")).toHaveLength(Object.keys(shown.state.ranks).length);
    expect(text(".accel-status")[0]).toContain(shown.state.status);
  });

  it("names every control for people who do not see it", () => {
    show(shownAfter(recordedEvents(name)));

    for (const control of box.querySelectorAll("button, select, input")) {
      const label = control.getAttribute("aria-label") ?? control.closest("label")?.textContent ?? control.textContent;
      expect(label?.trim(), control.outerHTML).not.toBe("");
    }
  });
});

describe("a run under way", () => {
  it("moves its bars", () => {
    const events = recordedEvents("success");
    const at = (count: number) => {
      show(shownAfter(events.slice(0, count)));
      return box.querySelector("[role=progressbar]")?.getAttribute("aria-valuenow");
    };

    expect([at(30), at(events.length)]).toEqual([expect.stringMatching(/^\d+$/), "100"]);
    expect(at(30)).not.toBe("100");
  });

  it("u08 stops, and says what a second press does", () => {
    const stop = vi.fn();
    show(shownAfter(recordedEvents("success").slice(0, 20)), { ...NO_ACTIONS, stop });

    act(() => button("Stop").click());
    act(() => button("Stop now").click());

    expect(stop.mock.calls).toEqual([[false], [true]]);
  });

  it("says when a button cannot reach the kernel", () => {
    show({ ...shownAfter(recordedEvents("success").slice(0, 20)), canHear: false });

    expect(text(".accel-note")).toEqual(["Stop waits for the cell: use the toolbar's interrupt."]);
  });

  it("shows the stacks it is sent", () => {
    const stacks = { type: "stack_texts", text_by_rank: { 0: "in train" }, problem: "" } as const;
    show({ ...shownAfter(recordedEvents("success").slice(0, 20)), stacks });

    expect(text("[aria-label=Stacks] pre")).toEqual(["in train"]);
  });

  it("warns of a stall and marks the straggler", () => {
    const events: RunEvent[] = [
      ...recordedEvents("success").slice(0, 10),
      { type: "stalled", text: "rank 0 waits", waits_s: 31, ranks: [] },
      { type: "step_times", rank: 1, num_steps: 7, step_s: 0.02, own_s: 0.01, input_s: 0 },
      { type: "straggler", rank: 1, text: "rank 1 is slow", factor: 1.84, by: "input", own_s: 1, others_s: 0.5 },
    ];
    show(shownAfter(events));

    expect(text(".accel-warning")).toEqual(["⚠ rank 0 waits", "⚠ rank 1 is slow"]);
    expect(text(".accel-straggler .accel-number")).toEqual(["7", "20.0 ms1.8× slower"]);
  });

  it("says what an update is made of", () => {
    show(shownAfter(recordedEvents("every_kind")));

    expect(text(".accel-note")[0]).toBe(
      "2 ranks × batch size 16 × 4 batches = 128 samples per update, 20 updates per epoch, learning rate 0.1, seed 7",
    );
  });

  it("has no buttons when it is over", () => {
    show(shownAfter(recordedEvents("success")));

    expect(() => button("Stop")).toThrow();
  });
});

describe("the output", () => {
  const rows = () => text(".accel-line");

  it("shows all ranks, one rank, or what was searched", () => {
    show(shownAfter(recordedEvents("success")));
    expect(rows()).toContain("[r0-r1] green and bold red");

    choose("Which ranks", "1");
    expect(rows()).toContain("[r1] rank 1 is ready");
    expect(rows()).not.toContain("[r0] rank 0 is ready");

    choose("Search the output", "epoch");
    expect(rows()).toEqual(["[r1] WARNING:root:the last epoch is over"]);

    choose("Search the output", "nowhere");
    expect(text(".accel-log .accel-words")).toEqual(["No line fits the choice."]);
  });

  it("colours as the rank did", () => {
    show(shownAfter(recordedEvents("success")));

    expect(text(".accel-fg-green")).toEqual(["green"]);
    expect(text(".accel-bold.accel-fg-red")).toEqual(["bold red"]);
  });

  it("o13 draws only the lines that are seen", () => {
    const many = Array.from({ length: 3000 }, (_, index) => `line ${index}`).join("\n");
    show(shownAfter([...recordedEvents("success").slice(0, 3), { type: "log_lines", rank: 0, text: many }]));

    expect(rows().length).toBeLessThan(40);
    expect(rows().at(-1)).toContain("line 2999");
  });

  it("is copied as it is shown", () => {
    const copy = vi.fn(() => Promise.resolve(true));
    show(shownAfter(recordedEvents("user_error")), { ...NO_ACTIONS, copy });

    act(() => box.querySelector<HTMLButtonElement>('[aria-label="Copy the lines shown"]')?.click());

    expect(copy).toHaveBeenCalledExactlyOnceWith("[r0-r2] starting\n");
  });
});

describe("what went wrong", () => {
  it("shows the user's line first", () => {
    show(shownAfter(recordedEvents("user_error")));

    expect(text(".accel-failure .accel-title")).toEqual(["Rank 1 of 3 (cpu) failed at Cell In[1], line 10."]);
    expect(text(".accel-failure pre")[0]).toContain("KeyError: 'bias'");
  });

  it("marks the odd one out of a mismatch", () => {
    show(shownAfter(recordedEvents("mismatch")));

    expect(text(".accel-odd th")).toEqual(["2"]);
    expect(text(".accel-failure h4")).toEqual([
      "Rank 2 of 4 (cpu) does not fit together with the others at Cell In[1], line 7.",
    ]);
    expect(text(".accel-odd td")[1]).toBe("[4, 3] float32differs");
  });

  it("shows the batch sizes that were tried", () => {
    show(shownAfter(recordedEvents("batch_sizes")));

    expect(text(".accel-rung")[0]).toBe("64 ✗ too large on rank 1");
    expect(text(".accel-rung").at(-1)).toContain("✓ fits");
  });
});

it("plots each metric beside its newest value", () => {
  show(shownAfter(recordedEvents("success")));

  expect(text(".accel-plot figcaption")).toEqual(["loss 0.03333", "rate/lr 0.081"]);
  expect(box.querySelectorAll(".accel-plot canvas")).toHaveLength(2);
});

it("has no colour but the theme's and the system's", () => {
  const css = readFileSync(join(import.meta.dirname, "..", "style", "run.css"), "utf8");

  expect(css.match(/#[0-9a-f]{3,8}\b|\b(?:rgb|hsl)a?\(/gi)).toBeNull();
});

describe("what the ranks take of the machine", () => {
  const USED = { memory_bytes: 3 * 2 ** 30, cpus: 1.5 };

  it("is a figure and a course per rank, once it is known", () => {
    const begun = recordedEvents("success").slice(0, 6);
    show(shownAfter(begun));
    expect(text("[aria-label=Ranks] thead th")).not.toContain("Memory");

    const samples = [0, 1].flatMap((rank) => [1, 2].map(() => ({ type: "rank_usage" as const, rank, ...USED })));
    show(shownAfter([...begun, ...samples]));

    expect(text("[aria-label=Ranks] thead th")).toEqual(expect.arrayContaining(["Memory", "Busy"]));
    expect(text(".accel-memory")).toEqual(["3.0 GiB", "3.0 GiB"]);
    expect(text(".accel-busy")).toEqual(["150%", "150%"]);
    expect(box.querySelectorAll(".accel-spark-line[d^=M]").length).toBe(2);
  });

  it("leaves the cells of a rank empty that has told nothing", () => {
    show(shownAfter([...recordedEvents("success").slice(0, 6), { type: "rank_usage", rank: 1, ...USED }]));

    expect(text(".accel-memory")).toEqual(["", "3.0 GiB"]);
  });
});
