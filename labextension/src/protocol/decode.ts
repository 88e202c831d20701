/** unknown -> a value of the protocol, or undefined: a page may be older or newer than its kernel. */
import type { Protocol } from "./generated";

export type RunEvent = Protocol["run_event"];
export type ToFrontEnd = Protocol["to_front_end"];
export type FromFrontEnd = Protocol["from_front_end"];

/** Every kind of event that this version knows. The type makes the compiler complain about one that is missing. */
const EVENT_TYPES: Record<RunEvent["type"], true> = {
  run_started: true,
  rank_started: true,
  log_lines: true,
  progress_row: true,
  display: true,
  cell_ended: true,
  metrics_logged: true,
  settings_logged: true,
  run_header: true,
  batch_size_begun: true,
  ran_out_of_memory: true,
  batch_size_tried: true,
  collective_mismatch: true,
  dry_run_report: true,
  stalled: true,
  stall_ended: true,
  step_times: true,
  straggler: true,
  host_memory_low: true,
  rank_usage: true,
  notice: true,
  events_dropped: true,
  rank_finished: true,
  rank_failed: true,
  rank_exited: true,
  restarting: true,
  stop_requested: true,
  run_ended: true,
};

const MESSAGE_TYPES: Record<ToFrontEnd["type"], true> = { whole_run: true, new_events: true, stack_texts: true };

/** An event of a kind that is known; undefined, to be skipped, for any other value. */
export function decodeEvent(value: unknown): RunEvent | undefined {
  return isTagged(value) && Object.hasOwn(EVENT_TYPES, value.type) ? (value as RunEvent) : undefined;
}

/** A message of the kernel; unknown events in it are left out. undefined: not one of ours. */
export function decodeMessage(value: unknown): ToFrontEnd | undefined {
  if (!isTagged(value) || !Object.hasOwn(MESSAGE_TYPES, value.type)) {
    return undefined;
  }
  const message = value as ToFrontEnd;
  return message.type === "new_events" ? { ...message, events: decodeEvents(message.events) } : message;
}

/** The events of lines of a `run.jsonl`; what is unknown or no JSON is left out. */
export function decodeLines(text: string): RunEvent[] {
  const values: unknown[] = [];
  for (const line of text.split("\n").filter((one) => one.trim() !== "")) {
    try {
      values.push(JSON.parse(line));
    } catch (error) {
      if (!(error instanceof SyntaxError)) {
        throw error;
      }
    }
  }
  return decodeEvents(values);
}

function decodeEvents(values: unknown): RunEvent[] {
  return Array.isArray(values) ? values.map(decodeEvent).filter((event) => event !== undefined) : [];
}

function isTagged(value: unknown): value is { type: string } {
  return typeof value === "object" && value !== null && "type" in value && typeof value.type === "string";
}
