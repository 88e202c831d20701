// @vitest-environment jsdom
import { expect, it } from "vitest";
import { LabKernel } from "../src/comm/labKernel";
import { LabNotebook } from "../src/notebook/labNotebook";

const signal = { connect: () => true, disconnect: () => true };

/** What is used here of JupyterLab's notebook, with one active cell. */
function notebookWith(cell: { type?: string; source: string; readOnly?: boolean }, metadata: object = {}) {
  let selected = 2;
  const sharedModel = { source: cell.source };
  const kept = new Map<string, unknown>(Object.entries(metadata));
  const panel = {
    sessionContext: { kernelChanged: signal, session: null },
    context: { pathChanged: signal, ready: new Promise(() => undefined), path: "a/train.ipynb" },
    disposed: signal,
    model: {
      getMetadata: (name: string) => kept.get(name),
      setMetadata: (name: string, value: unknown) => void kept.set(name, value),
      deleteMetadata: (name: string) => void kept.delete(name),
    },
    content: {
      activeCell: { model: { type: cell.type ?? "code", sharedModel }, readOnly: cell.readOnly ?? false },
      deselectAll: () => {
        selected = 1;
      },
    },
  };
  const notebook = new LabNotebook(panel as unknown as ConstructorParameters<typeof LabNotebook>[0], () => undefined);
  return { notebook, sharedModel, kept, numSelected: () => selected };
}

const TWO_RANKS = { accel_nb: { choice: { num_processes: 2 }, future: 1 } };

it("puts the line on the active cell, and has no other cell run with it", () => {
  const { notebook, sharedModel, numSelected } = notebookWith({ source: "train()" }, TWO_RANKS);

  expect(notebook.putLine()).toBe("");

  expect(sharedModel.source).toBe("%%accelerate --num-processes 2\ntrain()");
  expect(numSelected()).toBe(1);
});

it("leaves cells alone that are no code, or read-only", () => {
  const markdown = notebookWith({ source: "# Title", type: "markdown" });
  const locked = notebookWith({ source: "train()", readOnly: true });
  const ready = notebookWith({ source: "%%accelerate --num-processes 2\ntrain()", readOnly: true }, TWO_RANKS);

  expect(markdown.notebook.putLine()).toContain("Select the code cell");
  expect(locked.notebook.putLine()).toContain("The cell is read-only");
  expect(ready.notebook.putLine(), "it has the line already").toBe("");
  expect([markdown.sharedModel.source, locked.sharedModel.source]).toEqual(["# Title", "train()"]);
});

it("test_u05: keeps in the notebook's metadata what is not the choice", () => {
  const { notebook, kept } = notebookWith({ source: "" }, TWO_RANKS);

  notebook.choose({ ...notebook.choice, num_processes: null });
  expect(kept.get("accel_nb")).toEqual({ future: 1 });
  notebook.choose({ ...notebook.choice, device: "cpu" });

  expect(kept.get("accel_nb")).toEqual({ future: 1, choice: { device: "cpu" } });
});

/** A kernel whose shell answers requests with these, one after the other. */
function loading(...contents: object[]) {
  const sent: object[] = [];
  const kernel = {
    status: "idle",
    registerCommTarget: () => undefined,
    requestExecute: (content: object) => {
      sent.push(content);
      return { done: Promise.resolve({ content: contents[sent.length - 1] ?? { status: "aborted" } }) };
    },
  };
  const session = { statusChanged: signal, connectionStatusChanged: signal, iopubMessage: signal };
  type Parameters = ConstructorParameters<typeof LabKernel>;
  const link = new LabKernel(
    session as unknown as Parameters[0],
    kernel as unknown as Parameters[1],
    new AbortController().signal,
  );
  return { problem: link.loadExtension(), sent };
}

it("loads the extension again when the cell before it has failed, and took it along", async () => {
  const { problem, sent } = loading({ status: "aborted" }, { status: "ok" });

  expect(await problem).toBe("");
  expect(sent).toHaveLength(2);
});

it("says why the extension could not be loaded", async () => {
  expect(await loading({ status: "error", ename: "ModuleNotFoundError", evalue: "no" }).problem).toBe(
    "ModuleNotFoundError: no",
  );
  expect(await loading().problem).toContain("dropped the request");
});
