/** Terminal colours (ECMA-48 SGR) as spans with class names. The colours themselves are the theme's: see style/run.css. */

export interface Span {
  text: string;
  /** Space-separated class names; empty: plain. */
  classes: string;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with one
const SEQUENCE = /\x1b\[([0-9;:]*)([A-Za-z])/g;
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"] as const;

interface Style {
  foreground: number | null;
  background: number | null;
  flags: ReadonlySet<string>;
}

const PLAIN: Style = { foreground: null, background: null, flags: new Set() };
const FLAG_BY_CODE: Record<number, string> = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse" };
const ENDED_BY_CODE: Record<number, string[]> = {
  22: ["bold", "dim"],
  23: ["italic"],
  24: ["underline"],
  27: ["inverse"],
};

/** `text` without escape sequences. */
export function withoutColours(text: string): string {
  return text.includes("\x1b") ? text.replace(SEQUENCE, "") : text;
}

export function spans(text: string): Span[] {
  if (!text.includes("\x1b")) {
    return [{ text, classes: "" }];
  }
  const found: Span[] = [];
  let style = PLAIN;
  let from = 0;
  for (const match of text.matchAll(SEQUENCE)) {
    push(found, text.slice(from, match.index), style);
    from = match.index + match[0].length;
    if (match[2] === "m") {
      style = restyled(style, match[1] ?? "");
    }
  }
  push(found, text.slice(from), style);
  return found;
}

function push(found: Span[], text: string, style: Style): void {
  if (text !== "") {
    found.push({ text, classes: classesOf(style) });
  }
}

function classesOf(style: Style): string {
  const classes = [...style.flags].map((flag) => `accel-${flag}`);
  if (style.foreground !== null) {
    classes.push(`accel-fg-${NAMES[style.foreground]}`);
  }
  if (style.background !== null) {
    classes.push(`accel-bg-${NAMES[style.background]}`);
  }
  return classes.join(" ");
}

function restyled(style: Style, parameters: string): Style {
  const codes = parameters.split(/[;:]/).map(Number);
  let now = style;
  for (let index = 0; index < codes.length; index++) {
    const code = codes[index] ?? 0;
    if (code === 38 || code === 48) {
      const [colour, length] = extendedColour(codes.slice(index + 1));
      now = code === 38 ? { ...now, foreground: colour } : { ...now, background: colour };
      index += length;
    } else {
      now = withCode(now, code);
    }
  }
  return now;
}

function withCode(style: Style, code: number): Style {
  const flag = FLAG_BY_CODE[code];
  if (code === 0) {
    return PLAIN;
  }
  if (flag !== undefined) {
    return { ...style, flags: new Set([...style.flags, flag]) };
  }
  const ended = ENDED_BY_CODE[code];
  if (ended !== undefined) {
    return { ...style, flags: new Set([...style.flags].filter((one) => !ended.includes(one))) };
  }
  return withBasicColour(style, code);
}

function withBasicColour(style: Style, code: number): Style {
  const tens = Math.floor(code / 10);
  const colour = code % 10 < 8 ? code % 10 : null;
  if (tens === 3 || tens === 9) {
    return { ...style, foreground: colour };
  }
  if (tens === 4 || tens === 10) {
    return { ...style, background: colour };
  }
  return style;
}

/** What follows 38 or 48: the nearest of the eight colours that a theme has, and how many codes it took. */
function extendedColour(codes: number[]): [number | null, number] {
  const [kind, first = 0, second = 0, third = 0] = codes;
  if (kind === 5) {
    return [first < 16 ? first % 8 : nearest(cube(first)), 2];
  }
  return kind === 2 ? [nearest([first, second, third]), 4] : [null, codes.length];
}

/** The red, green and blue of a colour of the 256-colour palette from 16 on (xterm's 6x6x6 cube and greys). */
function cube(index: number): [number, number, number] {
  if (index >= 232) {
    const grey = 8 + 10 * (index - 232);
    return [grey, grey, grey];
  }
  const level = (part: number) => (part === 0 ? 0 : 55 + 40 * part);
  const number = index - 16;
  return [level(Math.floor(number / 36)), level(Math.floor(number / 6) % 6), level(number % 6)];
}

function nearest([red, green, blue]: [number, number, number]): number | null {
  const high = Math.max(red, green, blue);
  const low = Math.min(red, green, blue);
  if (high - low < 48) {
    return null; // a grey: the text's own colour can be read on every theme
  }
  const middle = (high + low) / 2;
  return (red > middle ? 1 : 0) + (green > middle ? 2 : 0) + (blue > middle ? 4 : 0);
}
