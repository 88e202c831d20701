/** What one page knows of one run: messages of the kernel in, what is to be shown out. */
import { decodeMessage, type RunEvent } from "../protocol/decode";
import type { NewEvents, RunState, StackTexts, WholeRun } from "../protocol/generated";
import { logFrom, type RunLog, withEvents } from "../run/log";
import { advanceAll, hasEnded, NEW_RUN } from "../run/state";

/** All that the views take. A new one for each change. */
export interface Shown {
  state: RunState;
  log: RunLog;
  /** Seconds since the epoch, by the kernel's clock; 0: not known. */
  startedS: number;
  /** What to add to this page's clock to get the kernel's, in seconds. */
  clockAheadS: number;
  /** Whether a button reaches the kernel while the cell runs. */
  canHear: boolean;
  /** The newest answer; null: nobody has asked. */
  stacks: StackTexts | null;
  connected: boolean;
  /** The kernel is gone, or the connection to it: nothing more comes. */
  cutOff: boolean;
}

const NOTHING: Shown = {
  state: NEW_RUN,
  log: [],
  startedS: 0,
  clockAheadS: 0,
  canHear: true,
  stacks: null,
  connected: false,
  cutOff: false,
};

export class RunFeed {
  private now = NOTHING;
  /** What came before the first whole run, which may have been made before it: answers take another way than news. */
  private early: NewEvents[] = [];

  /** `connect` asks the kernel for the whole run; `changed` is called after each message that told something. */
  constructor(
    readonly connect: () => void,
    private readonly changed: () => void,
    private readonly clockS: () => number = () => Date.now() / 1000,
  ) {}

  get shown(): Shown {
    return this.now;
  }

  receive(value: unknown): void {
    const message = decodeMessage(value);
    if (message !== undefined) {
      this.now = { ...this.after(message), cutOff: false };
      this.changed();
    }
  }

  /** Nothing more comes from the kernel that has fed this so far. */
  cutOff(): void {
    this.now = { ...this.now, cutOff: true };
    this.changed();
  }

  private after(message: WholeRun | NewEvents | StackTexts): Shown {
    switch (message.type) {
      case "whole_run":
        return this.replaced(message);
      case "new_events":
        if (!this.now.connected) {
          this.early.push(message);
        }
        return advanced(this.now, message, this.clockS());
      case "stack_texts":
        return { ...this.now, stacks: message };
    }
  }

  /** A snapshot that was made before what is known here is of no use: another page had asked for it. */
  private replaced(message: WholeRun): Shown {
    const { state, startedS } = this.now;
    const ahead = message.state.sequence - state.sequence;
    // The kernel tells by itself, without a number, that a run has ended whose keeper is gone.
    const isOlder = ahead < 0 || (ahead === 0 && hasEnded(state) && !hasEnded(message.state));
    if (this.now.connected && isOlder) {
      return this.now;
    }
    const whole: Shown = {
      ...this.now,
      state: message.state,
      log: logFrom(message.lines),
      startedS: message.started_s || startedS,
      clockAheadS: message.now_s - this.clockS(),
      canHear: message.can_hear,
      connected: true,
    };
    const early = this.early.splice(0).map((news) => ({ ...news, events: news.events.filter(maybeNew) }));
    const known = early.reduce((before, news) => advanced(before, news, this.clockS()), whole);
    return { ...known, clockAheadS: whole.clockAheadS };
  }
}

/** Without a number it is not to be known whether the whole run has counted what was left out. */
function maybeNew(event: RunEvent): boolean {
  return event.type !== "events_dropped" || Boolean(event.sequence);
}

function advanced(known: Shown, message: NewEvents, clockS: number): Shown {
  const news = message.events.filter((event) => !event.sequence || event.sequence > known.state.sequence);
  const begun = news.find((event) => event.type === "run_started");
  return {
    ...known,
    state: advanceAll(known.state, news),
    log: withEvents(known.log, news),
    startedS: known.startedS || (begun?.time_s ?? 0),
    clockAheadS: message.now_s - clockS,
  };
}
