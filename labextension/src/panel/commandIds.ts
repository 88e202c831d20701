/** The commands: whatever a button does, the palette and a key can do. */

export const COMMANDS = {
  openPanel: "accel-nb:open-panel",
  loadExtension: "accel-nb:load-extension",
  insertCell: "accel-nb:insert-cell",
  runCell: "accel-nb:run-cell",
  stopRun: "accel-nb:stop-run",
  showStacks: "accel-nb:show-stacks",
  showRun: "accel-nb:show-run",
  jumpToCell: "accel-nb:jump-to-cell",
  askAgain: "accel-nb:ask-again",
} as const;

/** JupyterLab's own, for a kernel that is not there. */
export const JUPYTER_COMMANDS = {
  changeKernel: "notebook:change-kernel",
  restartKernel: "notebook:restart-kernel",
  reconnect: "notebook:reconnect-to-kernel",
  runCell: "notebook:run-cell",
} as const;

export type CommandId =
  | (typeof COMMANDS)[keyof typeof COMMANDS]
  | (typeof JUPYTER_COMMANDS)[keyof typeof JUPYTER_COMMANDS];
