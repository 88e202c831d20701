/** How busy CPU and devices were in the last minutes, for small curves. */
import type { HardwareNow } from "../protocol/generated";

/** As many moments, two seconds apart: two minutes. */
const MOMENTS = 60;
/** What is older is not shown beside what is newer: a page at which nobody looked has heard nothing. */
const GAP_S = 120;

/** "cpu" or "cuda:0" -> values between 0 and 1, the newest last. */
export type Usage = Readonly<Record<string, readonly number[]>>;

/** `before`: what had been told before `now`, maybe the same. */
export function withUsage(usage: Usage, before: HardwareNow | null, now: HardwareNow): Usage {
  const passedS = before === null ? 0 : now.time_s - before.time_s;
  if (before !== null && passedS === 0) {
    return usage;
  }
  const kept = passedS > GAP_S ? {} : usage;
  const values: [string, number][] = [["cpu", now.cpu_utilization]];
  for (const device of now.devices) {
    if (device.utilization !== null) {
      values.push([deviceKey(device.kind, device.index), device.utilization]);
    }
  }
  return Object.fromEntries(values.map(([key, value]) => [key, [...(kept[key] ?? []), value].slice(-MOMENTS)]));
}

export function deviceKey(kind: string, index: number): string {
  return `${kind}:${index}`;
}
