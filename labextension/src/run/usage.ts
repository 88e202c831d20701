/** What a rank takes of the machine, in words. */
import type { RankState, RankUsage } from "../protocol/generated";
import { bytes } from "./words";

export interface UsageText {
  /** "7.0 / 80 GiB" of its device, "1.2 GiB" of the machine. */
  memory: string;
  /** "75%", of a device's time, or of one CPU: then it may be beyond 100. */
  busy: string;
  /** All that is known, as a sentence. */
  details: string;
}

/** undefined: not known yet. */
export function usageText(rank: RankState): UsageText | undefined {
  const { usage } = rank;
  if (usage === null) {
    return undefined;
  }
  const total = usage.device_memory_bytes ?? 0;
  const busy = usage.device_utilization ?? usage.cpus;
  return {
    memory: total > 0 ? ofTotal(heldOf(usage), total) : bytes(usage.memory_bytes),
    busy: `${Math.round(100 * busy)}%`,
    details: detailsOf(rank, usage),
  };
}

function detailsOf(rank: RankState, usage: RankUsage): string {
  const parts = [
    `${usage.cpus} CPUs busy`,
    `${bytes(usage.memory_bytes)} of memory with its children, at most ${bytes(rank.peak_memory_bytes)}`,
  ];
  const total = usage.device_memory_bytes ?? 0;
  if (total > 0) {
    const own = usage.device_own_bytes ?? null;
    const whose = own === null ? "used by anybody" : `of them ${bytes(own)} by this rank`;
    parts.push(`device: ${bytes(usage.device_used_bytes ?? 0)} of ${bytes(total)} in use, ${whose}`);
  }
  if (usage.device_utilization != null) {
    parts.push(`computing ${Math.round(100 * usage.device_utilization)}% of the time`);
  }
  return parts.join("; ");
}

function heldOf(usage: RankUsage): number {
  return usage.device_own_bytes ?? usage.device_used_bytes ?? 0;
}

/** "7.0 / 80 GiB": the unit is said once. */
function ofTotal(held: number, total: number): string {
  const [size, unit] = bytes(total).split(" ") as [string, string];
  const [heldSize, heldUnit] = bytes(held).split(" ") as [string, string];
  return heldUnit === unit ? `${heldSize} / ${size} ${unit}` : `${heldSize} ${heldUnit} / ${size} ${unit}`;
}
