import { expect, it } from "vitest";
import schema from "../schema/panel.json";
import { cellOfRun } from "../src/notebook/cells";
import { inOrder, noticeOfEnd } from "../src/panel/runs";
import { DEFAULT_SETTINGS, settingsFrom } from "../src/panel/settings";
import { withUsage } from "../src/panel/usage";
import { memory, memoryOf, versionWarning } from "../src/panel/words";
import { BUSY_GPU, run } from "./standInKernel";

const FAILED = run({ status: "failed", duration_s: 65, headline: "KeyError: 'bias' on rank 0" });

it("has the settings of the schema, with its defaults", () => {
  const defaults = Object.fromEntries(Object.entries(schema.properties).map(([name, one]) => [name, one.default]));

  expect(defaults).toEqual(DEFAULT_SETTINGS);
});

it("takes settings, and the default for what is none", () => {
  expect(settingsFrom({ notify: "always", notifyAfterS: 0, helloEveryS: 5, showRuns: "no" })).toEqual({
    ...DEFAULT_SETTINGS,
    notify: "always",
    notifyAfterS: 0,
  });
});

it("tells of a long run that failed while its notebook is not looked at", () => {
  expect(noticeOfEnd(FAILED, "a.ipynb", DEFAULT_SETTINGS, true)).toEqual({
    type: "error",
    text: "train in a.ipynb failed after 1:05: KeyError: 'bias' on rank 0",
  });
});

it("tells only what the settings ask for", () => {
  const finished = run({ status: "finished", duration_s: 65 });
  const told = (one: typeof FAILED, part: Partial<typeof DEFAULT_SETTINGS>, isElsewhere: boolean) =>
    noticeOfEnd(one, "a.ipynb", { ...DEFAULT_SETTINGS, ...part }, isElsewhere) !== null;

  expect(told(FAILED, {}, false)).toBe(false);
  expect(told(FAILED, { notify: "always" }, false)).toBe(true);
  expect(told(FAILED, { notify: "never" }, true)).toBe(false);
  expect(told(FAILED, { notifyAfterS: 66 }, true)).toBe(false);
  expect(told(finished, {}, true)).toBe(true);
  expect(told(finished, { notifySuccess: false }, true)).toBe(false);
  expect(told(run({ status: "stopped", duration_s: 65 }), { notify: "always" }, true)).toBe(false);
});

it("lists runs that go on first, then the newest first", () => {
  const runs = [run({ run_id: "a" }), run({ run_id: "b", status: "failed" }), run({ run_id: "c", status: "finished" })];

  expect(inOrder(runs).map((one) => one.run_id)).toEqual(["a", "c", "b"]);
});

it("finds the cell of a run by its id, else by its number", () => {
  const cells = [
    { id: "cell-a", executionCount: 3 },
    { id: "cell-c", executionCount: null },
  ];

  expect(cellOfRun({ cell: "In[3]", cell_id: "cell-c" }, cells)).toBe(1);
  expect(cellOfRun({ cell: "In[3]", cell_id: "deleted" }, cells)).toBe(0);
  expect(cellOfRun({ cell: "In[4]", cell_id: "" }, cells)).toBeNull();
  expect(cellOfRun({ cell: "", cell_id: "" }, cells)).toBeNull();
});

const at = (moment: number) => ({ ...BUSY_GPU, time_s: 2 * moment, cpu_utilization: moment / 100 });

it("keeps the usage of the last two minutes", () => {
  let usage = {};
  for (let moment = 0; moment < 70; moment++) {
    usage = withUsage(usage, at(moment - 1), at(moment));
  }

  expect(usage).toMatchObject({ cpu: expect.objectContaining({ length: 60, 59: 0.69 }) });
});

it("draws no curve through a time of which nothing is known, and nothing twice", () => {
  const usage = withUsage(withUsage({}, null, at(1)), at(1), at(2));

  expect(withUsage(usage, at(2), at(2))).toEqual({ cpu: [0.01, 0.02], "cuda:5": [0.9, 0.9] });
  expect(withUsage(usage, at(2), at(90))).toEqual({ cpu: [0.9], "cuda:5": [0.9] });
});

it("writes memory as people do", () => {
  expect(memory(880 * 2 ** 20)).toBe("880 MiB");
  expect(memoryOf(12.34 * 2 ** 30, 140 * 2 ** 30)).toBe("12.3 of 140 GiB");
});

it("test_u02: says that versions differ, with the command that helps", () => {
  expect(versionWarning("9.9.9")?.text).toContain("The kernel has accel_nb 9.9.9");
  expect(versionWarning("9.9.9")?.code).toMatch(/^%pip install accel-nb==/);
});
