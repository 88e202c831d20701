// @vitest-environment jsdom
import { act } from "preact/test-utils";
import { afterEach, expect, it, vi } from "vitest";
import "./browserStandIns";
import module from "../src/cellWidget";
import { NEW_RUN } from "../src/run/state";
import { recordedEvents } from "./recorded";

class FakeModel {
  readonly sent: unknown[] = [];
  private readonly callbacks = new Map<(content: unknown) => void, string>();

  on(name: string, callback: (content: unknown) => void): void {
    this.callbacks.set(callback, name);
  }

  off(_name: string, callback: (content: unknown) => void): void {
    this.callbacks.delete(callback);
  }

  send(content: unknown): void {
    this.sent.push(content);
  }

  receive(content: unknown): void {
    this.trigger("msg:custom", content);
  }

  trigger(event: string, content?: unknown): void {
    for (const [callback, name] of this.callbacks) {
      if (name === event) {
        callback(content);
      }
    }
  }

  get isHeard(): boolean {
    return this.callbacks.size > 0;
  }
}

afterEach(() => vi.unstubAllGlobals());

function started() {
  const frames: (() => void)[] = [];
  vi.stubGlobal("requestAnimationFrame", (draw: () => void) => frames.push(draw));
  const model = new FakeModel();
  const el = document.createElement("div");
  let end = () => {};
  act(() => {
    end = module.render({ model, el });
  });
  return { model, el, end, frames, draw: () => act(() => frames.splice(0).forEach((frame) => void frame())) };
}

it("tells that it can run, before there is a view", () => {
  const model = new FakeModel();

  module.initialize({ model });

  expect(model.sent).toEqual([{ type: "loaded" }]);
});

it("tells that it can run again with each whole run: what it said first may wait behind the cell", () => {
  const model = new FakeModel();
  module.initialize({ model });
  model.sent.length = 0;

  model.receive({ type: "new_events", events: [], now_s: 1 });
  expect(model.sent).toEqual([]);
  model.receive({ type: "whole_run", state: NEW_RUN, lines: [], started_s: 1, now_s: 1, can_hear: true });

  expect(model.sent).toEqual([{ type: "loaded" }]);
});

it("says that the kernel is gone, until something comes from it", () => {
  const { model, el, end, draw } = started();
  const events = recordedEvents("success");
  model.receive({ type: "new_events", events: events.slice(0, 10), now_s: 1 });

  model.trigger("comm_live_update");
  draw();
  const cutOff = el.textContent;
  model.receive({ type: "new_events", events: events.slice(10, 20), now_s: 1 });
  draw();

  expect(cutOff).toContain("cut off");
  expect(cutOff).toContain("The kernel is gone, or the connection to it.");
  expect(cutOff).not.toContain("Stop");
  expect(el.textContent).not.toContain("cut off");
  expect(el.textContent).toContain("Stop");
  act(end);
});

it("says nothing of a kernel that ends after the run", () => {
  const { model, el, end, draw } = started();
  model.receive({ type: "new_events", events: recordedEvents("success"), now_s: 1 });

  model.trigger("comm_live_update");
  draw();

  expect(el.textContent).toContain("finished");
  expect(el.textContent).not.toContain("The kernel is gone");
  act(end);
});

it("connects, and draws what it is told at most once per frame", () => {
  const { model, el, end, frames, draw } = started();
  const events = recordedEvents("success");

  expect(model.sent).toEqual([{ type: "connect" }]);
  model.receive({ type: "new_events", events: events.slice(0, 10), now_s: 1 });
  model.receive({ type: "new_events", events: events.slice(10, 20), now_s: 1 });
  expect(frames).toHaveLength(1);
  draw();

  expect(el.textContent).toContain("train");
  act(end);
});

it("sends what is pressed", () => {
  const { model, el, end, draw } = started();
  model.receive({ type: "new_events", events: recordedEvents("success").slice(0, 10), now_s: 1 });
  draw();

  const [stacks, stop] = [...el.querySelectorAll<HTMLButtonElement>(".accel-header button")];
  act(() => stacks?.click());
  act(() => stop?.click());
  act(() => stop?.click());

  expect(model.sent.slice(1)).toEqual([
    { type: "ask_stacks" },
    { type: "stop_run", now: false },
    { type: "stop_run", now: true },
  ]);
  act(end);
});

it("test_u08: its first press ends the ranks at once when somebody else has asked them to end", () => {
  const { model, el, end, draw } = started();
  model.receive({ type: "new_events", events: recordedEvents("success").slice(0, 10), now_s: 1 });
  model.receive({ type: "new_events", events: [{ type: "stop_requested", by: "panel" }], now_s: 1 });
  draw();

  const [, stop] = [...el.querySelectorAll<HTMLButtonElement>(".accel-header button")];
  act(() => stop?.click());

  expect(stop?.textContent).toContain("Stop now");
  expect(model.sent.slice(1)).toEqual([{ type: "stop_run", now: true }]);
  act(end);
});

it("leaves nothing behind", () => {
  const { model, el, end, draw } = started();
  model.receive({ type: "new_events", events: recordedEvents("success"), now_s: 1 });

  act(end);
  draw();

  expect(model.isHeard).toBe(false);
  expect(el.childNodes).toHaveLength(0);
});
