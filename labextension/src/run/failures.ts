/** Many failures have one cause: the same order and words as accel_nb/launch/failures.py and run_failed.py. */
import type { RankFailure, RunState } from "../protocol/generated";
import { ranksInOrder } from "./state";
import { rankRanges } from "./words";

export interface FailureReport {
  cause: RankFailure;
  /** "Rank 1 of 3 (cpu) failed at Cell In[1], line 11." */
  headline: string;
  /** One line each for what happened to the other ranks. */
  others: string[];
  /** The traceback, or the stack and the last lines of a rank that died. */
  body: string;
}

const ANNOUNCED_LINES = 3;

/** The first line, with what it announces when it ends in a colon, as `failures.headline` of the launcher has it. */
function firstStatement([first = "", ...rest]: readonly string[]): string {
  if (!first.endsWith(":") || rest.length === 0) {
    return first;
  }
  const announced = rest.slice(0, ANNOUNCED_LINES).map((line) => line.trim());
  const more = rest.length > ANNOUNCED_LINES ? ["..."] : [];
  return `${first} ${[...announced, ...more].join("; ")}`;
}

/** undefined: no rank has failed, or all were stopped. */
export function failureReport(state: RunState): FailureReport | undefined {
  const failures = ranksInOrder(state)
    .map(([, rank]) => rank.failure)
    .filter((failure) => failure !== null)
    .sort(causeFirst);
  const cause = failures[0];
  if (cause === undefined || cause.kind === "stopped") {
    return undefined;
  }
  return { cause, headline: headline(cause, state), others: others(failures, cause), body: body(cause) };
}

function causeFirst(one: RankFailure, other: RankFailure): number {
  return (
    Number(one.kind === "stopped") - Number(other.kind === "stopped") ||
    Number(one.consequence) - Number(other.consequence) ||
    Number(callsAsMost(one)) - Number(callsAsMost(other)) ||
    one.time_s - other.time_s
  );
}

/** Of calls that do not fit together: whether this is not one of the odd ones. */
function callsAsMost({ differing, rank }: RankFailure): boolean {
  return (differing ?? []).length > 0 && differing?.includes(rank) === false;
}

function mismatchText(odd: readonly number[], who: string, numRanks: number): string {
  if (odd.length === 0) {
    return `The ${numRanks} ranks do not fit together`;
  }
  const many = odd.length > 1;
  return many
    ? `Ranks ${rankRanges(odd)} of ${numRanks} do not fit together with the others`
    : `${who} does not fit together with the others`;
}

function headline(cause: RankFailure, state: RunState): string {
  const ranks = state.plan?.ranks ?? [];
  const device = ranks.find((rank) => rank.rank === cause.rank)?.device_label ?? "?";
  const who = `Rank ${cause.rank} of ${ranks.length} (${device})`;
  if (cause.kind === "died") {
    return `${who} died: ${cause.message}`;
  }
  if (cause.kind === "dead_end") {
    return `${who} ${cause.message}`;
  }
  const place = cause.location === "" ? "" : ` at ${cause.location}`;
  if (cause.differing != null) {
    return `${mismatchText(cause.differing, who, ranks.length)}${place}.`;
  }
  return cause.exit_code === null
    ? `${who} failed${place}.`
    : `${who} ended${place} with exit status ${cause.exit_code}.`;
}

function others(failures: readonly RankFailure[], cause: RankFailure): string[] {
  const same = failures.filter((one) => isSame(one, cause)).map((one) => one.rank);
  const rest = failures.filter((one) => !same.includes(one.rank));
  const followed = rest.filter((one) => one.consequence || one.kind === "stopped").map((one) => one.rank);
  const lines: string[] = [];
  if (same.length > 1) {
    lines.push(`Same error on ranks ${rankRanges(same)}.`);
  }
  if (followed.length > 0) {
    lines.push(`As a consequence: ${ranksNamed(followed)} ended.`);
  }
  for (const group of grouped(rest.filter((one) => !followed.includes(one.rank)))) {
    lines.push(`Also ${ranksNamed(group.map((one) => one.rank))}: ${oneLine(group[0] as RankFailure)}`);
  }
  return lines;
}

function grouped(failures: readonly RankFailure[]): RankFailure[][] {
  const groups: RankFailure[][] = [];
  for (const failure of failures) {
    const known = groups.find((group) => isSame(group[0] as RankFailure, failure));
    if (known === undefined) {
      groups.push([failure]);
    } else {
      known.push(failure);
    }
  }
  return groups;
}

/** One line that says what went wrong. */
function oneLine(failure: RankFailure): string {
  const first = firstStatement(failure.message.trim().split("\n"));
  return failure.type_name === "" ? first || failure.kind : `${failure.type_name}: ${first}`;
}

function isSame(one: RankFailure, other: RankFailure): boolean {
  return (
    one.kind === other.kind &&
    one.type_name === other.type_name &&
    one.message === other.message &&
    one.location === other.location
  );
}

function body(cause: RankFailure): string {
  if (cause.kind === "raised" || cause.traceback !== "") {
    return cause.traceback;
  }
  const stack = cause.stack === "" ? [] : ["Its Python stack at that moment:", cause.stack, ""];
  const last = cause.last_lines.length === 0 ? [] : ["Its last lines:", ...cause.last_lines.map((line) => `  ${line}`)];
  return [...stack, ...last].join("\n");
}

function ranksNamed(ranks: readonly number[]): string {
  return `rank${ranks.length > 1 ? "s" : ""} ${rankRanges(ranks)}`;
}
