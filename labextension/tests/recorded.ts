/** The recorded runs of tests/fixtures/runs. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { decodeLines, type RunEvent } from "../src/protocol/decode";
import type { RunState } from "../src/protocol/generated";

const FOLDER = join(import.meta.dirname, "..", "..", "tests", "fixtures", "runs");

export const RUN_NAMES = readdirSync(FOLDER)
  .filter((file) => file.endsWith(".jsonl"))
  .map((file) => file.replace(/\.jsonl$/, ""))
  .sort();

export function recordedText(name: string): string {
  return readFileSync(join(FOLDER, `${name}.jsonl`), "utf8");
}

export function recordedEvents(name: string): RunEvent[] {
  return decodeLines(recordedText(name));
}

/** What the Python fold makes of it. */
export function pythonState(name: string): RunState {
  return JSON.parse(readFileSync(join(FOLDER, `${name}.state.json`), "utf8"));
}
