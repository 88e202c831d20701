/** All of the panel. */
import type { ComponentChildren } from "preact";
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

export function PanelView({ shown, actions }: PanelViewProps) {
  const inTheWay = obstacle(shown.notebook, shown.heard);
  return (
    <PanelContext.Provider value={actions}>
      <Title shown={shown} />
      {inTheWay !== null && <ObstacleCard obstacle={inTheWay} />}
      {inTheWay === null && shown.heard !== null && <Sections shown={shown} heard={shown.heard} />}
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
  return (
    <details class="accel-panel-section" open>
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
