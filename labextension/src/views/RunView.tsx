import type { Shown } from "../comm/feed";
import { hasEnded, ranksInOrder } from "../run/state";
import { headerText } from "../run/words";
import { type Actions, ActionsContext } from "./actions";
import { FailureCard } from "./FailureCard";
import { Header } from "./Header";
import { Ladders } from "./Ladders";
import { LogPane } from "./LogPane";
import { MetricPlots } from "./MetricPlots";
import { MismatchTable } from "./MismatchTable";
import { RankTable } from "./RankTable";
import { StackList } from "./StackTexts";

interface RunViewProps {
  shown: Shown;
  actions: Actions;
  /** Whether the next press of Stop is the second one; left out: it is after the first. */
  isStopping?: boolean | undefined;
}

/** All of one run. In a cell and in the panel alike. */
export function RunView({ shown, actions, isStopping }: RunViewProps) {
  const { state } = shown;
  return (
    <ActionsContext.Provider value={actions}>
      <article class="accel-run" aria-label={`Run of ${state.plan?.function_name ?? "a function"}`}>
        <Header shown={shown} isStopping={isStopping} />
        {state.header !== null && <p class="accel-words accel-note">{headerText(state.header)}</p>}
        {warnings(shown).map((text) => (
          <p key={text} class="accel-warning" role="alert">
            <span aria-hidden="true">⚠</span> {text}
          </p>
        ))}
        {state.mismatch !== null && <MismatchTable mismatch={state.mismatch} />}
        <FailureCard state={state} />
        <RankTable state={state} />
        <Ladders state={state} />
        <MetricPlots state={state} />
        {shown.stacks !== null && <StackList stacks={shown.stacks} />}
        <LogPane log={shown.log} ranks={ranksInOrder(state).map(([rank]) => rank)} ended={hasEnded(state)} />
      </article>
    </ActionsContext.Provider>
  );
}

function warnings({ state, cutOff }: Shown): string[] {
  if (hasEnded(state)) {
    return [];
  }
  if (cutOff) {
    return [
      "The kernel is gone, or the connection to it. Below is the last that it told; ranks end with their kernel.",
    ];
  }
  const stragglers = ranksInOrder(state).map(([, rank]) => rank.straggler?.text);
  return [state.stalled?.text, state.host_memory?.text, ...stragglers].filter((text) => text !== undefined);
}
