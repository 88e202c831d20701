/** Tells that a long run has ended to somebody who looks elsewhere. */
import type { JupyterFrontEnd } from "@jupyterlab/application";
import { Notification } from "@jupyterlab/apputils";
import type { LabNotebook } from "../notebook/labNotebook";
import { noticeOfEnd } from "../panel/runs";
import type { PanelSettings } from "../panel/settings";
import type { RunSummary } from "../protocol/generated";

/** Two notebooks may share a kernel: its runs end once. */
const told = new Set<string>();

export function tellEnds(app: JupyterFrontEnd, notebook: LabNotebook, run: RunSummary, settings: PanelSettings): void {
  const isElsewhere = !document.hasFocus() || app.shell.currentWidget !== notebook.panel;
  const notice = noticeOfEnd(run, notebook.name, settings, isElsewhere);
  if (notice === null || told.has(run.run_id)) {
    return;
  }
  told.add(run.run_id);
  const show = () => {
    app.shell.activateById(notebook.panel.id);
    void notebook.jumpTo(run);
  };
  // It stays until it is closed: whoever looks elsewhere may look long.
  Notification.emit(notice.text, notice.type, { autoClose: false, actions: [{ label: "Show", callback: show }] });
}
