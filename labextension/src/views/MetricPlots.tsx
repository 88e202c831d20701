import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import type { Curve, RunState } from "../protocol/generated";
import { figure } from "../run/words";

/** Plots shown before the user asks for the others. */
export const FIRST_PLOTS = 6;
const HEIGHT_PX = 110;

/** One small plot per logged metric, the newest value beside its name. */
export function MetricPlots({ state }: { state: RunState }) {
  const [all, setAll] = useState(false);
  const curves = Object.entries(state.curves);
  if (curves.length === 0) {
    return null;
  }
  const shown = all ? curves : curves.slice(0, FIRST_PLOTS);
  return (
    <section class="accel-section" aria-label="Metrics">
      <div class="accel-plots">
        {shown.map(([name, curve]) => (
          <MetricPlot key={name} name={name} curve={curve} />
        ))}
      </div>
      {curves.length > FIRST_PLOTS && (
        <button type="button" class="accel-button" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "Fewer metrics" : `All ${curves.length} metrics`}
        </button>
      )}
    </section>
  );
}

function MetricPlot({ name, curve }: { name: string; curve: Curve }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    const element = box.current;
    if (element === null) {
      return undefined;
    }
    const made = new uPlot(options(element), pointsOf(curve), element);
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT_PX }));
    observer.observe(element);
    plot.current = made;
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(pointsOf(curve)), [curve]);
  const value = curve.last === null ? "" : figure(curve.last[1]);
  return (
    <figure class="accel-plot" aria-label={`${name}: ${value} at step ${curve.last?.[0] ?? 0}`}>
      <figcaption>
        <span>{name}</span> <strong>{value}</strong>
      </figcaption>
      <div ref={box} aria-hidden="true" />
    </figure>
  );
}

function pointsOf(curve: Curve): uPlot.AlignedData {
  const newest = curve.last;
  const points = newest === null || newest === curve.points.at(-1) ? curve.points : [...curve.points, newest];
  const inOrder = [...points].sort(([one], [other]) => one - other);
  return [inOrder.map(([step]) => step), inOrder.map(([, value]) => value)];
}

/** Colours are read when it draws, so that they follow the theme. */
function options(element: HTMLElement): uPlot.Options {
  const colour = (name: string) => () => getComputedStyle(element).getPropertyValue(name).trim() || "gray";
  const font = `11px ${getComputedStyle(element).fontFamily || "sans-serif"}`;
  const axis = {
    stroke: colour("--accel-quiet"),
    grid: { stroke: colour("--accel-line"), width: 1 },
    ticks: { show: false },
    font,
  };
  return {
    width: element.clientWidth || 240,
    height: HEIGHT_PX,
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: false } },
    axes: [
      { ...axis, size: 22, values: (_, steps) => steps.map((step) => (Number.isInteger(step) ? String(step) : "")) },
      { ...axis, size: 46, values: (_, values) => values.map((value) => figure(value)) },
    ],
    series: [{}, { stroke: colour("--accel-mark"), width: 1.5, points: { show: false } }],
  };
}
