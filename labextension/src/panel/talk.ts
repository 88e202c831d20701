/** What one page knows of one kernel: asks it, hears its news, and forgets all when the kernel is another process. */
import { Changes } from "../comm/changes";
import { RunFeed } from "../comm/feed";
import { type CommMessage, type KernelLink, type LinkState, TARGET } from "../comm/kernelLink";
import { decodeNews, decodeReply, type PanelNews, type PanelReply, type PanelRequest } from "../protocol/decodePanel";
import type { Choice, HardwareNow, KernelFacts, PlanAnswer, RunSummary } from "../protocol/generated";
import { hasEnded } from "../run/state";
import { goesOn } from "./runs";
import { type Usage, withUsage } from "./usage";

/** So long a kernel may take to answer. One without us never does; a late answer counts all the same. */
const ANSWER_MS = 3000;
/** A press of Stop within so long after another is the second one. */
const AGAIN_MS = 10_000;

export interface Heard {
  link: LinkState;
  executes: boolean;
  /** null: not told yet. Empty: it is not to be had. */
  language: string | null;
  /** unasked: nobody looks, or no kernel for us; silent: it has not loaded accel_nb. */
  answer: "unasked" | "asking" | "silent" | "ready";
  /** Of the one click that loads the extension. */
  loading: "no" | "under way" | "done";
  loadProblem: string;
  /** Not null when it is ready. */
  facts: KernelFacts | null;
  now: HardwareNow | null;
  usage: Usage;
  /** What to add to this page's clock to get the kernel's, in seconds. */
  clockAheadS: number;
  runs: RunSummary[];
  /** Runs that somebody here has asked to stop. */
  stopping: ReadonlySet<string>;
  plan: PlanAnswer | null;
  /** Whether `plan` answers the newest question. */
  planIsCurrent: boolean;
  /** What the kernel has refused, in its words. */
  problem: string;
}

const NOTHING: Heard = {
  link: "starting",
  executes: false,
  language: null,
  answer: "unasked",
  loading: "no",
  loadProblem: "",
  facts: null,
  now: null,
  usage: {},
  clockAheadS: 0,
  runs: [],
  stopping: new Set(),
  plan: null,
  planIsCurrent: false,
  problem: "",
};

export class KernelTalk {
  readonly changes = new Changes();
  private readonly ends = new AbortController();
  private readonly feeds = new Map<string, RunFeed>();
  private now: Heard;
  /** Counts kernel processes: what an earlier one says late does not count. */
  private life = 0;
  private wanted = false;
  /** Begins anywhere: all pages of a kernel hear the answers to each other's questions. */
  private question = Math.floor(Math.random() * 2 ** 40);
  /** The request that the kernel has refused last. */
  private refused: PanelRequest["type"] | null = null;
  /** What the newest question is about; null: nobody has asked, or the kernel has refused it. */
  private planned: Choice | null = null;

  /** `ended` is told of each run whose end is news here. */
  constructor(
    private readonly link: KernelLink,
    private readonly ended: (run: RunSummary) => void,
  ) {
    this.now = { ...NOTHING, link: link.state, executes: link.executes };
    link.changes.on(() => this.linkChanged(), this.ends.signal);
    link.onComm((message) => this.hear(message), this.ends.signal);
    if (link.state === "alive") {
      void this.begin();
    }
  }

  get heard(): Heard {
    return this.now;
  }

  /** Also before it is told, and where it cannot be known. */
  get mayBePython(): boolean {
    return !this.now.language || this.now.language.toLowerCase() === "python";
  }

  /** Of a kernel of which nothing is known yet nothing is asked. */
  private get mayBeAsked(): boolean {
    return this.now.link === "alive" && this.now.language !== null && this.mayBePython;
  }

  dispose(): void {
    this.life++;
    this.feeds.clear();
    this.ends.abort();
  }

  /** Whether somebody looks at it: then it is asked at once. */
  want(wanted: boolean): void {
    const begins = wanted && !this.wanted;
    this.wanted = wanted;
    if (begins && this.mayBeAsked) {
      void this.hello();
      if (this.now.answer === "ready") {
        this.catchUp([...this.feeds.values()]); // a kernel that nobody has asked for long sends no news
      }
    }
  }

  /** To be called now and then: has the kernel go on with its news, when somebody looks or waits for the end of runs. */
  beat(waitsForEnds: boolean): void {
    if (this.now.answer === "ready" && (this.wanted || (waitsForEnds && this.now.runs.some(goesOn)))) {
      void this.hello();
    }
  }

  /** Ask a kernel again that was silent. */
  async askAgain(): Promise<void> {
    if (this.mayBeAsked) {
      await this.hello();
    }
  }

  async loadExtension(): Promise<void> {
    const { life } = this;
    this.set({ loading: "under way", loadProblem: "" });
    const problem = await this.link.loadExtension().catch((error: unknown) => String(error));
    if (life === this.life) {
      this.set({ loading: problem === "" ? "done" : "no", loadProblem: problem });
      if (problem === "") {
        await this.hello();
      }
    }
  }

  /** What a view of the run shows, from now on. */
  follow(runId: string): RunFeed {
    const known = this.feeds.get(runId);
    if (known !== undefined) {
      return known;
    }
    const feed = new RunFeed(
      () => void this.ask({ type: "follow_run", run_id: runId }),
      () => this.changes.tell(),
    );
    this.feeds.set(runId, feed);
    feed.connect();
    return feed;
  }

  unfollow(runId: string): void {
    this.feeds.delete(runId);
  }

  /** Ask its ranks to end; a second time, soon or while they are ending: at once. `now`: at once, as the button said. */
  async stop(runId: string, now: boolean): Promise<void> {
    if (this.link.state !== "alive") {
      return; // the next press is the first that it hears
    }
    const { life } = this;
    const isEnding = this.now.runs.some((run) => run.run_id === runId && run.status === "stopping");
    const atOnce = now || isEnding || this.now.stopping.has(runId);
    this.set({ stopping: new Set([...this.now.stopping, runId]) });
    // Ranks that are kept outlive a cell that was stopped: of a later one the next press is the first.
    setTimeout(() => {
      if (life === this.life) {
        this.set({ stopping: new Set([...this.now.stopping].filter((one) => one !== runId)) });
      }
    }, AGAIN_MS);
    await this.ask({ type: "stop_named_run", run_id: runId, now: atOnce });
  }

  /** For the view of a run that is followed. */
  async askForStacks(runId: string): Promise<void> {
    await this.ask({ type: "ask_stacks_of", run_id: runId });
  }

  /** Asked again whenever the kernel tells that it is there, until it has answered. */
  async askPlan(choice: Choice): Promise<void> {
    this.planned = choice;
    this.question++;
    this.set({ planIsCurrent: false });
    if (this.now.answer === "ready") {
      await this.askPlanned(choice);
    }
  }

  private async askPlanned(choice: Choice): Promise<void> {
    const number = this.question;
    const reply = await this.ask({ type: "ask_plan", number, choice });
    if (reply?.type === "refused" && number === this.question) {
      this.planned = null; // it would refuse it again
    }
  }

  /** undefined: there was no answer, or one of an earlier process. */
  private async ask(request: PanelRequest): Promise<PanelReply | undefined> {
    const { life } = this;
    const reply = decodeReply(await this.link.request(request));
    if (life !== this.life || reply === undefined) {
      return undefined;
    }
    this.hearReply(request, reply);
    return reply;
  }

  private async hello(): Promise<void> {
    const { life } = this;
    if (this.now.answer !== "ready") {
      this.set({ answer: "asking", problem: "" });
    }
    const isSilent = () =>
      life === this.life && this.now.answer === "asking" && this.set({ answer: "silent", facts: null });
    const timer = setTimeout(isSilent, ANSWER_MS);
    await this.ask({ type: "hello" });
    clearTimeout(timer);
    if (this.now.answer === "asking" && this.now.problem !== "") {
      // It has refused: what it had told before is still so.
      this.set({ answer: this.now.facts === null ? "silent" : "ready" });
    }
  }

  private hearReply(request: PanelRequest, reply: PanelReply): void {
    switch (reply.type) {
      case "kernel_facts":
        this.hearFacts(reply);
        break;
      case "run_news":
        this.feeds.get(reply.run_id)?.receive(reply.message);
        break;
      case "refused":
        this.refused = request.type;
        this.set({ problem: reply.problem });
        break;
      case "accepted":
        // A plan is asked for by itself: what was refused to a person stays to be read.
        if (request.type !== "ask_plan" || this.refused === "ask_plan") {
          this.set({ problem: "" });
        }
    }
  }

  private hearFacts(facts: KernelFacts): void {
    // Those of before the connection was lost; one that begins below has asked already.
    const behind = this.now.answer === "ready" ? [] : [...this.feeds.values()];
    this.link.listenTo(facts.comm_id);
    this.set({ answer: "ready", loading: "no", facts, problem: "" });
    if (facts.now !== null) {
      this.hearNews(facts.now);
    }
    this.hearRuns(facts.runs);
    this.catchUp(behind);
    if (this.planned !== null && !this.now.planIsCurrent) {
      void this.askPlanned(this.planned);
    }
  }

  /** Nothing more comes of runs that are over. */
  private catchUp(feeds: RunFeed[]): void {
    for (const feed of feeds.filter(({ shown }) => !hasEnded(shown.state))) {
      feed.connect();
    }
  }

  private hear(message: CommMessage): void {
    if (message.kind === "opened") {
      if (message.target === TARGET) {
        void this.hello();
      }
    } else if (message.commId === this.now.facts?.comm_id) {
      const news = message.kind === "data" ? decodeNews(message.data) : undefined;
      if (news !== undefined) {
        this.hearNews(news);
      } else if (message.kind === "closed") {
        this.set({ answer: "silent", facts: null, runs: [], problem: "" }); // `%unload_ext accel_nb`
      }
    }
  }

  private hearNews(news: PanelNews): void {
    switch (news.type) {
      case "hardware_now":
        this.set({
          now: news,
          usage: withUsage(this.now.usage, this.now.now, news),
          clockAheadS: news.time_s - Date.now() / 1000,
        });
        break;
      case "runs_now":
        this.hearRuns(news.runs);
        break;
      case "run_news":
        this.feeds.get(news.run_id)?.receive(news.message);
        break;
      case "plan_answer":
        if (news.number === this.question) {
          this.set({ plan: news, planIsCurrent: true });
        }
    }
  }

  private hearRuns(runs: RunSummary[]): void {
    const went = new Set(this.now.runs.filter(goesOn).map((run) => run.run_id));
    this.set({ runs });
    for (const run of runs) {
      if (went.has(run.run_id) && !goesOn(run)) {
        this.ended(run);
      }
    }
  }

  private linkChanged(): void {
    const { link: before, executes } = this.now;
    const { state } = this.link;
    if (state === before && executes === this.link.executes) {
      return;
    }
    if (state === before || state === "disconnected") {
      this.set({ link: state, executes: this.link.executes });
    } else if (state === "alive" && before === "disconnected" && this.now.facts !== null) {
      // It may have been restarted meanwhile: it has to answer before it counts.
      this.set({ link: state, executes: this.link.executes, answer: "asking" });
      void this.hello();
    } else {
      this.forget();
      if (state === "alive") {
        void this.begin();
      }
    }
  }

  private forget(): void {
    this.life++;
    this.feeds.clear();
    this.planned = null;
    this.now = { ...NOTHING, link: this.link.state, executes: this.link.executes };
    this.changes.tell();
  }

  /** Of a kernel at which nobody looks it is found out without a request that it may not know. */
  private async begin(): Promise<void> {
    const { life } = this;
    const language = await this.link.language();
    if (life !== this.life) {
      return;
    }
    this.set({ language });
    if (this.mayBePython && (this.wanted || (await this.link.hasComm())) && life === this.life) {
      await this.hello();
    }
  }

  private set(part: Partial<Heard>): void {
    this.now = { ...this.now, ...part };
    this.changes.tell();
  }
}
