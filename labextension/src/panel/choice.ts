/** What the person has chosen, as a line of the notebook and as its metadata. */
import type { Choice, NodeHardware, SettingsFile } from "../protocol/generated";

export type { Choice };

/** All left to the settings file and the planner. */
export const NO_CHOICE: Choice = {
  num_processes: null,
  device: null,
  devices: null,
  mixed_precision: null,
  debug: null,
  backend: null,
};

/** What the planner takes where neither the choice nor a settings file says it. */
export const DEFAULTS = { device: "auto", mixed_precision: "no", backend: "auto" };

/** As accel_nb/cli/options.py suggests them, but for what needs the same cell on several machines. */
export const PRECISIONS = ["no", "bf16", "fp16"];
export const BACKENDS = ["auto", "local", "mpi", "ray"];

const MAGIC = "%%accelerate";
/** Options that a choice says, with the number of words that follow them. */
const SAID: Record<string, number> = {
  "num-processes": 1,
  device: 1,
  devices: 1,
  "mixed-precision": 1,
  debug: 0,
  "no-debug": 0,
  backend: 1,
};

/** "%%accelerate --num-processes 2": only what has been chosen. */
export function magicLine(choice: Choice): string {
  const words = [MAGIC];
  if (choice.num_processes !== null) {
    words.push("--num-processes", String(choice.num_processes));
  }
  if (choice.device !== null) {
    words.push("--device", choice.device);
  }
  if (choice.devices !== null) {
    words.push("--devices", choice.devices.join(","));
  }
  if (choice.mixed_precision !== null) {
    words.push("--mixed-precision", choice.mixed_precision);
  }
  if (choice.debug !== null) {
    words.push(choice.debug ? "--debug" : "--no-debug");
  }
  if (choice.backend !== null) {
    words.push("--backend", choice.backend);
  }
  return words.join(" ");
}

/** The cell with the choice's line on top. Options of a line that is there and that no choice says are kept. */
export function withMagicLine(source: string, choice: Choice): { source: string } | { problem: string } {
  const text = source.replace(/^(\s*\n)+/, "");
  const end = text.indexOf("\n");
  const first = end < 0 ? text : text.slice(0, end);
  if (/^%%accelerate(\s|$)/.test(first)) {
    const kept = otherOptions(first.slice(MAGIC.length), choice);
    const line = [magicLine(choice), ...kept].join(" ");
    return { source: line + (end < 0 ? "\n" : text.slice(end)) };
  }
  if (first.startsWith("%%")) {
    const magic = first.split(/\s/)[0];
    return { problem: `The cell begins with ${magic}, and a cell takes one such line. Remove it, or move the rest.` };
  }
  return { source: `${magicLine(choice)}\n${text}` };
}

function otherOptions(line: string, choice: Choice): string[] {
  const words = line.match(/(?:"[^"]*"|'[^']*'|\S)+/g) ?? [];
  const kept: string[] = [];
  for (let at = 0; at < words.length; at++) {
    const word = words[at] ?? "";
    const [name = "", value] = word.replace(/^--/, "").replaceAll("_", "-").split("=", 2);
    const count = word.startsWith("--") ? SAID[name] : undefined;
    const numFollowing = value === undefined ? (count ?? 0) : 0;
    const option = words.slice(at, at + 1 + numFollowing);
    if (count === undefined || (name === "devices" && choosesNoDevices(choice) && areIds(option))) {
      kept.push(...option);
    }
    at += numFollowing;
  }
  return kept;
}

/** "--devices GPU-8f6a,GPU-11c2": the panel offers positions only, and has nothing to replace them with. */
function areIds(option: readonly string[]): boolean {
  return !/(^|=)[\d,\s]*$/.test(option.at(-1) ?? "");
}

function choosesNoDevices(choice: Choice): boolean {
  return choice.devices === null && choice.device === null;
}

/** With the settings file: what is chosen overrules it, the three that say which ranks there are together. */
export function withSettings(choice: Choice, settings: SettingsFile | null): Choice {
  const file = settings?.choice ?? NO_CHOICE;
  const asChosen = choice.num_processes !== null || choice.devices !== null || choice.device !== null;
  const { num_processes, devices, device } = asChosen ? choice : file;
  return {
    num_processes,
    devices,
    device,
    mixed_precision: choice.mixed_precision ?? file.mixed_precision,
    debug: choice.debug ?? file.debug,
    backend: choice.backend ?? file.backend,
  };
}

/** How many ranks it means on this hardware, by the planner's rule: one per accelerator, else 1. */
export function ranksMeant(choice: Choice, hardware: NodeHardware): number {
  if (choice.num_processes !== null) {
    return choice.num_processes;
  }
  if (choice.devices !== null) {
    return choice.devices.length;
  }
  const kinds = isAuto(choice.device) ? Object.keys(hardware.devices) : [choice.device];
  return kinds.map((kind) => hardware.devices[kind]?.length ?? 0).find((count) => count > 0) ?? 1;
}

export function isAuto(device: string | null): device is null | "auto" {
  return device === null || device === DEFAULTS.device;
}

/** What the notebook's metadata `kept` hold with this choice: only what has been chosen, beside what else is
 * there. undefined: nothing is. */
export function toMetadata(choice: Choice, kept: unknown): Record<string, unknown> | undefined {
  const { choice: _, ...others } = record(kept);
  const said = Object.entries(choice).filter(([, value]) => value !== null);
  const all = said.length === 0 ? others : { ...others, choice: Object.fromEntries(said) };
  return Object.keys(all).length === 0 ? undefined : all;
}

/** What holds no choice, as of another version or another hand, is left out. */
export function fromMetadata(kept: unknown): Choice {
  const said = record(record(kept).choice);
  const text = (name: "device" | "mixed_precision" | "backend") =>
    typeof said[name] === "string" && /^\w[\w.:-]*$/.test(said[name]) ? said[name] : null;
  return {
    num_processes: isCount(said.num_processes) ? said.num_processes : null,
    device: text("device"),
    devices: isListOfPositions(said.devices) ? said.devices : null,
    mixed_precision: text("mixed_precision"),
    debug: typeof said.debug === "boolean" ? said.debug : null,
    backend: text("backend"),
  };
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) > 0;
}

function isListOfPositions(value: unknown): value is number[] {
  return Array.isArray(value) && value.length > 0 && value.every((one) => Number.isSafeInteger(one) && one >= 0);
}
