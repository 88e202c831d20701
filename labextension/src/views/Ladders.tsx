import type { RunState } from "../protocol/generated";
import { type Ladder, type LadderStep, ladders } from "../run/tables";
import { rankRanges } from "../run/words";

/** The batch sizes that were tried, when one did not fit. */
export function Ladders({ state }: { state: RunState }) {
  const shown = ladders(state).filter((ladder) => ladder.steps.length > 1 || ladder.steps[0]?.outcome === "too large");
  return shown.map((ladder) => <OneLadder key={ladder.function} ladder={ladder} />);
}

function OneLadder({ ladder }: { ladder: Ladder }) {
  return (
    <section class="accel-section" aria-label={`Batch sizes of ${ladder.function}`}>
      <h4 class="accel-title">Batch sizes tried by {ladder.function}</h4>
      <ol class="accel-ladder">
        {ladder.steps.map((step, index) => (
          <li key={index} class={`accel-rung accel-rung-${step.outcome.replace(" ", "-")}`} title={step.reason}>
            <strong>{step.batchSize}</strong> {words(step)}
          </li>
        ))}
      </ol>
    </section>
  );
}

function words(step: LadderStep): string {
  switch (step.outcome) {
    case "fits":
      return step.accumulation > 1 ? `✓ fits, accumulation × ${step.accumulation}` : "✓ fits";
    case "too large":
      return step.onRanks.length > 0 ? `✗ too large on rank ${rankRanges(step.onRanks)}` : "✗ too large";
    case "trying":
      return "… trying";
  }
}
