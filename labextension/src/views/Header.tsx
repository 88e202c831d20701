import { useContext, useEffect, useState } from "preact/hooks";
import type { Shown } from "../comm/feed";
import { hasEnded } from "../run/state";
import { clock, ranksText, statusText } from "../run/words";
import { ActionsContext } from "./actions";

const CUT_OFF = { sign: "⊘", word: "cut off" };

interface HeaderProps {
  shown: Shown;
  /** As `RunView` takes it. */
  isStopping: boolean | undefined;
}

/** Function, ranks, precision, elapsed time, state; Stop and Stacks. */
export function Header({ shown, isStopping }: HeaderProps) {
  const { state } = shown;
  const isCutOff = shown.cutOff && !hasEnded(state);
  const { sign, word } = isCutOff ? CUT_OFF : statusText(state.status);
  return (
    <header class="accel-header">
      <span class={`accel-status accel-status-${isCutOff ? "stopped" : state.status}`} role="status">
        <span aria-hidden="true">{sign}</span> {word}
      </span>
      <strong class="accel-function">{state.plan?.function_name ?? "…"}</strong>
      {state.plan !== null && <span>{ranksText(state.plan)}</span>}
      {state.plan !== null && state.plan.mixed_precision !== "no" && <span>{state.plan.mixed_precision}</span>}
      {state.attempt > 0 && <span>attempt {state.attempt + 1}</span>}
      <Elapsed shown={shown} />
      <span class="accel-spring" />
      {!hasEnded(state) && !isCutOff && <Buttons shown={shown} isStopping={isStopping} />}
    </header>
  );
}

function Elapsed({ shown }: { shown: Shown }) {
  const ended = hasEnded(shown.state);
  const [nowS, setNowS] = useState(() => Date.now() / 1000);
  useEffect(() => {
    if (ended || shown.cutOff) {
      return undefined;
    }
    const timer = setInterval(() => setNowS(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, [ended, shown.cutOff]);
  const begun = shown.startedS > 0;
  const elapsedS = ended ? shown.state.duration_s : begun ? nowS + shown.clockAheadS - shown.startedS : 0;
  return (
    <time class="accel-elapsed" title="Since the start of the run">
      {clock(elapsedS)}
    </time>
  );
}

function Buttons({ shown, isStopping }: HeaderProps) {
  const actions = useContext(ActionsContext);
  const [pressed, setPressed] = useState(false);
  const stopping = (isStopping ?? pressed) || shown.state.status === "stopping";
  const later = shown.canHear
    ? undefined
    : "This kernel hears it when the cell yields; Jupyter's own interrupt acts at once.";
  const stop = () => {
    setPressed(true);
    actions.stop(stopping);
  };
  return (
    <span class="accel-buttons" title={later}>
      <button type="button" class="accel-button" onClick={() => actions.askForStacks()} title="Where every rank is now">
        Stacks
      </button>
      <button
        type="button"
        class="accel-button accel-stop"
        onClick={stop}
        title={stopping ? "End the ranks at once" : "End the run"}
      >
        <span aria-hidden="true">■</span> {stopping ? "Stop now" : "Stop"}
      </button>
      {later !== undefined && <small class="accel-note">Stop waits for the cell: use the toolbar's interrupt.</small>}
    </span>
  );
}
