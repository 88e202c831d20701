import { describe, expect, it } from "vitest";
import type { RankState } from "../src/protocol/generated";
import { failureReport } from "../src/run/failures";
import { barsOf, ladders, mismatchRows } from "../src/run/tables";
import { clock, duration, figure, rankPrefix, rankRanges, rankStatusText } from "../src/run/words";
import { pythonState } from "./recorded";

describe("failures", () => {
  it("names the cause and the user's line", () => {
    const report = failureReport(pythonState("user_error"));

    expect(report?.headline).toBe("Rank 1 of 3 (cpu) failed at Cell In[1], line 10.");
    expect(report?.body).toContain('return weights["bias"]');
    expect(report?.others).toEqual(["As a consequence: ranks 0, 2 ended."]);
  });

  it("says what killed a rank", () => {
    expect(failureReport(pythonState("killed_rank"))?.headline).toMatch(/^Rank 1 of 2 \(cpu\) died: killed by SIGKILL/);
  });

  it("tells one error of all ranks once", () => {
    expect(failureReport(pythonState("mismatch"))?.others).toEqual(["Same error on ranks 0-3."]);
  });

  it.each(["success", "interrupted", "batch_sizes"])("is silent about %s", (name) => {
    expect(failureReport(pythonState(name))).toBeUndefined();
  });

  it("does not call a rank failed that was ended because of another", () => {
    const { ranks } = pythonState("user_error");

    expect([0, 1].map((rank) => rankStatusText(ranks[rank] as RankState).word)).toEqual(["stopped", "failed"]);
  });
});

it("marks the rank that differs from the others", () => {
  const { mismatch } = pythonState("mismatch");

  expect(mismatch === null ? [] : mismatchRows(mismatch).map((row) => row.odd)).toEqual([false, false, true, false]);
});

it("marks none where no way of calling has the majority", () => {
  const mismatch = { type: "collective_mismatch", operations: ["a", "b"], given: ["[1]", "[1]"] } as const;

  const rows = mismatchRows({ ...mismatch, operations: [...mismatch.operations], given: [...mismatch.given] });

  expect(rows.map((row) => [row.odd, row.place])).toEqual([
    [false, ""],
    [false, ""],
  ]);
});

it("makes a ladder of the batch sizes that all ranks agreed on", () => {
  const [ladder] = ladders(pythonState("batch_sizes"));

  expect(ladder?.function).toBe("inner");
  expect(ladder?.steps[0]).toMatchObject({ batchSize: 64, outcome: "too large", onRanks: [1] });
  expect(ladder?.steps.at(-1)).toMatchObject({ outcome: "fits" });
});

describe("bars", () => {
  const rank = pythonState("success").ranks[0] as RankState;
  const row = (bar: number, text: string, n: number | null, total: number | null, done = false) =>
    ({ [bar]: { type: "progress_row", bar, text, n, total, done } }) as RankState["progress"];

  it("takes tqdm's drawing apart", () => {
    expect(barsOf(rank)).toEqual([expect.objectContaining({ label: "epoch 2", n: 20, total: 20, part: 1 })]);
    expect(barsOf(rank)[0]?.rate).toMatch(/it\/s$/);
  });

  it("shows the bars that move, and the newest when none does", () => {
    const progress = { ...row(0, "outer", 1, 3), ...row(1, "inner", 9, 9, true), ...row(2, "full", 4, 4) };

    expect(barsOf({ ...rank, progress }).map((bar) => bar.label)).toEqual(["outer"]);
    expect(barsOf({ ...rank, progress: row(1, "", 9, 9, true) })).toEqual([]);
  });

  it("knows no part without a total", () => {
    expect(barsOf({ ...rank, progress: row(0, "7it [00:01, 5.0it/s]", 7, null) })).toEqual([
      { number: 0, label: "", n: 7, total: null, part: null, rate: "00:01, 5.0it/s", done: false },
    ]);
  });
});

it("writes numbers as a person would", () => {
  expect([clock(7), clock(754.9), clock(3723), clock(-1)]).toEqual(["0:07", "12:34", "1:02:03", "0:00"]);
  expect([duration(0.00085), duration(0.0123), duration(1.2)]).toEqual(["850 µs", "12.3 ms", "1.20 s"]);
  expect([figure(0.05714285), figure(1e-7), figure(0), figure(null)]).toEqual([
    "0.05714",
    "1.00e-7",
    "0",
    "not finite",
  ]);
  expect([rankRanges([5, 1, 0, 2]), rankPrefix([0, 1, 2, 5]), rankPrefix([])]).toEqual(["0-2, 5", "[r0-r2,r5] ", ""]);
});
