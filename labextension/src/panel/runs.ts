/** What a list says of runs, and whose end is worth a notice. */
import type { RunSummary } from "../protocol/generated";
import { clock, statusText } from "../run/words";
import type { PanelSettings } from "./settings";

export function goesOn(run: RunSummary): boolean {
  return run.status === "starting" || run.status === "running" || run.status === "stopping";
}

const STAGES: readonly string[] = ["starting", "running", "stopping"];

/** A run that goes on, as far as its open view knows it: that is told at once, the list every two seconds. */
export function asFarAs(run: RunSummary, shown: RunSummary["status"]): RunSummary {
  const isBehind = STAGES.includes(run.status) && STAGES.indexOf(shown) > STAGES.indexOf(run.status);
  return isBehind ? { ...run, status: shown } : run;
}

export function runStatusText(status: RunSummary["status"]): { sign: string; word: string } {
  return status === "unknown" ? { sign: "?", word: "unknown" } : statusText(status);
}

/** "4 ranks on cuda", "1 rank on cpu". */
export function ranksOf(run: RunSummary): string {
  return `${run.num_ranks} ${run.num_ranks === 1 ? "rank" : "ranks"} on ${run.device_kind}`;
}

/** Those that go on first, then the newest first. */
export function inOrder(runs: readonly RunSummary[]): RunSummary[] {
  const newestFirst = [...runs].reverse();
  return [...newestFirst.filter(goesOn), ...newestFirst.filter((run) => !goesOn(run))];
}

/** The newest that goes on; null: none does. */
export function newestGoingOn(runs: readonly RunSummary[]): RunSummary | null {
  return inOrder(runs).find(goesOn) ?? null;
}

export interface EndNotice {
  type: "error" | "success";
  text: string;
}

/** null: nothing to tell. A run that somebody has stopped is no news. */
export function noticeOfEnd(
  run: RunSummary,
  notebook: string,
  settings: PanelSettings,
  isElsewhere: boolean,
): EndNotice | null {
  const asked = settings.notify === "always" || (settings.notify === "elsewhere" && isElsewhere);
  const durationS = run.duration_s ?? 0;
  if (!asked || durationS < settings.notifyAfterS) {
    return null;
  }
  if (run.status === "failed") {
    const why = run.headline === "" ? "" : `: ${run.headline}`;
    return { type: "error", text: `${run.function_name} in ${notebook} failed after ${clock(durationS)}${why}` };
  }
  if (run.status === "finished" && settings.notifySuccess) {
    return { type: "success", text: `${run.function_name} in ${notebook} finished after ${clock(durationS)}` };
  }
  return null;
}
