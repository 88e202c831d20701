import type { JupyterFrontEnd } from "@jupyterlab/application";
import { expect, it, vi } from "vitest";
import { COMMANDS } from "../src/panel/commandIds";
import { PanelModel } from "../src/panel/model";
import { KernelTalk } from "../src/panel/talk";
import { addCommands } from "../src/plugins/commands";
import { readyKernel, run } from "./standInKernel";

// These two draw, and do not load without a page of JupyterLab.
vi.mock("@jupyterlab/apputils", () => ({ Notification: {} }));
vi.mock("../src/panel/panelWidget", () => ({ PANEL_ICON: undefined }));

const ends = new AbortController();

type Execute = (args: { readonly [name: string]: unknown }) => unknown;

/** What is used here of JupyterLab, with one notebook in front. */
async function commandsOf(kernel: ReturnType<typeof readyKernel>) {
  const talk = new KernelTalk(kernel, () => undefined);
  talk.want(true);
  await new Promise((resolve) => talk.changes.on(() => talk.heard.answer === "ready" && resolve(0), ends.signal));
  const commands = new Map<string, Execute>();
  const addCommand = (id: string, { execute }: { execute: Execute }) => void commands.set(id, execute);
  const notebooks = { current: { talk } } as never;
  const app = { commands: { addCommand }, shell: { activateById: () => undefined } } as unknown as JupyterFrontEnd;
  addCommands(app, null, { model: new PanelModel(), notebooks, panelId: "accel-nb-panel" });
  return (id: string, args = {}) => commands.get(id)?.(args);
}

it("test_u08: stops the run that is named, or the newest, at once when that is asked for", async () => {
  const kernel = readyKernel({ runs: [run(), run({ run_id: "run-2" }), run({ run_id: "run-3" })] });
  const execute = await commandsOf(kernel);

  await execute(COMMANDS.stopRun, { runId: "run-1", now: true });
  await execute(COMMANDS.stopRun, { runId: "run-2", now: false });
  await execute(COMMANDS.stopRun);

  expect(kernel.asked.filter(({ type }) => type === "stop_named_run")).toEqual([
    { type: "stop_named_run", run_id: "run-1", now: true },
    { type: "stop_named_run", run_id: "run-2", now: false },
    { type: "stop_named_run", run_id: "run-3", now: false },
  ]);
});
