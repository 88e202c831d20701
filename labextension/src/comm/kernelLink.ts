/** What the panel uses of a kernel's connection. Nothing here knows JupyterLab: tests stand in for it. */
import type { PanelRequest } from "../protocol/decodePanel";
import type { Changes } from "./changes";

/** The names of accel_nb/protocol/panel.py. */
export const TARGET = "accel_nb.panel";
export const REQUEST = "accel_nb_request";

export type LinkState = "starting" | "alive" | "restarting" | "dead" | "disconnected";

export type CommMessage =
  | { kind: "opened"; target: string }
  | { kind: "data"; commId: string; data: unknown }
  | { kind: "closed"; commId: string };

export interface KernelLink {
  readonly state: LinkState;
  /** Whether a cell runs. JupyterLab's own status says idle as soon as any other message has been dealt with. */
  readonly executes: boolean;
  /** Of `state` or `executes`. */
  readonly changes: Changes;
  /** "python", "R". Empty: neither what Jupyter knows of the kernel nor its shell tells it, which may be busy. */
  language(): Promise<string>;
  /** Over the control channel, which a running cell does not block. A kernel without us never answers. */
  request(content: PanelRequest): Promise<unknown>;
  /** Whether the kernel has opened our comm. Asked of the shell: waits for a running cell, is noticed by nobody. */
  hasComm(): Promise<boolean>;
  /** "": done; else the error. Waits for a running cell. Rejected when the kernel has gone before. */
  loadExtension(): Promise<string>;
  /** News come by this comm, which an earlier page may have seen open. */
  listenTo(commId: string): void;
  onComm(callback: (message: CommMessage) => void, until: AbortSignal): void;
}
