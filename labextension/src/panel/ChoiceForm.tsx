/** What is to be started: options, what they mean in words, and the two buttons. */
import { useContext } from "preact/hooks";
import type { NodeHardware, PlanAnswer } from "../protocol/generated";
import { PanelContext } from "./actions";
import { BACKENDS, type Choice, magicLine, PRECISIONS, ranksMeant } from "./choice";
import { COMMANDS } from "./commandIds";
import { DevicePicker } from "./DevicePicker";
import { CodeLine } from "./ObstacleCard";

interface ChoiceFormProps {
  choice: Choice;
  hardware: NodeHardware;
  /** null: not told yet. */
  plan: PlanAnswer | null;
  /** Whether `plan` is of this choice. */
  planIsCurrent: boolean;
  /** Why the last press of a button was not possible; empty when it was. */
  refusal: string;
}

const PRECISION_WORDS: Record<string, string> = { no: "full", bf16: "bf16", fp16: "fp16" };
const CHECKS = ["default", "always", "never"];

export function ChoiceForm({ choice, hardware, plan, planIsCurrent, refusal }: ChoiceFormProps) {
  const actions = useContext(PanelContext);
  const change = (part: Partial<Choice>) => actions.choose({ ...choice, ...part });
  const meant = ranksMeant(choice, hardware);
  const kinds = ["auto", ...Object.keys(hardware.devices), "cpu"];
  const checks = choice.debug === null ? "default" : choice.debug ? "always" : "never";
  return (
    <>
      <div class="accel-panel-form">
        <RankCount choice={choice} meant={meant} change={change} />
        <Select
          label="Device"
          value={choice.device}
          values={kinds}
          change={(device) => change({ device, devices: null })}
        />
        <DevicePicker choice={choice} hardware={hardware} change={change} />
        <Select
          label="Precision"
          value={choice.mixed_precision}
          values={PRECISIONS}
          words={PRECISION_WORDS}
          change={(mixed_precision) => change({ mixed_precision })}
        />
        <Select
          label="Checks"
          title="Compare the ranks' operations before they run: where that is cheap, always, or never"
          value={checks}
          values={CHECKS}
          change={(value) => change({ debug: value === "default" ? null : value === "always" })}
        />
        <Select
          label="Backend"
          title="What starts the ranks"
          value={choice.backend}
          values={BACKENDS}
          change={(backend) => change({ backend })}
        />
      </div>
      <PlanText plan={plan} isCurrent={planIsCurrent} />
      <CodeLine code={magicLine(choice)} />
      <div class="accel-panel-buttons">
        <button
          type="button"
          class="accel-panel-button"
          title="Put a cell with this line below the active cell"
          onClick={() => actions.execute(COMMANDS.insertCell)}
        >
          Insert cell
        </button>
        <button
          type="button"
          class="accel-panel-button accel-panel-main"
          title="Put this line on top of the active cell, and run it"
          onClick={() => actions.execute(COMMANDS.runCell)}
        >
          Run this cell on {meant} {meant === 1 ? "rank" : "ranks"}
        </button>
      </div>
      {refusal !== "" && (
        <p class="accel-panel-warning" role="alert">
          {refusal}
        </p>
      )}
    </>
  );
}

interface RankCountProps {
  choice: Choice;
  meant: number;
  change: (part: Partial<Choice>) => void;
}

function RankCount({ choice, meant, change }: RankCountProps) {
  const set = (count: number | null) => change({ num_processes: count });
  const typed = (text: string) => {
    const count = Number(text);
    if (text === "" || (Number.isSafeInteger(count) && count > 0)) {
      set(text === "" ? null : count);
    }
  };
  return (
    <label class="accel-panel-field">
      <span>Ranks</span>
      <span class="accel-panel-stepper">
        <button type="button" aria-label="One rank less" disabled={meant <= 1} onClick={() => set(meant - 1)}>
          −
        </button>
        <input
          type="number"
          min={1}
          aria-label="Number of ranks"
          placeholder={`auto: ${meant}`}
          value={choice.num_processes ?? ""}
          onInput={(event) => typed(event.currentTarget.value)}
        />
        <button type="button" aria-label="One rank more" onClick={() => set(meant + 1)}>
          +
        </button>
      </span>
    </label>
  );
}

interface SelectProps {
  label: string;
  title?: string;
  value: string;
  values: readonly string[];
  words?: Record<string, string>;
  change: (value: string) => void;
}

function Select({ label, title, value, values, words = {}, change }: SelectProps) {
  // One that only the notebook's metadata know is shown for what it is.
  const offered = values.includes(value) ? values : [...values, value];
  return (
    <label class="accel-panel-field" title={title}>
      <span>{label}</span>
      <select aria-label={label} value={value} onChange={(event) => change(event.currentTarget.value)}>
        {offered.map((one) => (
          <option key={one} value={one} selected={one === value}>
            {words[one] ?? one}
          </option>
        ))}
      </select>
    </label>
  );
}

function PlanText({ plan, isCurrent }: { plan: PlanAnswer | null; isCurrent: boolean }) {
  const old = isCurrent ? "" : " accel-panel-old";
  if (plan === null) {
    return <p class="accel-panel-plan accel-panel-old">Asking what would start …</p>;
  }
  if (plan.problem !== "") {
    return (
      <p class={`accel-panel-warning${old}`} role="alert">
        {plan.problem}
      </p>
    );
  }
  return (
    <div class={`accel-panel-plan${old}`} role="status" aria-label="What will start">
      <p>{plan.line}</p>
      {plan.reasons.length > 0 && (
        <details>
          <summary>Why</summary>
          <ul>
            {plan.reasons.map((reason) => (
              <li key={reason}>{reason}</li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}
