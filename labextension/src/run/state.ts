/** What is known of a run so far: the same pure fold as accel_nb/protocol/run_state.py, tested on the same runs. */
import type { RunEvent } from "../protocol/decode";
import type {
  BatchSizeBegun,
  BatchSizeTried,
  CollectiveMismatch,
  Curve,
  DryRunReport,
  EventsDropped,
  HostMemoryLow,
  LogLines,
  MetricsLogged,
  Notice,
  ProgressRow,
  RankExited,
  RankFailed,
  RankFinished,
  RankStarted,
  RankState,
  RankUsage,
  RanOutOfMemory,
  Restarting,
  RunEnded,
  RunHeader,
  RunStarted,
  RunState,
  SettingsLogged,
  StallEnded,
  Stalled,
  StepTimes,
  Straggler,
} from "../protocol/generated";

// The constants of run_state.py, where they are explained.
export const ENDED_BARS = 100;
export const MAX_CURVES = 100;
export const MAX_POINTS = 1000;
export const BATCH_SIZES_TRIED = 100;
export const USAGES_KEPT = 60;
export const LOG_TAIL_LINES = 2000;

const NEW_RANK: RankState = {
  status: "starting",
  pid: 0,
  device: "",
  log_tail: [],
  dropped_lines: 0,
  progress: {},
  batch_sizes: [],
  batch_size: null,
  dry_run: null,
  step_times: null,
  straggler: null,
  usage: null,
  busy: [],
  peak_memory_bytes: 0,
  peak_device_bytes: 0,
  failure: null,
  value_bytes: 0,
  modules: [],
  exit_code: null,
  signal: null,
  gone: false,
};

/** Before the first event. */
export const NEW_RUN: RunState = {
  status: "starting",
  plan: null,
  log_dir: "",
  attempt: 0,
  ranks: {},
  notices: [],
  curves: {},
  texts: {},
  settings: {},
  header: null,
  mismatch: null,
  stalled: null,
  host_memory: null,
  stopped_by: "",
  duration_s: 0,
  leftovers: 0,
  sequence: 0,
};

const NEW_CURVE: Curve = { points: [], stride: 1, num_values: 0, last: null };

export function hasEnded(state: RunState): boolean {
  return state.status === "finished" || state.status === "failed" || state.status === "stopped";
}

/** The ranks by number, in order. */
export function ranksInOrder(state: RunState): [number, RankState][] {
  return Object.entries(state.ranks)
    .map(([rank, known]): [number, RankState] => [Number(rank), known])
    .sort(([one], [other]) => one - other);
}

/** The state after `event`; one seen before (by `sequence`) is ignored. */
export function advance(state: RunState, event: RunEvent): RunState {
  const sequence = event.sequence ?? 0;
  if (sequence !== 0 && sequence <= state.sequence) {
    return state;
  }
  return { ...folded(state, event), sequence: sequence || state.sequence };
}

export function advanceAll(state: RunState, events: readonly RunEvent[]): RunState {
  return events.reduce(advance, state);
}

function folded(state: RunState, event: RunEvent): RunState {
  switch (event.type) {
    case "run_started":
      return begun(state, event);
    case "restarting":
      return begunAgain(state, event);
    case "metrics_logged":
    case "settings_logged":
    case "run_header":
    case "collective_mismatch":
      return reported(state, event);
    case "notice":
    case "stalled":
    case "stall_ended":
    case "host_memory_low":
      return told(state, event);
    case "stop_requested":
      return { ...state, status: "stopping", stopped_by: state.stopped_by || event.by };
    case "run_ended":
      return ended(state, event);
    case "display":
    case "cell_ended":
      return state; // about the output of the cell, not of the view
    default:
      return rankFolded(state, event);
  }
}

function begun(state: RunState, event: RunStarted): RunState {
  const ranks = Object.fromEntries(
    event.plan.ranks.map((one) => [one.rank, { ...NEW_RANK, device: one.device_label }]),
  );
  return { ...state, plan: event.plan, log_dir: event.log_dir ?? "", attempt: event.attempt ?? 0, ranks };
}

function begunAgain(state: RunState, event: Restarting): RunState {
  const ranks = Object.fromEntries(
    Object.entries(state.ranks).map(([rank, old]) => [
      rank,
      {
        ...NEW_RANK,
        device: old.device,
        log_tail: old.log_tail,
        batch_sizes: event.reason ? old.batch_sizes : [],
      },
    ]),
  );
  const withoutLogged = { ...state, curves: {}, texts: {}, settings: {}, header: null, mismatch: null, stalled: null };
  return { ...withoutLogged, status: "starting", attempt: event.attempt, ranks, stopped_by: "" };
}

function reported(state: RunState, event: MetricsLogged | SettingsLogged | RunHeader | CollectiveMismatch): RunState {
  switch (event.type) {
    case "run_header":
      return { ...state, header: event };
    case "collective_mismatch":
      return { ...state, mismatch: event };
    case "settings_logged":
      return { ...state, settings: firstNames({ ...state.settings, ...event.settings }) };
    case "metrics_logged":
      return {
        ...state,
        curves: withValues(state.curves, event),
        texts: firstNames({ ...state.texts, ...event.texts }),
      };
  }
}

function ended(state: RunState, event: RunEnded): RunState {
  const status = finalStatus(state);
  const stalled = status === "finished" ? null : state.stalled;
  return { ...state, status, stalled, duration_s: event.duration_s ?? 0, leftovers: event.leftovers ?? 0 };
}

function told(state: RunState, event: Notice | Stalled | StallEnded | HostMemoryLow): RunState {
  switch (event.type) {
    case "notice":
      return { ...state, notices: [...state.notices, event.text] };
    case "host_memory_low":
      return { ...state, host_memory: event };
    case "stalled":
      return { ...state, stalled: event };
    case "stall_ended":
      return { ...state, stalled: null };
  }
}

type MeasuredEvent =
  | BatchSizeBegun
  | RanOutOfMemory
  | BatchSizeTried
  | DryRunReport
  | StepTimes
  | Straggler
  | RankUsage;
type RankEvent =
  | MeasuredEvent
  | RankStarted
  | LogLines
  | ProgressRow
  | EventsDropped
  | RankFinished
  | RankFailed
  | RankExited;

function rankFolded(state: RunState, event: RankEvent): RunState {
  const number = event.rank ?? null;
  if (number === null) {
    return state;
  }
  const rank = rankAfter(state.ranks[number] ?? NEW_RANK, event);
  const status = state.status === "starting" && event.type === "rank_started" ? "running" : state.status;
  return { ...state, status, ranks: { ...state.ranks, [number]: rank } };
}

function rankAfter(rank: RankState, event: RankEvent): RankState {
  switch (event.type) {
    case "rank_started":
      return { ...rank, status: "running", pid: event.pid ?? 0, device: event.device || rank.device };
    case "log_lines":
      return { ...rank, log_tail: rank.log_tail.concat(event.text.split("\n")).slice(-LOG_TAIL_LINES) };
    case "progress_row":
      return { ...rank, progress: withRow(rank.progress, event) };
    case "events_dropped":
      return { ...rank, dropped_lines: rank.dropped_lines + event.lines };
    case "rank_finished":
      return { ...rank, status: "finished", value_bytes: event.value_bytes ?? 0, modules: event.modules ?? [] };
    case "rank_failed":
      return { ...rank, status: "failed", failure: event.failure };
    case "rank_exited":
      return { ...rank, gone: true, exit_code: event.exit_code ?? null, signal: event.signal ?? null };
    default:
      return withMeasured(rank, event);
  }
}

function withMeasured(rank: RankState, event: MeasuredEvent): RankState {
  switch (event.type) {
    case "dry_run_report":
      return { ...rank, dry_run: event };
    case "step_times":
      return { ...rank, step_times: event };
    case "straggler":
      return { ...rank, straggler: event };
    case "batch_size_begun":
      return { ...rank, batch_size: event };
    case "batch_size_tried":
      return { ...rank, batch_sizes: [...rank.batch_sizes, event].slice(-BATCH_SIZES_TRIED), batch_size: null };
    case "ran_out_of_memory":
      return rank; // what becomes of the try follows
    case "rank_usage":
      return withUsage(rank, event);
  }
}

function withUsage(rank: RankState, usage: RankUsage): RankState {
  const heldBytes = usage.device_own_bytes ?? usage.device_used_bytes ?? 0;
  return {
    ...rank,
    usage,
    busy: [...rank.busy, usage.device_utilization ?? usage.cpus].slice(-USAGES_KEPT),
    peak_memory_bytes: Math.max(rank.peak_memory_bytes, usage.memory_bytes),
    peak_device_bytes: Math.max(rank.peak_device_bytes, heldBytes),
  };
}

type Rows = RankState["progress"];

/** Of the bars that are done only the newest stay: those that appeared last, bars being numbered in that order. */
function withRow(rows: Rows, row: ProgressRow): Rows {
  const known: Rows = { ...rows, [row.bar]: row };
  const ended = Object.entries(known).filter(([, one]) => one.done === true);
  for (const [bar] of ended.slice(0, Math.max(0, ended.length - ENDED_BARS))) {
    delete known[bar];
  }
  return known;
}

function withValues(curves: RunState["curves"], event: MetricsLogged): RunState["curves"] {
  const known = { ...curves };
  for (const [name, value] of Object.entries(event.values)) {
    const curve = known[name];
    if (curve !== undefined || Object.keys(known).length < MAX_CURVES) {
      const step = event.step ?? curve?.num_values ?? 0;
      known[name] = withPoint(curve ?? NEW_CURVE, [step, value]);
    }
  }
  return known;
}

function withPoint(curve: Curve, point: [number, number | null]): Curve {
  let { points, stride } = curve;
  if (curve.num_values % stride === 0) {
    points = [...points, point];
  }
  if (points.length > MAX_POINTS) {
    points = points.filter((_, index) => index % 2 === 0);
    stride *= 2;
  }
  return { points, stride, num_values: curve.num_values + 1, last: point };
}

function firstNames(texts: Record<string, string>): Record<string, string> {
  return Object.fromEntries(Object.entries(texts).slice(0, MAX_CURVES));
}

function finalStatus(state: RunState): RunState["status"] {
  const ranks = Object.values(state.ranks);
  if (ranks.length > 0 && ranks.every((rank) => rank.status === "finished")) {
    return "finished";
  }
  return state.stopped_by !== "" && state.stopped_by !== "failure" ? "stopped" : "failed";
}
