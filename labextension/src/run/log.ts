/** The output of all ranks in the order of arrival; and what of it is shown. */
import type { RunEvent } from "../protocol/decode";
import type { LoggedLine } from "../protocol/generated";
import { withoutColours } from "./ansi";
import { type Level, levelOf } from "./levels";

/** Lines kept in the page; the log files have everything. */
export const MAX_LINES = 5000;
/** Identical lines of several ranks that came within this time are one row. */
export const SAME_WITHIN_S = 1;

export interface LogLine {
  /** null: a sentence of ours. */
  rank: number | null;
  /** As written, with escape sequences. */
  text: string;
  /** Without them: what is searched. */
  plain: string;
  level: Level;
  time_s: number;
}

export type RunLog = readonly LogLine[];

/** "usual": routine records of rank 0 only, as the text of a launch has them. */
export type LevelFilter = "usual" | "all" | "warnings" | "errors";

export interface LogFilter {
  /** null: all of them. */
  rank: number | null;
  level: LevelFilter;
  /** Part of a line, in any case; empty: no search. */
  search: string;
}

/** One row of the list: a line, or several that read the same. */
export interface LogRow {
  /** Empty: ours. */
  ranks: number[];
  line: LogLine;
  /** How often in a row one rank wrote it. */
  count: number;
}

export function logFrom(lines: readonly LoggedLine[]): RunLog {
  return lines.slice(-MAX_LINES).map((line) => logLine(line.rank, line.text, line.time_s));
}

/** `log` and what `events` add to it, the newest `MAX_LINES` lines. */
export function withEvents(log: RunLog, events: readonly RunEvent[]): RunLog {
  const added = events.flatMap(linesOf);
  return added.length === 0 ? log : [...log, ...added].slice(-MAX_LINES);
}

export function rowsOf(log: RunLog, filter: LogFilter): LogRow[] {
  const wanted = filter.search.toLowerCase();
  return collapsed(log.filter((line) => passes(line, filter) && (wanted === "" || found(line, wanted))));
}

/** The rows as text, a row of several ranks once. */
export function textOf(rows: readonly LogRow[], prefix: (ranks: number[]) => string): string {
  return rows
    .map((row) => `${prefix(row.ranks)}${row.line.plain}${row.count > 1 ? ` (${row.count} times)` : ""}\n`)
    .join("");
}

function linesOf(event: RunEvent): LogLine[] {
  switch (event.type) {
    case "log_lines":
      return event.text.split("\n").map((text) => logLine(event.rank ?? null, text, event.time_s ?? 0));
    case "notice":
    case "stalled":
    case "stall_ended":
    case "straggler":
    case "host_memory_low":
      return [logLine(null, event.text, event.time_s ?? 0)];
    default:
      return [];
  }
}

function logLine(rank: number | null, text: string, time_s: number): LogLine {
  const plain = withoutColours(text);
  return { rank, text, plain, level: rank === null ? "plain" : levelOf(plain), time_s };
}

function found(line: LogLine, wanted: string): boolean {
  return line.plain.toLowerCase().includes(wanted);
}

function passes(line: LogLine, filter: LogFilter): boolean {
  if (filter.rank !== null && line.rank !== filter.rank) {
    return false;
  }
  switch (filter.level) {
    case "all":
      return true;
    case "usual":
      return line.level !== "routine" || line.rank === 0 || filter.rank !== null;
    case "warnings":
      return line.level === "warning" || line.level === "error" || line.rank === null;
    case "errors":
      return line.level === "error";
  }
}

function collapsed(lines: readonly LogLine[]): LogRow[] {
  const rows: LogRow[] = [];
  const newest = new Map<string, LogRow>();
  for (const line of lines) {
    const same = newest.get(line.text);
    const last = rows.at(-1);
    if (same !== undefined && joins(same, line)) {
      same.ranks.push(line.rank ?? 0);
    } else if (last !== undefined && repeats(last, line)) {
      last.count += 1;
    } else {
      const row = { ranks: line.rank === null ? [] : [line.rank], line, count: 1 };
      rows.push(row);
      newest.set(line.text, row);
    }
  }
  return rows;
}

function joins(row: LogRow, line: LogLine): boolean {
  if (line.rank === null || row.ranks.length === 0 || row.count > 1) {
    return false;
  }
  return !row.ranks.includes(line.rank) && line.time_s - row.line.time_s <= SAME_WITHIN_S;
}

function repeats(row: LogRow, line: LogLine): boolean {
  return line.plain !== "" && row.line.text === line.text && row.ranks.length === 1 && row.ranks[0] === line.rank;
}
