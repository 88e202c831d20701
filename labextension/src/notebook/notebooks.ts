/** All open notebooks: each kernel is listened to, not only that of the notebook in front. */
import type { INotebookTracker, NotebookPanel } from "@jupyterlab/notebook";
import type { RunSummary } from "../protocol/generated";
import { LabNotebook } from "./labNotebook";

export class Notebooks {
  private readonly known = new Map<NotebookPanel, LabNotebook>();

  constructor(
    private readonly tracker: INotebookTracker,
    private readonly ended: (notebook: LabNotebook, run: RunSummary) => void,
  ) {
    tracker.widgetAdded.connect((_, panel) => this.add(panel));
    tracker.forEach((panel) => void this.add(panel));
  }

  /** The one that is in front, or was last; null: none is open. */
  get current(): LabNotebook | null {
    const panel = this.tracker.currentWidget;
    return panel === null ? null : this.add(panel);
  }

  /** To be called now and then: see `KernelTalk.beat`. */
  beat(waitsForEnds: boolean): void {
    for (const notebook of this.known.values()) {
      notebook.talk?.beat(waitsForEnds);
    }
  }

  private add(panel: NotebookPanel): LabNotebook {
    const known = this.known.get(panel);
    if (known !== undefined) {
      return known;
    }
    const notebook = new LabNotebook(panel, this.ended);
    this.known.set(panel, notebook);
    panel.disposed.connect(() => this.known.delete(panel));
    return notebook;
  }
}
