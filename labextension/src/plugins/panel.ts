/** Puts the panel beside the notebooks, and wires it to them, to the settings and to the commands. */
import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";
import { INotebookTracker } from "@jupyterlab/notebook";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { copyText } from "../comm/clipboard";
import { Notebooks } from "../notebook/notebooks";
import { PanelModel } from "../panel/model";
import { PanelWidget } from "../panel/panelWidget";
import { addCommands, PRESSED } from "./commands";
import { tellEnds } from "./endNotices";
import { followSettings } from "./settings";

/** JupyterLab finds the settings' schema by it. */
export const PLUGIN_ID = "accel-nb:panel";

export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: "Shows what a notebook's kernel can train on, and its runs.",
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ICommandPalette, ISettingRegistry, ILayoutRestorer],
  activate,
};

function activate(
  app: JupyterFrontEnd,
  tracker: INotebookTracker,
  palette: ICommandPalette | null,
  registry: ISettingRegistry | null,
  restorer: ILayoutRestorer | null,
): void {
  const model = new PanelModel();
  const notebooks = new Notebooks(tracker, (notebook, run) => tellEnds(app, notebook, run, settings.now));
  const settings = followSettings(registry, PLUGIN_ID, model, notebooks);
  const panel = new PanelWidget(model, {
    execute: (command, args) => void app.commands.execute(command, { [PRESSED]: true, ...args }),
    choose: (choice) => notebooks.current?.choose(choice),
    copy: copyText,
  });
  addCommands(app, palette, { model, notebooks, panelId: panel.id });
  const follow = () => model.follow(notebooks.current);
  tracker.currentChanged.connect(follow);
  follow();
  app.shell.add(panel, "right", { rank: 600, type: "Accelerate" });
  restorer?.add(panel, panel.id);
}
