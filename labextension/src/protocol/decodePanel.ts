/** unknown -> a message of the panel's protocol, or undefined: a page may be older or newer than its kernel. */
import type { Protocol } from "./generated";

export type PanelRequest = Protocol["panel_request"];
export type PanelReply = Protocol["panel_reply"];
export type PanelNews = Protocol["panel_news"];

const NEWS: Record<PanelNews["type"], true> = { hardware_now: true, runs_now: true, run_news: true, plan_answer: true };
const REPLIES: Record<PanelReply["type"], true> = { kernel_facts: true, run_news: true, accepted: true, refused: true };

export function decodeNews(value: unknown): PanelNews | undefined {
  return hasTypeOf(NEWS, value) ? (value as PanelNews) : undefined;
}

export function decodeReply(value: unknown): PanelReply | undefined {
  return hasTypeOf(REPLIES, value) ? (value as PanelReply) : undefined;
}

function hasTypeOf(types: object, value: unknown): boolean {
  return (
    typeof value === "object" &&
    value !== null &&
    "type" in value &&
    typeof value.type === "string" &&
    Object.hasOwn(types, value.type)
  );
}
