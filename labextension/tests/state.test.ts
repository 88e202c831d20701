import { describe, expect, it } from "vitest";
import type { RunEvent } from "../src/protocol/decode";
import {
  advance,
  advanceAll,
  BATCH_SIZES_TRIED,
  ENDED_BARS,
  LOG_TAIL_LINES,
  MAX_CURVES,
  MAX_POINTS,
  NEW_RUN,
  ranksInOrder,
} from "../src/run/state";
import { pythonState, RUN_NAMES, recordedEvents, recordedText } from "./recorded";

describe.each(RUN_NAMES)("the recorded run %s", (name) => {
  it("is decoded whole", () => {
    expect(recordedEvents(name)).toHaveLength(recordedText(name).trim().split("\n").length);
  });

  it("gives the state that Python makes of it", () => {
    expect(advanceAll(NEW_RUN, recordedEvents(name))).toEqual(pythonState(name));
  });

  it("gives the same state when it is sent twice", () => {
    const events = recordedEvents(name);

    expect(advanceAll(advanceAll(NEW_RUN, events), events)).toEqual(pythonState(name));
  });
});

const STARTED = recordedEvents("success")[0] as RunEvent;

function stateAfter(...events: RunEvent[]) {
  return advanceAll(advance(NEW_RUN, STARTED), events);
}

describe("the fold", () => {
  it("changes nothing that was there before", () => {
    const before = stateAfter();
    const copy = structuredClone(before);

    advance(before, { type: "log_lines", rank: 0, text: "one" });

    expect(before).toEqual(copy);
  });

  it("keeps a bounded scroll-back", () => {
    const text = Array.from({ length: LOG_TAIL_LINES + 5 }, (_, index) => String(index)).join("\n");

    const tail = stateAfter({ type: "log_lines", rank: 0, text }).ranks[0]?.log_tail ?? [];

    expect([tail.length, tail[0]]).toEqual([LOG_TAIL_LINES, "5"]);
  });

  it("keeps the newest of the bars that are done, and all others", () => {
    const rows: RunEvent[] = Array.from({ length: ENDED_BARS + 3 }, (_, bar) => ({
      type: "progress_row",
      rank: 0,
      bar,
      text: "bar",
      done: bar !== 1,
    }));

    const kept = Object.keys(stateAfter(...rows).ranks[0]?.progress ?? {}).map(Number);

    expect(kept).toHaveLength(ENDED_BARS + 1);
    expect(kept.slice(0, 2)).toEqual([1, 3]);
  });

  it("thins a long curve and keeps its newest value", () => {
    const values: RunEvent[] = Array.from({ length: 2 * MAX_POINTS + 1 }, (_, step) => ({
      type: "metrics_logged",
      rank: 0,
      values: { loss: step },
    }));

    const curve = stateAfter(...values).curves.loss;

    expect(curve?.points.length).toBeLessThanOrEqual(MAX_POINTS);
    expect(curve?.stride).toBe(4);
    expect(curve?.last).toEqual([2 * MAX_POINTS, 2 * MAX_POINTS]);
  });

  it("keeps no more curves than fit", () => {
    const values = Object.fromEntries(Array.from({ length: MAX_CURVES + 9 }, (_, index) => [`m${index}`, index]));

    const curves = stateAfter({ type: "metrics_logged", rank: 0, values }).curves;

    expect(Object.keys(curves)).toHaveLength(MAX_CURVES);
  });

  it("keeps the newest tries of a batch size", () => {
    const tries: RunEvent[] = Array.from({ length: BATCH_SIZES_TRIED + 2 }, (_, index) => ({
      type: "batch_size_tried",
      rank: 0,
      function: "train",
      batch_size: index,
      fits: false,
      duration_s: 1,
    }));

    expect(stateAfter(...tries).ranks[0]?.batch_sizes[0]?.batch_size).toBe(2);
  });

  it("begins again with the logs of the attempt before", () => {
    const state = stateAfter(
      { type: "log_lines", rank: 1, text: "kept" },
      { type: "metrics_logged", rank: 0, values: { loss: 1 } },
      { type: "stalled", text: "waits", waits_s: 31, ranks: [] },
      { type: "restarting", attempt: 1 },
    );

    expect(state.ranks[1]?.log_tail).toEqual(["kept"]);
    expect([state.attempt, state.curves, state.stalled, state.status]).toEqual([1, {}, null, "starting"]);
  });

  it("orders ranks by number", () => {
    const state = stateAfter(
      { type: "notice", text: "x" },
      { type: "rank_exited", rank: 10 },
      { type: "rank_exited", rank: 9 },
    );

    expect(ranksInOrder(state).map(([rank]) => rank)).toEqual([0, 1, 9, 10]);
  });
});
