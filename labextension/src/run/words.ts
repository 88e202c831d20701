/** What is known, in the words that are shown. */
import type { LaunchPlan, RankState, RunHeader, RunState } from "../protocol/generated";

/** "0-3, 5" for [0, 1, 2, 3, 5]. */
export function rankRanges(ranks: readonly number[]): string {
  const parts: [number, number][] = [];
  for (const rank of [...ranks].sort((one, other) => one - other)) {
    const last = parts.at(-1);
    if (last !== undefined && rank === last[1] + 1) {
      last[1] = rank;
    } else {
      parts.push([rank, rank]);
    }
  }
  return parts.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
}

/** "[r0-r3] "; empty for a sentence of ours. */
export function rankPrefix(ranks: readonly number[]): string {
  const named = rankRanges(ranks).replace(/\d+/g, "r$&").replace(/, /g, ",");
  return named === "" ? "" : `[${named}] `;
}

/** "0:07", "12:34", "1:02:03". */
export function clock(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (part: number) => String(part).padStart(2, "0");
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** "850 µs", "12.3 ms", "1.20 s". */
export function duration(seconds: number): string {
  if (seconds < 1e-3) {
    return `${Math.round(seconds * 1e6)} µs`;
  }
  return seconds < 1 ? `${(seconds * 1e3).toPrecision(3)} ms` : `${seconds.toFixed(2)} s`;
}

/** "512 MiB", "1.2 GiB", "80 GiB". */
export function bytes(size: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = size < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(size) / 10));
  const scaled = size / 1024 ** power;
  return `${scaled < 10 && power > 0 ? scaled.toFixed(1) : Math.round(scaled)} ${units[power]}`;
}

/** Four digits at most, as a person would write it. */
export function figure(value: number | null): string {
  if (value === null) {
    return "not finite";
  }
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    return value.toExponential(2);
  }
  return String(Number(value.toPrecision(4)));
}

/** "4 ranks on cuda", "1 rank on cpu". */
export function ranksText(plan: LaunchPlan): string {
  const count = plan.ranks.length;
  return `${count} ${count === 1 ? "rank" : "ranks"} on ${plan.device_kind}`;
}

/** "2 ranks × batch size 16 × 4 batches = 128 samples per update, 20 updates per epoch, learning rate 0.1, seed 7". */
export function headerText(header: RunHeader): string {
  const { batch_size: size = null, batches_per_update: batches = null } = header;
  const factors = [`${header.num_ranks} ${header.num_ranks === 1 ? "rank" : "ranks"}`];
  if (size !== null) {
    factors.push(`batch size ${size}`);
  }
  if (batches !== null && batches > 1) {
    factors.push(`${batches} batches`);
  }
  const facts = [factors.join(" × ")];
  if (size !== null && batches !== null) {
    facts[0] += ` = ${header.num_ranks * size * batches} samples per update`;
  }
  if (header.updates_per_epoch != null) {
    facts.push(`${header.updates_per_epoch} updates per epoch`);
  }
  if (header.learning_rates !== undefined && header.learning_rates.length > 0) {
    facts.push(`learning rate ${header.learning_rates.map(figure).join(", ")}`);
  }
  if (header.seed != null) {
    facts.push(`seed ${header.seed}`);
  }
  return facts.join(", ");
}

const STATUS: Record<RunState["status"], { sign: string; word: string }> = {
  starting: { sign: "◌", word: "starting" },
  running: { sign: "●", word: "running" },
  stopping: { sign: "◐", word: "stopping" },
  finished: { sign: "✓", word: "finished" },
  failed: { sign: "✗", word: "failed" },
  stopped: { sign: "■", word: "stopped" },
};

/** A sign beside the word, so that nothing is said by colour alone. */
export function statusText(status: RunState["status"]): { sign: string; word: string } {
  return STATUS[status];
}

/** A rank that was ended because of another one has not failed itself. */
export function rankStatusText(rank: RankState): { sign: string; word: string } {
  if (rank.failure?.kind === "stopped") {
    return STATUS.stopped;
  }
  if (rank.failure?.kind === "died") {
    return { sign: "✗", word: "died" };
  }
  return rank.status === "exited" ? { sign: "✗", word: "exited" } : STATUS[rank.status];
}
