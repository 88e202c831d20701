/** The commands. Each acts on the notebook in front; those of a run on the one that is named, else on the newest. */
import type { JupyterFrontEnd } from "@jupyterlab/application";
import { type ICommandPalette, Notification } from "@jupyterlab/apputils";
import type { LabNotebook } from "../notebook/labNotebook";
import type { Notebooks } from "../notebook/notebooks";
import type { CommandArguments } from "../panel/actions";
import { COMMANDS, JUPYTER_COMMANDS } from "../panel/commandIds";
import type { PanelModel } from "../panel/model";
import { PANEL_ICON } from "../panel/panelWidget";
import { goesOn, newestGoingOn } from "../panel/runs";
import type { RunSummary } from "../protocol/generated";

/** Not for the palette or keys: that a button of the panel was pressed, beside which there is room for a sentence. */
export const PRESSED = "isPressedInPanel";

interface Parts {
  model: PanelModel;
  notebooks: Notebooks;
  panelId: string;
}

interface CommandText {
  label: string;
  caption: string;
  /** Whether it is possible now. */
  if?: (notebook: LabNotebook) => boolean;
}

const TEXTS: Record<(typeof COMMANDS)[keyof typeof COMMANDS], CommandText> = {
  [COMMANDS.openPanel]: { label: "Accelerate Panel", caption: "Show hardware and runs of this notebook's kernel" },
  [COMMANDS.loadExtension]: {
    label: "Load accel_nb in the Kernel",
    caption: "Run %load_ext accel_nb in the kernel of this notebook",
    if: ({ talk }) => talk?.mayBePython === true,
  },
  [COMMANDS.insertCell]: {
    label: "Insert Cell for All Ranks",
    caption: "Put a %%accelerate cell with the panel's choice below the active cell",
    if: takesLine,
  },
  [COMMANDS.runCell]: {
    label: "Run This Cell on All Ranks",
    caption: "Put the panel's %%accelerate line on top of the active cell, and run it",
    if: takesLine,
  },
  [COMMANDS.stopRun]: { label: "Stop Run", caption: "End the ranks; a second time at once", if: hasRunGoingOn },
  [COMMANDS.showStacks]: { label: "Show Stacks of Run", caption: "Where every rank is now", if: hasRunGoingOn },
  [COMMANDS.showRun]: { label: "Show Run", caption: "Show the newest run in the panel", if: hasRun },
  [COMMANDS.jumpToCell]: { label: "Go to Cell of Run", caption: "Show the cell that started the run", if: hasRun },
  [COMMANDS.askAgain]: {
    label: "Ask the Kernel for accel_nb Again",
    caption: "Ask the kernel whether it has loaded accel_nb",
    if: ({ talk }) => talk?.mayBePython === true,
  },
};

export function addCommands(app: JupyterFrontEnd, palette: ICommandPalette | null, parts: Parts): void {
  const acts = actions(app, parts);
  for (const id of Object.values(COMMANDS)) {
    const { label, caption, if: isPossible } = TEXTS[id];
    const options = {
      label,
      caption,
      isEnabled: () => {
        const notebook = parts.notebooks.current;
        return isPossible === undefined || (notebook !== null && isPossible(notebook));
      },
      execute: (args: { readonly [name: string]: unknown }) =>
        acts[id]?.({
          ...(typeof args.runId === "string" ? { runId: args.runId } : {}),
          now: args.now === true,
          isPressed: args[PRESSED] === true,
        }),
      describedBy: {
        args: {
          type: "object",
          properties: {
            runId: { type: "string", description: "The run; left out: the newest." },
            now: { type: "boolean", description: "Of a stop: end the ranks at once, also with the first." },
          },
        },
      },
    };
    app.commands.addCommand(id, id === COMMANDS.openPanel ? { ...options, icon: PANEL_ICON } : options);
    palette?.addItem({ command: id, category: "Accelerate" });
  }
}

type Act = (args: CommandArguments & { isPressed: boolean }) => unknown;

function actions(app: JupyterFrontEnd, { model, notebooks, panelId }: Parts): Record<string, Act> {
  type ActOfRun = (notebook: LabNotebook, run: RunSummary, args: CommandArguments) => unknown;
  const ofRun = (act: ActOfRun, onlyGoingOn: boolean): Act => {
    return (args) => {
      const notebook = notebooks.current;
      const run = notebook && findRun(notebook, args.runId, onlyGoingOn);
      return notebook && run && act(notebook, run, args);
    };
  };
  return {
    [COMMANDS.openPanel]: () => app.shell.activateById(panelId),
    [COMMANDS.loadExtension]: () => notebooks.current?.talk?.loadExtension(),
    [COMMANDS.askAgain]: () => notebooks.current?.talk?.askAgain(),
    [COMMANDS.insertCell]: () => {
      model.refuse("");
      return notebooks.current?.insertCell();
    },
    [COMMANDS.runCell]: ({ isPressed }) =>
      runCell(app, notebooks.current, (why) => {
        model.refuse(why);
        // Of the panel, whoever uses the palette or a key may see any part or none.
        if (why !== "" && !isPressed) {
          Notification.warning(why);
        }
      }),
    [COMMANDS.stopRun]: ofRun(({ talk }, run, { now }) => talk?.stop(run.run_id, now === true), true),
    [COMMANDS.showStacks]: ofRun(({ talk }, run) => {
      app.shell.activateById(panelId);
      model.showRun(run.run_id);
      return talk?.askForStacks(run.run_id);
    }, true),
    [COMMANDS.showRun]: ofRun((_, run, { runId }) => {
      // Who names the run that is shown presses its title again, to hide it. The palette names none.
      const hides = runId !== undefined && model.shown.openRun?.runId === run.run_id;
      app.shell.activateById(panelId);
      model.showRun(hides ? null : run.run_id);
    }, false),
    [COMMANDS.jumpToCell]: ofRun(async (notebook, run) => {
      app.shell.activateById(notebook.panel.id);
      if (!(await notebook.jumpTo(run))) {
        Notification.warning(`The cell that started ${run.function_name} is not in ${notebook.name} any more.`);
      }
    }, false),
  };
}

async function runCell(
  app: JupyterFrontEnd,
  notebook: LabNotebook | null,
  refuse: (why: string) => void,
): Promise<void> {
  const problem = notebook?.putLine() ?? "";
  refuse(problem);
  if (problem === "" && notebook !== null) {
    if (notebook.talk?.heard.answer !== "ready") {
      // The shell takes one after the other: the cell finds it loaded.
      void notebook.talk?.loadExtension();
    }
    await app.commands.execute(JUPYTER_COMMANDS.runCell);
  }
}

function findRun(notebook: LabNotebook, runId: string | undefined, onlyGoingOn: boolean): RunSummary | null {
  const runs = notebook.talk?.heard.runs ?? [];
  if (runId !== undefined) {
    return runs.find((run) => run.run_id === runId) ?? null;
  }
  return newestGoingOn(runs) ?? (onlyGoingOn ? null : (runs.at(-1) ?? null));
}

/** Also without a kernel: that of the cell is chosen then. */
function takesLine({ talk }: LabNotebook): boolean {
  return talk?.mayBePython !== false;
}

function hasRun({ talk }: LabNotebook): boolean {
  return (talk?.heard.runs.length ?? 0) > 0;
}

function hasRunGoingOn({ talk }: LabNotebook): boolean {
  return talk?.heard.runs.some(goesOn) === true;
}
