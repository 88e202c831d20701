/** How busy CPU and devices were in the last minutes, for small curves. */
import type { HardwareNow } from "../protocol/generated";

/** As many moments, two seconds apart: two minutes. */
const MOMENTS = 60;

/** "cpu" or "cuda:0" -> values between 0 and 1, the newest last. */
export type Usage = Readonly<Record<string, readonly number[]>>;

export function withUsage(usage: Usage, now: HardwareNow): Usage {
  const values: [string, number][] = [["cpu", now.cpu_utilization]];
  for (const device of now.devices) {
    if (device.utilization !== null) {
      values.push([deviceKey(device.kind, device.index), device.utilization]);
    }
  }
  return Object.fromEntries(values.map(([key, value]) => [key, [...(usage[key] ?? []), value].slice(-MOMENTS)]));
}

export function deviceKey(kind: string, index: number): string {
  return `${kind}:${index}`;
}
