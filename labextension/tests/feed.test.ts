import { expect, it, vi } from "vitest";
import { RunFeed } from "../src/comm/feed";
import type { RunEvent } from "../src/protocol/decode";
import { NEW_RUN } from "../src/run/state";
import { pythonState, recordedEvents } from "./recorded";

function newFeed() {
  const changed = vi.fn();
  return {
    feed: new RunFeed(
      () => undefined,
      changed,
      () => 100,
    ),
    changed,
  };
}

function wholeRun(state = NEW_RUN) {
  return { type: "whole_run", state, lines: [], started_s: 50, now_s: 90, can_hear: true };
}

it("comes to the same state live, and joining in the middle", () => {
  const events = recordedEvents("success");
  const [live, late] = [newFeed().feed, newFeed().feed];

  for (const event of events) {
    live.receive({ type: "new_events", events: [event], now_s: 1 });
  }
  late.receive({ type: "new_events", events: events.slice(40, 60), now_s: 1 });
  late.receive(wholeRun(pythonState("success")));
  late.receive({ type: "new_events", events: events.slice(50), now_s: 1 });

  expect(live.shown.state).toEqual(pythonState("success"));
  expect(late.shown.state).toEqual(pythonState("success"));
});

it("takes no line twice", () => {
  const { feed } = newFeed();
  const event: RunEvent = { type: "log_lines", rank: 0, text: "once", sequence: 3 };

  feed.receive({ type: "new_events", events: [event], now_s: 1 });
  feed.receive({ type: "new_events", events: [event], now_s: 1 });

  expect(feed.shown.log).toHaveLength(1);
});

it("ignores an older snapshot that another page had asked for", () => {
  const { feed } = newFeed();
  feed.receive(wholeRun({ ...NEW_RUN, sequence: 9, status: "running" }));

  feed.receive(wholeRun({ ...NEW_RUN, sequence: 8 }));

  expect(feed.shown.state.status).toBe("running");
});

it("keeps news that overtake the whole run", () => {
  const events = recordedEvents("success");
  const { feed } = newFeed();
  const before = newFeed().feed;
  for (const event of events.slice(0, 40)) {
    before.receive({ type: "new_events", events: [event], now_s: 1 });
  }

  feed.receive({ type: "new_events", events: events.slice(30), now_s: 1 });
  feed.receive(wholeRun(before.shown.state));

  expect(feed.shown.state).toEqual(pythonState("success"));
});

it("counts lines that were left out once when that news overtakes the whole run", () => {
  const { feed } = newFeed();
  const started: RunEvent = { type: "rank_started", rank: 0, pid: 7, device: "cpu", sequence: 1 };
  const leftOut: RunEvent = { type: "events_dropped", rank: 0, lines: 5, sequence: 0 };
  const knows = newFeed().feed;
  knows.receive({ type: "new_events", events: [started, leftOut], now_s: 1 });
  expect(knows.shown.state.ranks[0]?.dropped_lines).toBe(5);

  feed.receive({ type: "new_events", events: [leftOut], now_s: 1 });
  feed.receive(wholeRun(knows.shown.state));

  expect(feed.shown.state.ranks[0]?.dropped_lines).toBe(5);
});

it("does not go back to a whole run of before the end, which the kernel has told without a number", () => {
  const { feed } = newFeed();
  const running = { ...NEW_RUN, sequence: 9, status: "running" as const };
  feed.receive(wholeRun({ ...running, status: "failed" }));

  feed.receive(wholeRun(running));

  expect(feed.shown.state.status).toBe("failed");
});

it("takes the clock of the whole run, also after news that overtook it", () => {
  const { feed } = newFeed();
  feed.receive({ type: "new_events", events: [], now_s: 82 });

  feed.receive(wholeRun());

  expect(feed.shown.clockAheadS).toBe(-10);
});

it("reckons with a kernel whose clock differs", () => {
  const { feed } = newFeed();

  feed.receive(wholeRun());

  expect([feed.shown.startedS, feed.shown.clockAheadS]).toEqual([50, -10]);
});

it("is not moved by messages that it does not know", () => {
  const { feed, changed } = newFeed();

  feed.receive({ type: "from_the_future" });
  feed.receive(undefined);

  expect(changed).not.toHaveBeenCalled();
});
