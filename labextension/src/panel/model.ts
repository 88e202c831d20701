/** What the panel shows: the followed notebook, its kernel, the person's choice and settings. */
import { Changes } from "../comm/changes";
import type { RunFeed, Shown } from "../comm/feed";
import { type Choice, NO_CHOICE } from "./choice";
import { newestGoingOn } from "./runs";
import { DEFAULT_SETTINGS, type PanelSettings } from "./settings";
import type { Heard, KernelTalk } from "./talk";

/** After the last change of a choice. */
const PLAN_AFTER_MS = 250;

/** A notebook, as the panel sees it. */
export interface FollowedNotebook {
  /** "train.ipynb" */
  readonly name: string;
  /** null: it has no kernel. */
  readonly talk: KernelTalk | null;
  readonly choice: Choice;
  choose(choice: Choice): void;
  /** Of any of these. */
  readonly changes: Changes;
}

/** All that the views take. */
export interface PanelShown {
  /** null: there is no notebook. */
  notebook: string | null;
  /** null: it has no kernel. */
  heard: Heard | null;
  choice: Choice;
  settings: PanelSettings;
  /** Why the last command was not possible; empty when it was. */
  refusal: string;
  /** How often a command was not possible: the same reason again is news, too. */
  numRefusals: number;
  openRun: { runId: string; shown: Shown } | null;
}

export class PanelModel {
  readonly changes = new Changes();
  private notebook: FollowedNotebook | null = null;
  private following = new AbortController();
  private talk: KernelTalk | null = null;
  private talking = new AbortController();
  private settings = DEFAULT_SETTINGS;
  private refusal = "";
  private numRefusals = 0;
  private isVisible = false;
  private openRun: { runId: string; feed: RunFeed } | null = null;
  /** Runs that opened by themselves: once each, so that what the person has closed stays closed. */
  private readonly opened = new Set<string>();
  private planTimer: ReturnType<typeof setTimeout> | undefined;
  private plannedFor = "";

  get shown(): PanelShown {
    return {
      notebook: this.notebook?.name ?? null,
      heard: this.talk?.heard ?? null,
      choice: this.notebook?.choice ?? NO_CHOICE,
      settings: this.settings,
      refusal: this.refusal,
      numRefusals: this.numRefusals,
      openRun: this.openRun && { runId: this.openRun.runId, shown: this.openRun.feed.shown },
    };
  }

  /** null: no notebook is there. */
  follow(notebook: FollowedNotebook | null): void {
    this.following.abort();
    this.following = new AbortController();
    this.notebook = notebook;
    this.refusal = "";
    notebook?.changes.on(() => this.notebookChanged(), this.following.signal);
    this.notebookChanged();
  }

  setSettings(settings: PanelSettings): void {
    this.settings = settings;
    this.changes.tell();
  }

  setVisible(isVisible: boolean): void {
    this.isVisible = isVisible;
    this.talk?.want(isVisible);
    this.talkChanged();
  }

  /** Say why a command is not possible; "": it is. */
  refuse(why: string): void {
    this.refusal = why;
    this.numRefusals += why === "" ? 0 : 1;
    this.changes.tell();
  }

  /** Show all of a run; null: of none. One that is shown already stays as it is. */
  showRun(runId: string | null): void {
    if (runId === (this.openRun?.runId ?? null)) {
      return;
    }
    if (this.openRun !== null) {
      this.talk?.unfollow(this.openRun.runId);
    }
    this.openRun = null;
    if (runId !== null && this.talk !== null) {
      this.opened.add(runId);
      this.openRun = { runId, feed: this.talk.follow(runId) };
    }
    this.changes.tell();
  }

  dispose(): void {
    clearTimeout(this.planTimer);
    this.following.abort();
    this.talking.abort();
    this.talk?.want(false);
  }

  private notebookChanged(): void {
    const talk = this.notebook?.talk ?? null;
    if (talk !== this.talk) {
      this.talk?.want(false);
      this.leaveRun();
      this.talking.abort();
      this.talking = new AbortController();
      this.talk = talk;
      this.plannedFor = "";
      talk?.changes.on(() => this.talkChanged(), this.talking.signal);
      talk?.want(this.isVisible);
    }
    this.talkChanged();
  }

  private talkChanged(): void {
    const heard = this.talk?.heard;
    if (this.isVisible && heard?.answer === "ready") {
      this.openNewRun(heard);
      this.planSoon(heard);
    } else if (heard?.facts === null) {
      // All of this was of a kernel process that is gone.
      this.plannedFor = "";
      this.refusal = "";
      this.leaveRun();
    }
    this.changes.tell();
  }

  /** Nobody has closed it: it opens again when it is back in front and still goes on. */
  private leaveRun(): void {
    if (this.openRun !== null) {
      this.opened.delete(this.openRun.runId);
      this.showRun(null);
    }
  }

  private openNewRun(heard: Heard): void {
    const run = newestGoingOn(heard.runs);
    if (run !== null && !this.opened.has(run.run_id)) {
      this.showRun(run.run_id);
    }
  }

  /** A plan depends on the choice, and on what runs hold already. */
  private planSoon(heard: Heard): void {
    const { choice } = this.shown;
    const { pid, settings } = heard.facts ?? {};
    const about = JSON.stringify([choice, pid, settings, heard.runs.map((run) => [run.run_id, run.status])]);
    if (about === this.plannedFor || !this.settings.showStart) {
      return;
    }
    this.plannedFor = about;
    clearTimeout(this.planTimer);
    this.planTimer = setTimeout(() => void this.talk?.askPlan(this.shown.choice), PLAN_AFTER_MS);
  }
}
