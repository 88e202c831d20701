/** What the panel knows, in words. */
import type { NodeHardware } from "../protocol/generated";
import type { Heard } from "./talk";
import { PANEL_VERSION } from "./version";

const GIB = 2 ** 30;

/** "880 MiB", "12.3 GiB". */
export function memory(bytes: number): string {
  return bytes < GIB ? `${Math.round(bytes / 2 ** 20)} MiB` : `${figure(bytes / GIB)} GiB`;
}

/** "12.3 of 64 GiB". */
export function memoryOf(used: number, total: number): string {
  return total < GIB ? `${memory(used)} of ${memory(total)}` : `${figure(used / GIB)} of ${figure(total / GIB)} GiB`;
}

export function percent(part: number): string {
  return `${Math.round(100 * part)} %`;
}

function figure(value: number): string {
  return value >= 100 ? String(Math.round(value)) : String(Number(value.toFixed(1)));
}

export function cpus(hardware: NodeHardware): string {
  return `${hardware.cpu_count} ${hardware.cpu_count === 1 ? "CPU" : "CPUs"}`;
}

/** What stands between the person and the panel. */
export type Obstacle =
  | { kind: "no-notebook" | "no-kernel" | "starting" | "restarting" | "dead" | "disconnected" | "asking" | "loading" }
  | { kind: "not-python"; language: string }
  | { kind: "not-loaded"; executes: boolean; isKnownPython: boolean }
  | { kind: "cannot-load" | "refused"; problem: string }
  | { kind: "too-old" };

/** null: there is nothing, the kernel answers. */
export function obstacle(notebook: string | null, heard: Heard | null): Obstacle | null {
  if (notebook === null) {
    return { kind: "no-notebook" };
  }
  if (heard === null) {
    return { kind: "no-kernel" };
  }
  if (heard.link !== "alive") {
    return { kind: heard.link };
  }
  if (heard.language && heard.language.toLowerCase() !== "python") {
    return { kind: "not-python", language: heard.language };
  }
  if (heard.facts !== null) {
    return null;
  }
  if (heard.loading === "under way") {
    return { kind: "loading" };
  }
  if (heard.loadProblem !== "") {
    return { kind: "cannot-load", problem: heard.loadProblem };
  }
  if (heard.answer === "silent" && heard.problem !== "") {
    return { kind: "refused", problem: heard.problem };
  }
  if (heard.answer === "silent") {
    return heard.loading === "done"
      ? { kind: "too-old" }
      : { kind: "not-loaded", executes: heard.executes, isKnownPython: heard.language !== "" };
  }
  return { kind: "asking" };
}

/** A title and what to do. */
export function obstacleText(obstacle: Obstacle): { title: string; text: string; code?: string } {
  switch (obstacle.kind) {
    case "no-notebook":
      return { title: "No notebook", text: "Open a notebook: its kernel's hardware and runs are shown here." };
    case "no-kernel":
      return { title: "No kernel", text: "This notebook has no kernel. Choose one to see what it can train on." };
    case "starting":
      return { title: "The kernel is starting", text: "This takes a moment." };
    case "restarting":
      return { title: "The kernel is restarting", text: "Its runs end with it; their logs stay." };
    case "dead":
      return {
        title: "The kernel has died",
        text: "Its runs have ended with it; their logs stay. Restart it to go on.",
      };
    case "disconnected":
      return {
        title: "No connection to the kernel",
        text: "Runs go on without this page. It keeps trying to connect.",
      };
    case "asking":
      return { title: "Asking the kernel", text: "Waiting for its answer." };
    case "loading":
      return { title: "Loading accel_nb", text: "A cell that runs has to end first." };
    case "not-python":
      return {
        title: `A kernel for ${obstacle.language}`,
        text: "accel_nb launches from Python kernels only. Choose another kernel for this notebook to use it.",
      };
    case "not-loaded":
      return {
        title: "accel_nb is not loaded in this kernel",
        text:
          (obstacle.isKnownPython ? "" : "The kernel does not tell its language; launches need Python. ") +
          (obstacle.executes
            ? "A cell is running: it is loaded when that has ended."
            : "Loading it runs this line in the kernel:"),
        code: "%load_ext accel_nb",
      };
    case "cannot-load":
      return {
        title: "accel_nb cannot be loaded",
        text: `The kernel says: ${obstacle.problem}. It has to be installed where the kernel runs, in a cell:`,
        code: `%pip install accel-nb==${PANEL_VERSION}`,
      };
    case "refused":
      return { title: "The kernel has refused", text: obstacle.problem };
    case "too-old":
      return {
        title: "The kernel's accel_nb does not answer",
        text: `It is older than this panel, ${PANEL_VERSION}. Run this in a cell, then restart the kernel:`,
        code: `%pip install accel-nb==${PANEL_VERSION}`,
      };
  }
}

/** null: both halves are of one version. */
export function versionWarning(kernelVersion: string): { text: string; code: string } | null {
  if (kernelVersion === PANEL_VERSION) {
    return null;
  }
  return {
    text:
      `The kernel has accel_nb ${kernelVersion}, this panel is of ${PANEL_VERSION}: some of it may be missing. ` +
      "Install one version in both environments; in the kernel's:",
    code: `%pip install accel-nb==${PANEL_VERSION}`,
  };
}
