/** What is to be started: options, what they mean in words, and the two buttons. */
import { useContext, useState } from "preact/hooks";
import type { NodeHardware, PlanAnswer, SettingsFile } from "../protocol/generated";
import { PanelContext } from "./actions";
import { BACKENDS, type Choice, DEFAULTS, magicLine, PRECISIONS, ranksMeant, withSettings } from "./choice";
import { COMMANDS } from "./commandIds";
import { DevicePicker } from "./DevicePicker";
import { CodeLine } from "./ObstacleCard";

interface ChoiceFormProps {
  choice: Choice;
  hardware: NodeHardware;
  /** null: there is no such file. */
  settings: SettingsFile | null;
  /** null: not told yet. */
  plan: PlanAnswer | null;
  /** Whether `plan` is of this choice. */
  planIsCurrent: boolean;
  /** Why the last press of a button was not possible; empty when it was. */
  refusal: string;
  /** How often that was so: each time it is told anew. */
  numRefusals: number;
}

const PRECISION_WORDS: Record<string, string> = { no: "full", bf16: "bf16", fp16: "fp16" };
const CHECKS = ["always", "never"];
const RANKS_ID = "accel-nb-num-ranks";

export function ChoiceForm({ choice, hardware, settings, plan, planIsCurrent, refusal, numRefusals }: ChoiceFormProps) {
  const actions = useContext(PanelContext);
  const change = (part: Partial<Choice>) => actions.choose({ ...choice, ...part });
  const all = withSettings(choice, settings);
  const meant = ranksMeant(all, hardware);
  const kinds = [DEFAULTS.device, ...Object.keys(hardware.devices), "cpu"];
  /** What the file says of it, if that counts as long as nothing is chosen. */
  const kept = <Name extends keyof Choice>(name: Name) => withSettings({ ...choice, [name]: null }, settings)[name];
  return (
    <>
      <div class="accel-panel-form">
        <RankCount chosen={choice.num_processes} kept={kept("num_processes")} meant={meant} change={change} />
        <Select
          label="Device"
          chosen={choice.device}
          kept={kept("device")}
          usual={DEFAULTS.device}
          values={kinds}
          change={(device) => change({ device, devices: null })}
        />
        <DevicePicker choice={all} areKept={kept("devices") !== null} hardware={hardware} change={change} />
        <Select
          label="Precision"
          chosen={choice.mixed_precision}
          kept={kept("mixed_precision")}
          usual={DEFAULTS.mixed_precision}
          values={PRECISIONS}
          words={PRECISION_WORDS}
          change={(mixed_precision) => change({ mixed_precision })}
        />
        <Select
          label="Checks"
          title="Compare the ranks' operations before they run: where that is cheap, always, or never"
          chosen={checksWord(choice.debug)}
          kept={checksWord(kept("debug"))}
          usual="default"
          values={CHECKS}
          change={(value) => change({ debug: value === null ? null : value === "always" })}
        />
        <Select
          label="Backend"
          title="What starts the ranks"
          chosen={choice.backend}
          kept={kept("backend")}
          usual={DEFAULTS.backend}
          values={BACKENDS}
          change={(backend) => change({ backend })}
        />
      </div>
      {settings !== null && <FileNote settings={settings} />}
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
        <p key={numRefusals} class="accel-panel-warning" role="alert" ref={scrollTo}>
          {refusal}
        </p>
      )}
    </>
  );
}

/** It may lie below what can be seen. */
function scrollTo(node: Element | null): void {
  node?.scrollIntoView({ block: "nearest" });
}

function checksWord(debug: boolean | null): string | null {
  return debug === null ? null : debug ? "always" : "never";
}

/** Where values come from that nobody has chosen here. */
function FileNote({ settings: { path, problem } }: { settings: SettingsFile }) {
  if (problem !== "") {
    return null; // the plan's text is this
  }
  return (
    <p class="accel-panel-plan">
      file: <code title={path}>{path}</code>
    </p>
  );
}

interface RankCountProps {
  chosen: number | null;
  /** What the settings file says; null: nothing. */
  kept: number | null;
  meant: number;
  change: (part: Partial<Choice>) => void;
}

function RankCount({ chosen, kept, meant, change }: RankCountProps) {
  /** What stands in the field and is no number of ranks; null: there is no such. */
  const [wrong, setWrong] = useState<string | null>(null);
  const set = (count: number | null) => {
    setWrong(null);
    change({ num_processes: count });
  };
  const typed = ({ value, validity }: HTMLInputElement) => {
    const count = Number(value);
    if (value === "" && !validity.badInput) {
      set(null);
    } else if (Number.isSafeInteger(count) && count > 0) {
      set(count);
    } else {
      setWrong(value);
    }
  };
  return (
    <>
      <div class="accel-panel-field">
        <label for={RANKS_ID}>Ranks</label>
        <span class="accel-panel-stepper">
          <button type="button" aria-label="One rank less" disabled={meant <= 1} onClick={() => set(meant - 1)}>
            −
          </button>
          <input
            id={RANKS_ID}
            type="number"
            min={1}
            aria-label="Number of ranks"
            aria-invalid={wrong !== null}
            placeholder={`${kept === null ? "auto" : "file"}: ${meant}`}
            value={wrong ?? chosen ?? ""}
            onInput={(event) => typed(event.currentTarget)}
            onBlur={() => setWrong(null)}
          />
          <button type="button" aria-label="One rank more" onClick={() => set(meant + 1)}>
            +
          </button>
        </span>
      </div>
      {wrong !== null && (
        <p class="accel-panel-warning" role="alert">
          {wrong === "" ? "That" : wrong} is no number of ranks: give a whole number of at least 1, or nothing. It stays{" "}
          {meant}.
        </p>
      )}
    </>
  );
}

interface SelectProps {
  label: string;
  title?: string;
  /** null: nothing. */
  chosen: string | null;
  /** What the settings file says; null: nothing. */
  kept: string | null;
  /** What the launcher takes where neither says anything. */
  usual: string;
  values: readonly string[];
  words?: Record<string, string>;
  /** null: the choice is taken back. */
  change: (value: string | null) => void;
}

function Select({ label, title, chosen, kept, usual, values, words = {}, change }: SelectProps) {
  const unchosen = kept ?? usual;
  const word = (value: string) => words[value] ?? value;
  // One that only the notebook's metadata know is shown for what it is.
  const offered = new Set([...values.filter((value) => value !== unchosen), ...(chosen === null ? [] : [chosen])]);
  return (
    <label class="accel-panel-field" title={title}>
      <span>{label}</span>
      <select
        aria-label={label}
        value={chosen ?? ""}
        onChange={(event) => change(event.currentTarget.value === "" ? null : event.currentTarget.value)}
      >
        <option value="" selected={chosen === null}>
          {word(unchosen) + (kept === null ? "" : " (file)")}
        </option>
        {[...offered].map((one) => (
          <option key={one} value={one} selected={one === chosen}>
            {word(one)}
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
