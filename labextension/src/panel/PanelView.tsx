/** All of the panel. */
import { type ComponentChildren, createContext } from "preact";
import { useContext, useState } from "preact/hooks";
import { type PanelActions, PanelContext } from "./actions";
import { ChoiceForm } from "./ChoiceForm";
import { HardwareCards } from "./HardwareCards";
import type { PanelShown } from "./model";
import { CodeLine, ObstacleCard } from "./ObstacleCard";
import { RunList } from "./RunList";
import { goesOn } from "./runs";
import type { Heard } from "./talk";
import { obstacle, versionWarning } from "./words";

interface PanelViewProps {
  shown: PanelShown;
  actions: PanelActions;
}

/** Sections that the person has folded stay so while there is nothing to show, and for the next notebook. */
const Folded = createContext({ names: new Set<string>(), fold(_name: string, _isFolded: boolean) {} });

export function PanelView({ shown, actions }: PanelViewProps) {
  const inTheWay = obstacle(shown.notebook, shown.heard);
  const [names, setNames] = useState(new Set<string>());
  const fold = (name: string, isFolded: boolean) =>
    setNames((before) => {
      const others = [...before].filter((one) => one !== name);
      return before.has(name) === isFolded ? before : new Set(isFolded ? [...others, name] : others);
    });
  return (
    <PanelContext.Provider value={actions}>
      <Folded.Provider value={{ names, fold }}>
        <Title shown={shown} />
        {inTheWay !== null && <ObstacleCard obstacle={inTheWay} />}
        {inTheWay === null && shown.heard !== null && <Sections shown={shown} heard={shown.heard} />}
      </Folded.Provider>
    </PanelContext.Provider>
  );
}

function Title({ shown: { notebook, heard } }: { shown: PanelShown }) {
  if (notebook === null) {
    return null;
  }
  const executes = heard?.link === "alive" && heard.executes;
  return (
    <header class="accel-panel-title">
      <span class="accel-panel-notebook" title={notebook}>
        {notebook}
      </span>
      {executes && (
        <span class="accel-panel-busy" role="status" title="Cells that you start now wait until it has ended.">
          <span aria-hidden="true">●</span> a cell is running
        </span>
      )}
    </header>
  );
}

function Sections({ shown, heard }: { shown: PanelShown; heard: Heard }) {
  const { facts, runs, problem } = heard;
  const { settings } = shown;
  if (facts === null) {
    return null;
  }
  const mismatch = versionWarning(facts.version);
  const numGoingOn = runs.filter(goesOn).length;
  return (
    <>
      {mismatch !== null && (
        <div class="accel-panel-warning" role="alert">
          <p>{mismatch.text}</p>
          <CodeLine code={mismatch.code} />
        </div>
      )}
      {problem !== "" && (
        <p class="accel-panel-warning" role="alert">
          {problem}
        </p>
      )}
      {settings.showHardware && (
        <Section name="Hardware" note={facts.hardware.host}>
          <HardwareCards facts={facts} now={heard.now} usage={heard.usage} />
        </Section>
      )}
      {settings.showStart && (
        <Section name="Start">
          <ChoiceForm
            choice={shown.choice}
            hardware={facts.hardware}
            settings={facts.settings ?? null}
            plan={heard.plan}
            planIsCurrent={heard.planIsCurrent}
            refusal={shown.refusal}
            numRefusals={shown.numRefusals}
          />
        </Section>
      )}
      {settings.showRuns && (
        <Section name="Runs" note={numGoingOn > 0 ? `${numGoingOn} under way` : ""}>
          <RunList runs={runs} clockAheadS={heard.clockAheadS} stopping={heard.stopping} openRun={shown.openRun} />
        </Section>
      )}
    </>
  );
}

function Section({ name, note = "", children }: { name: string; note?: string; children: ComponentChildren }) {
  const { names, fold } = useContext(Folded);
  return (
    <details
      class="accel-panel-section"
      open={!names.has(name)}
      onToggle={({ currentTarget }) => fold(name, !currentTarget.open)}
    >
      <summary class="accel-panel-summary">
        <h3>{name}</h3>
        {note !== "" && <small title={note}>{note}</small>}
      </summary>
      <section class="accel-panel-body" aria-label={name}>
        {children}
      </section>
    </details>
  );
}
