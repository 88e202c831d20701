import { expect, it } from "vitest";
import { spans, withoutColours } from "../src/run/ansi";

it.each([
  ["plain", [["plain", ""]]],
  [
    "\x1b[31mred\x1b[0m rest",
    [
      ["red", "accel-fg-red"],
      [" rest", ""],
    ],
  ],
  [
    "\x1b[1;32mboth\x1b[22mgreen\x1b[39mnone",
    [
      ["both", "accel-bold accel-fg-green"],
      ["green", "accel-fg-green"],
      ["none", ""],
    ],
  ],
  ["\x1b[mreset", [["reset", ""]]],
  ["\x1b[94;41mbright", [["bright", "accel-fg-blue accel-bg-red"]]],
  ["\x1b[38;5;196mcube", [["cube", "accel-fg-red"]]],
  ["\x1b[38;5;9mbright", [["bright", "accel-fg-red"]]],
  ["\x1b[38;2;10;200;10;4mtrue", [["true", "accel-underline accel-fg-green"]]],
  ["\x1b[38;5;250mgrey", [["grey", ""]]],
  ["\x1b[2Kcleared", [["cleared", ""]]],
])("splits %j", (text, expected) => {
  expect(spans(text).map((span) => [span.text, span.classes])).toEqual(expected);
});

it("drops all sequences", () => {
  expect(withoutColours("\x1b[1;31mred\x1b[0m\x1b[K.")).toBe("red.");
});
