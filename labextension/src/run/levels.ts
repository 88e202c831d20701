/** Tells log records by how they look: the same forms as accel_nb/launch/views/log_level.py. */

export type Level = "error" | "warning" | "routine" | "plain";

const SEARCHED_CHARS = 200;
const LEVEL = "TRACE|DEBUG|INFO|SUCCESS|WARNING|WARN|ERROR|CRITICAL|FATAL";
const FORMS = [
  String.raw`^(?:\[rank\d+\]:)?\[?([A-Z])\d{4} \d\d:\d\d:\d\d`,
  String.raw`^\s*(${LEVEL})(?::|\s*[\]|]|\s{2,}|\s+\d)`,
  String.raw`^\s*\[(${LEVEL})\b`,
  String.raw`^[\[(]*\d{2,4}[-:/.]\d\d.{0,120}?(?<!\w)(${LEVEL})(?!\w)`,
  String.raw`^[^\s-][^-|]{0,60}\s[-|]\s(${LEVEL})\s+[-|:]`,
].map((form) => new RegExp(form));
/** The line that names an exception, at the end of a traceback; and the traceback's first. */
const RAISED =
  /^(?:Traceback \(most recent call last\)|(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt)\b(?::|$))/;
const WARNED = /^\S.*?:\d+: (?:[A-Za-z_]\w*\.)*\w*Warning: /;
const LEVELS: Record<string, Level> = {
  TRACE: "routine",
  DEBUG: "routine",
  INFO: "routine",
  SUCCESS: "routine",
  I: "routine",
  V: "routine",
  D: "routine",
  WARNING: "warning",
  WARN: "warning",
  W: "warning",
  ERROR: "error",
  CRITICAL: "error",
  FATAL: "error",
  E: "error",
  F: "error",
  C: "error",
};

/** The level of a line without escape sequences; "plain" when it does not look like a record. */
export function levelOf(line: string): Level {
  const text = line.slice(0, SEARCHED_CHARS);
  for (const form of FORMS) {
    const found = form.exec(text)?.[1];
    if (found !== undefined) {
      return LEVELS[found] ?? "plain";
    }
  }
  if (RAISED.test(text)) {
    return "error";
  }
  return WARNED.test(text) ? "warning" : "plain";
}
