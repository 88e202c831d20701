import { describe, expect, it } from "vitest";
import type { RunEvent } from "../src/protocol/decode";
import { levelOf } from "../src/run/levels";
import { type LogFilter, logFrom, MAX_LINES, rowsOf, textOf, withEvents } from "../src/run/log";
import { rankPrefix } from "../src/run/words";

const ALL: LogFilter = { rank: null, level: "all", search: "" };

function lines(rank: number, text: string, time_s = 0): RunEvent {
  return { type: "log_lines", rank, text, time_s };
}

function shown(events: RunEvent[], filter: Partial<LogFilter> = {}): string[] {
  return textOf(rowsOf(withEvents([], events), { ...ALL, ...filter }), rankPrefix)
    .split("\n")
    .slice(0, -1);
}

describe("the log", () => {
  it("o09 shows identical lines of several ranks within a second once", () => {
    const events = [lines(0, "loading", 1), lines(2, "loading", 1.5), lines(1, "loading", 1.9), lines(1, "loading", 9)];

    expect(shown(events)).toEqual(["[r0-r2] loading", "[r1] loading"]);
  });

  it("counts a line that one rank repeats", () => {
    expect(shown([lines(0, "again\nagain\nagain\nother")])).toEqual(["[r0] again (3 times)", "[r0] other"]);
  });

  it("keeps blank lines", () => {
    expect(shown([lines(0, "a\n\n\nb")])).toEqual(["[r0] a", "[r0] ", "[r0] ", "[r0] b"]);
  });

  it("o09 shows routine records of rank 0 only, unless it is asked for more", () => {
    const events = [lines(0, "INFO:root:zero"), lines(1, "INFO:root:one"), lines(1, "WARNING:root:two"), lines(1, "x")];

    expect(shown(events, { level: "usual" })).toEqual(["[r0] INFO:root:zero", "[r1] WARNING:root:two", "[r1] x"]);
    expect(shown(events, { level: "usual", rank: 1 })).toHaveLength(3);
    expect(shown(events, { level: "warnings" })).toEqual(["[r1] WARNING:root:two"]);
    expect(shown(events, { level: "errors" })).toEqual([]);
    expect(shown(events)).toHaveLength(4);
  });

  it("is searched in any case, colours aside", () => {
    expect(shown([lines(0, "lo\x1b[31mss 3\nother")], { search: "LOSS" })).toEqual(["[r0] loss 3"]);
  });

  it("shows our own sentences, without a rank", () => {
    expect(shown([{ type: "notice", text: "hello" }])).toEqual(["hello"]);
    expect(shown([{ type: "notice", text: "hello" }], { rank: 0 })).toEqual([]);
  });

  it("keeps the newest lines only", () => {
    const text = Array.from({ length: MAX_LINES + 3 }, (_, index) => String(index)).join("\n");

    expect(withEvents([], [lines(0, text)])).toHaveLength(MAX_LINES);
    expect(withEvents([], [lines(0, text)])[0]?.text).toBe("3");
    expect(logFrom([{ rank: 0, text: "one", time_s: 1 }])).toEqual(withEvents([], [lines(0, "one", 1)]));
  });

  it("is the same when nothing is added", () => {
    const log = withEvents([], [lines(0, "a")]);

    expect(withEvents(log, [{ type: "run_ended" }])).toBe(log);
  });
});

it.each([
  ["INFO:root:hello", "routine"],
  ["[rank1]:I1127 10:00:00.123456 x.py:1] text", "routine"],
  ["2026-11-27 10:00:00,123 - name - DEBUG - text", "routine"],
  ["name | WARNING | text", "warning"],
  ["[WARNING|trainer.py:3] text", "warning"],
  ["/usr/lib/x.py:12: UserWarning: text", "warning"],
  ["ERROR:root:bad", "error"],
  ["Traceback (most recent call last):", "error"],
  ["torch.OutOfMemoryError: CUDA out of memory", "error"],
  ["the INFO desk is closed", "plain"],
  ["epoch 3: loss 0.1", "plain"],
])("takes %s for %s", (line, level) => {
  expect(levelOf(line)).toBe(level);
});
