/** What the tables of the view show, from the state. */
import type { CollectiveMismatch, ProgressRow, RankState, RunState } from "../protocol/generated";
import { ranksInOrder } from "./state";

export interface LadderStep {
  batchSize: number;
  outcome: "fits" | "too large" | "trying";
  /** Empty: everywhere, or not known. */
  onRanks: number[];
  /** First line of the error. */
  reason: string;
  /** Factor on the accumulation steps; 1: as asked. */
  accumulation: number;
}

export interface Ladder {
  function: string;
  steps: LadderStep[];
}

/** One per function that searches, in order; from the rank that has told most, as all of them agree. */
export function ladders(state: RunState): Ladder[] {
  const ranks = ranksInOrder(state).map(([, rank]) => rank);
  const teller = ranks.reduce<RankState | undefined>(
    (best, rank) => (best === undefined || numTold(rank) > numTold(best) ? rank : best),
    undefined,
  );
  const found = new Map<string, LadderStep[]>();
  for (const tried of teller?.batch_sizes ?? []) {
    push(found, tried.function, {
      batchSize: tried.batch_size,
      outcome: tried.fits ? "fits" : "too large",
      onRanks: tried.on_ranks ?? [],
      reason: tried.reason ?? "",
      accumulation: tried.accumulation ?? 1,
    });
  }
  if (teller?.batch_size) {
    push(found, teller.batch_size.function, {
      batchSize: teller.batch_size.batch_size,
      outcome: "trying",
      onRanks: [],
      reason: "",
      accumulation: 1,
    });
  }
  return [...found].map(([name, steps]) => ({ function: name, steps }));
}

function numTold(rank: RankState): number {
  return rank.batch_sizes.length + (rank.batch_size === null ? 0 : 1);
}

function push(found: Map<string, LadderStep[]>, name: string, step: LadderStep): void {
  found.set(name, [...(found.get(name) ?? []), step]);
}

export interface MismatchRow {
  rank: number;
  operation: string;
  given: string;
  place: string;
  /** Whether it differs from what most ranks did. */
  odd: boolean;
}

/** By rank. None is odd where no way of calling has the majority. */
export function mismatchRows(mismatch: CollectiveMismatch): MismatchRow[] {
  const calls = mismatch.operations.map((operation, rank) => `${operation}(${mismatch.given[rank] ?? ""})`);
  const counts = new Map<string, number>();
  for (const call of calls) {
    counts.set(call, (counts.get(call) ?? 0) + 1);
  }
  const usual = [...counts].find(([, count]) => count > calls.length / 2)?.[0];
  return mismatch.operations.map((operation, rank) => ({
    rank,
    operation,
    given: mismatch.given[rank] ?? "",
    place: mismatch.places?.[rank] ?? "",
    odd: usual !== undefined && calls[rank] !== usual,
  }));
}

export interface Bar {
  number: number;
  label: string;
  n: number | null;
  total: number | null;
  /** Between 0 and 1; null: the total is not known. */
  part: number | null;
  /** What tqdm says after the bar: times and rate. */
  rate: string;
  done: boolean;
}

/** Bars shown per rank: those that move, else the newest. */
export const MAX_BARS = 3;

export function barsOf(rank: RankState): Bar[] {
  const rows = Object.values(rank.progress).filter((row) => row.text !== "");
  const moving = rows.filter((row) => row.done !== true && !isFull(row));
  return (moving.length > 0 ? moving : rows.slice(-1)).slice(-MAX_BARS).map(barOf);
}

function isFull(row: ProgressRow): boolean {
  return row.n != null && row.total != null && row.n >= row.total;
}

// tqdm's own form: "label:  50%|#####     | 10/20 [00:01<00:01, 9.9it/s]"
const DRAWN = /^(?:(.*?):? +)?(?:\d+%\|.*\| *)?[\d.,]+\w*(?:\/[\d.,]+\w*|it) *\[(.*)\]\s*$/;

function barOf(row: ProgressRow): Bar {
  const [n, total] = [row.n ?? null, row.total ?? null];
  const drawn = DRAWN.exec(row.text.trim());
  return {
    number: row.bar,
    label: drawn === null ? row.text.trim() : (drawn[1] ?? ""),
    n,
    total,
    part: n === null || total === null || total <= 0 ? null : Math.min(1, n / total),
    rate: drawn?.[2] ?? "",
    done: row.done === true,
  };
}
