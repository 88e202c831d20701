/** In user units of its box, which the style sheet gives a size. */
const WIDTH = 60;
const HEIGHT = 14;

interface SparklineProps {
  /** The newest last. */
  values: readonly number[];
  /** As many as the whole width holds: fewer begin further right. */
  most: number;
  /** At least so much is the full height. */
  full: number;
}

/** A course without scale, beside the figure that says it in words. */
export function Sparkline({ values, most, full }: SparklineProps) {
  return (
    <svg class="accel-spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      <path class="accel-spark-base" d={`M0 ${HEIGHT - 0.5}H${WIDTH}`} />
      <path class="accel-spark-line" d={pathOf(values, most, full)} />
    </svg>
  );
}

/** Empty for less than two values. */
export function pathOf(values: readonly number[], most: number, full: number): string {
  if (values.length < 2) {
    return "";
  }
  const highest = Math.max(full, ...values);
  const step = WIDTH / (most - 1);
  const points = values.map((value, index) => {
    const x = WIDTH - (values.length - 1 - index) * step;
    return `${x.toFixed(1)} ${(1 + (HEIGHT - 2) * (1 - value / highest)).toFixed(1)}`;
  });
  return `M${points.join("L")}`;
}
