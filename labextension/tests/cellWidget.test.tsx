// @vitest-environment jsdom
import { act } from "preact/test-utils";
import { afterEach, expect, it, vi } from "vitest";
import "./browserStandIns";
import module from "../src/cellWidget";
import { recordedEvents } from "./recorded";

class FakeModel {
  readonly sent: unknown[] = [];
  private readonly callbacks = new Set<(content: unknown) => void>();

  on(_name: "msg:custom", callback: (content: unknown) => void): void {
    this.callbacks.add(callback);
  }

  off(_name: "msg:custom", callback: (content: unknown) => void): void {
    this.callbacks.delete(callback);
  }

  send(content: unknown): void {
    this.sent.push(content);
  }

  receive(content: unknown): void {
    for (const callback of this.callbacks) {
      callback(content);
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

  expect(model.sent.slice(1)).toEqual([{ type: "ask_stacks" }, { type: "stop_run" }]);
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
