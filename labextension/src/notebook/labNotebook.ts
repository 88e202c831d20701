/** One open notebook of JupyterLab, as the panel follows it: its kernel, the choice it remembers, its cells. */
import type { ISessionContext } from "@jupyterlab/apputils";
import type { NotebookPanel } from "@jupyterlab/notebook";
import { Changes } from "../comm/changes";
import { LabKernel } from "../comm/labKernel";
import { type Choice, fromMetadata, magicLine, toMetadata, withMagicLine } from "../panel/choice";
import type { FollowedNotebook } from "../panel/model";
import { KernelTalk } from "../panel/talk";
import type { RunSummary } from "../protocol/generated";
import { cellOfRun } from "./cells";

/** The notebook's metadata hold the choice under this name. */
const METADATA = "accel_nb";

export class LabNotebook implements FollowedNotebook {
  readonly changes = new Changes();
  talk: KernelTalk | null = null;
  private readonly ends = new AbortController();
  private ofKernel = new AbortController();

  /** Lives until the notebook is closed. `ended` is told of each run whose end is news. */
  constructor(
    readonly panel: NotebookPanel,
    private readonly ended: (notebook: LabNotebook, run: RunSummary) => void,
  ) {
    const { sessionContext } = panel;
    sessionContext.kernelChanged.connect(this.connectKernel, this);
    panel.context.pathChanged.connect(this.tell, this);
    panel.disposed.connect(this.dispose, this);
    this.connectKernel(sessionContext);
    void this.watchMetadata();
  }

  get name(): string {
    return this.panel.context.path.split("/").at(-1) ?? "";
  }

  get choice(): Choice {
    return fromMetadata(this.panel.model?.getMetadata(METADATA));
  }

  choose(choice: Choice): void {
    const { model } = this.panel;
    const kept = toMetadata(choice, model?.getMetadata(METADATA));
    if (kept === undefined) {
      model?.deleteMetadata(METADATA);
    } else {
      model?.setMetadata(METADATA, kept);
    }
  }

  /** Below the active one, which the new one becomes: what is typed next is written into it. */
  async insertCell(): Promise<void> {
    const notebook = this.panel.content;
    const cells = this.panel.model?.sharedModel;
    if (cells !== undefined) {
      const at = notebook.activeCellIndex + 1;
      cells.insertCell(at, { cell_type: "code", source: `${magicLine(this.choice)}\n` });
      notebook.activeCellIndex = at;
      notebook.deselectAll();
      const cell = notebook.activeCell;
      if (cell !== null) {
        await notebook.scrollToCell(cell);
        await cell.ready; // it has no editor before
        notebook.mode = "edit";
        cell.editor?.setCursorPosition({ line: 1, column: 0 });
        cell.editor?.focus();
      }
    }
  }

  /** Why not; "" when the active cell begins with the line of the choice now, and no other is selected with it: such
   * would run, too. */
  putLine(): string {
    const cell = this.panel.content.activeCell;
    if (cell?.model.type !== "code") {
      return "Select the code cell that is to run on the ranks.";
    }
    const { sharedModel } = cell.model;
    const changed = withMagicLine(sharedModel.source, this.choice);
    if ("problem" in changed) {
      return changed.problem;
    }
    if (changed.source !== sharedModel.source) {
      if (cell.readOnly) {
        return "The cell is read-only: its %%accelerate line cannot be changed. Insert a cell for it, or make it editable.";
      }
      sharedModel.source = changed.source;
    }
    this.panel.content.deselectAll();
    return "";
  }

  /** Whether the cell that started it is there. */
  async jumpTo(run: RunSummary): Promise<boolean> {
    const notebook = this.panel.content;
    const at = cellOfRun(
      run,
      notebook.widgets.map(({ model }) => {
        const count: unknown = model.sharedModel.toJSON().execution_count;
        return { id: model.sharedModel.getId(), executionCount: typeof count === "number" ? count : null };
      }),
    );
    const cell = at === null ? undefined : notebook.widgets[at];
    if (at === null || cell === undefined) {
      return false;
    }
    notebook.activeCellIndex = at;
    notebook.deselectAll();
    await notebook.scrollToCell(cell, "center");
    return true;
  }

  private connectKernel(session: ISessionContext): void {
    this.ofKernel.abort();
    this.talk?.dispose();
    this.talk = null;
    const kernel = session.session?.kernel;
    if (kernel != null && !this.ends.signal.aborted) {
      this.ofKernel = new AbortController();
      const link = new LabKernel(session, kernel, this.ofKernel.signal);
      this.talk = new KernelTalk(link, (run) => this.ended(this, run));
    }
    this.tell();
  }

  private async watchMetadata(): Promise<void> {
    await this.panel.context.ready;
    const { model } = this.panel;
    if (model !== null && !this.ends.signal.aborted) {
      model.metadataChanged.connect(this.tell, this);
      this.ends.signal.addEventListener("abort", () => model.metadataChanged.disconnect(this.tell, this));
      this.tell();
    }
  }

  private tell(): void {
    this.changes.tell();
  }

  private dispose(): void {
    this.ends.abort();
    this.ofKernel.abort();
    this.panel.sessionContext.kernelChanged.disconnect(this.connectKernel, this);
    this.talk?.dispose();
    this.talk = null;
  }
}
