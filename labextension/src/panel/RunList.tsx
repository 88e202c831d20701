/** The runs of this kernel: those that go on first. One of them may be shown whole. */
import { useContext, useEffect, useRef, useState } from "preact/hooks";
import type { Shown } from "../comm/feed";
import type { RunSummary } from "../protocol/generated";
import { clock } from "../run/words";
import type { Actions } from "../views/actions";
import { RunView } from "../views/RunView";
import { PanelContext } from "./actions";
import { COMMANDS } from "./commandIds";
import { asFarAs, goesOn, inOrder, ranksOf, runStatusText } from "./runs";

interface RunListProps {
  runs: readonly RunSummary[];
  /** As `Heard` has it. */
  clockAheadS: number;
  /** Those that somebody here has asked to stop. */
  stopping: ReadonlySet<string>;
  openRun: { runId: string; shown: Shown } | null;
}

export function RunList({ runs, clockAheadS, stopping, openRun }: RunListProps) {
  if (runs.length === 0) {
    return <p class="accel-panel-note">None yet in this kernel.</p>;
  }
  return (
    <ol class="accel-panel-runs">
      {inOrder(runs).map((listed) => {
        const shown = openRun?.runId === listed.run_id ? openRun.shown : null;
        const run = shown === null ? listed : asFarAs(listed, shown.state.status);
        return (
          <RunItem
            key={run.run_id}
            run={run}
            clockAheadS={clockAheadS}
            isStopping={run.status === "stopping" || stopping.has(run.run_id)}
            shown={shown}
          />
        );
      })}
    </ol>
  );
}

interface RunItemProps {
  run: RunSummary;
  clockAheadS: number;
  isStopping: boolean;
  /** null: it is closed. */
  shown: Shown | null;
}

function RunItem({ run, clockAheadS, isStopping, shown }: RunItemProps) {
  const actions = useContext(PanelContext);
  const { sign, word } = runStatusText(run.status);
  const isOpen = shown !== null;
  return (
    <li class={`accel-panel-run accel-panel-run-${run.status}`} data-run-id={run.run_id}>
      <button
        type="button"
        class="accel-panel-run-title"
        aria-expanded={isOpen}
        aria-label={`${run.function_name}, ${word}: ${isOpen ? "hide" : "show"} the run`}
        onClick={() => actions.execute(COMMANDS.showRun, { runId: run.run_id })}
      >
        <span class="accel-panel-caret" aria-hidden="true">
          {isOpen ? "▾" : "▸"}
        </span>
        <strong class="accel-panel-function">{run.function_name}</strong>
        <span class={`accel-panel-status accel-panel-status-${run.status}`}>
          <span aria-hidden="true">{sign}</span> {word}
        </span>
        <span class="accel-panel-run-facts">
          {ranksOf(run)} · <Took run={run} clockAheadS={clockAheadS} />
          {run.cell !== "" && !run.function_name.endsWith(run.cell) && ` · ${run.cell}`}
        </span>
      </button>
      {run.headline !== "" && !isOpen && <p class="accel-panel-headline">{run.headline}</p>}
      <RunButtons run={run} isStopping={isStopping} />
      {shown !== null && <OpenRun run={run} isStopping={isStopping} shown={shown} />}
    </li>
  );
}

function RunButtons({ run, isStopping }: { run: RunSummary; isStopping: boolean }) {
  const actions = useContext(PanelContext);
  const name = run.function_name;
  const runs = goesOn(run);
  const hasCell = run.cell !== "" || run.cell_id !== "";
  if (!runs && !hasCell) {
    return null;
  }
  return (
    <div class="accel-panel-buttons accel-panel-small">
      {runs && (
        <button
          type="button"
          class="accel-panel-button accel-panel-stop"
          aria-label={isStopping ? `Stop ${name} now` : `Stop ${name}`}
          title={isStopping ? "End the ranks at once" : "End the run"}
          onClick={() => actions.execute(COMMANDS.stopRun, { runId: run.run_id, now: isStopping })}
        >
          <span aria-hidden="true">■</span> {isStopping ? "Stop now" : "Stop"}
        </button>
      )}
      {runs && (
        <button
          type="button"
          class="accel-panel-button"
          aria-label={`Stacks of ${name}`}
          title="Where every rank is now"
          onClick={() => actions.execute(COMMANDS.showStacks, { runId: run.run_id })}
        >
          Stacks
        </button>
      )}
      {hasCell && (
        <button
          type="button"
          class="accel-panel-button"
          aria-label={`Go to the cell of ${name}`}
          onClick={() => actions.execute(COMMANDS.jumpToCell, { runId: run.run_id })}
        >
          Go to cell
        </button>
      )}
    </div>
  );
}

function OpenRun({ run, isStopping, shown }: { run: RunSummary; isStopping: boolean; shown: Shown }) {
  const actions = useContext(PanelContext);
  const ofRun: Actions = {
    stop: (now) => actions.execute(COMMANDS.stopRun, { runId: run.run_id, now }),
    askForStacks: () => actions.execute(COMMANDS.showStacks, { runId: run.run_id }),
    copy: (text) => actions.copy(text),
  };
  const node = useRef<HTMLDivElement>(null);
  const shownStacks = useRef(shown.stacks);
  useEffect(() => {
    // Whoever has asked for them wants to see them: plots may lie above.
    if (shown.stacks !== shownStacks.current) {
      shownStacks.current = shown.stacks;
      node.current?.querySelector("[aria-label=Stacks]")?.scrollIntoView({ block: "nearest" });
    }
  }, [shown.stacks]);
  return (
    <div class="accel-panel-open" ref={node}>
      <RunView shown={shown} actions={ofRun} isStopping={isStopping} />
      {run.log_dir !== "" && (
        <p class="accel-panel-note">
          Logs in <code>{run.log_dir}</code>
        </p>
      )}
    </div>
  );
}

/** Counts on by itself: the list itself comes only when a run begins or ends. */
function Took({ run, clockAheadS }: { run: RunSummary; clockAheadS: number }) {
  const { duration_s: durationS, started_s: startedS } = run;
  const [nowS, setNowS] = useState(() => Date.now() / 1000);
  useEffect(() => {
    if (durationS !== null) {
      return undefined;
    }
    const timer = setInterval(() => setNowS(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, [durationS]);
  return <time>{clock(durationS ?? nowS + clockAheadS - startedS)}</time>;
}
