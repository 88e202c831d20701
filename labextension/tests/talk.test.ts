import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { NO_CHOICE } from "../src/panel/choice";
import { KernelTalk } from "../src/panel/talk";
import { obstacle, obstacleText } from "../src/panel/words";
import type { RunSummary } from "../src/protocol/generated";
import { pythonState, recordedEvents } from "./recorded";
import { BUSY_GPU, facts, readyKernel, run, StandInKernel } from "./standInKernel";

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

const settled = () => vi.advanceTimersByTimeAsync(0);

async function wantedTalk(kernel: StandInKernel) {
  const ended: RunSummary[] = [];
  const talk = new KernelTalk(kernel, (one) => ended.push(one));
  talk.want(true);
  await settled();
  return { talk, ended };
}

const obstacleOf = (talk: KernelTalk) => obstacle("train.ipynb", talk.heard)?.kind ?? null;

it("asks a kernel at which somebody looks, and listens to its comm", async () => {
  const kernel = readyKernel({ now: BUSY_GPU });

  const { talk } = await wantedTalk(kernel);

  expect(kernel.types()).toEqual(["hello"]);
  expect(kernel.listened).toEqual(["comm-1"]);
  expect(obstacleOf(talk)).toBeNull();
  expect(talk.heard.now).toEqual(BUSY_GPU);
  expect(talk.heard.usage["cuda:5"]).toEqual([0.9]);
});

it("asks nothing that a kernel may not know while nobody looks", async () => {
  const kernel = new StandInKernel();

  new KernelTalk(kernel, () => undefined);
  await settled();

  expect(kernel.asked).toEqual([]);
});

it("asks a kernel at which nobody looks when it has opened the comm", async () => {
  const kernel = readyKernel();
  kernel.hasOpenComm = true;

  const talk = new KernelTalk(kernel, () => undefined);
  await settled();

  expect(talk.heard.answer).toBe("ready");
});

it("says after three seconds that a silent kernel has not loaded accel_nb, and takes a late answer", async () => {
  const kernel = new StandInKernel();
  let answer: (value: unknown) => void = () => undefined;
  kernel.request = () => new Promise((resolve) => (answer = resolve));
  const { talk } = await wantedTalk(kernel);
  expect(obstacleOf(talk)).toBe("asking");

  await vi.advanceTimersByTimeAsync(3000);
  expect(obstacleOf(talk)).toBe("not-loaded");

  answer(facts());
  await settled();
  expect(obstacleOf(talk)).toBeNull();
});

it("loads the extension, and asks again", async () => {
  const kernel = new StandInKernel();
  const { talk } = await wantedTalk(kernel);
  await vi.advanceTimersByTimeAsync(3000);
  kernel.answers = () => facts();

  await talk.loadExtension();

  expect(obstacleOf(talk)).toBeNull();
});

it("test_u04: says that accel_nb is not installed where the kernel runs", async () => {
  const kernel = new StandInKernel();
  kernel.loadProblem = "ModuleNotFoundError: No module named 'accel_nb'";
  const { talk } = await wantedTalk(kernel);
  await vi.advanceTimersByTimeAsync(3000);

  await talk.loadExtension();

  expect(obstacle("train.ipynb", talk.heard)).toEqual({ kind: "cannot-load", problem: kernel.loadProblem });
});

it("asks when the kernel opens the comm, as on %load_ext", async () => {
  const kernel = new StandInKernel();
  const { talk } = await wantedTalk(kernel);
  await vi.advanceTimersByTimeAsync(3000);
  kernel.answers = () => facts();

  kernel.tell({ kind: "opened", target: "accel_nb.panel" });
  await settled();

  expect(obstacleOf(talk)).toBeNull();
});

it("has nothing to show when the extension is unloaded", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);

  kernel.tell({ kind: "closed", commId: "comm-1" });

  expect(obstacleOf(talk)).toBe("not-loaded");
});

it("leaves a kernel of another language alone", async () => {
  const kernel = readyKernel();
  kernel.speaks = "R";

  const { talk } = await wantedTalk(kernel);

  expect(kernel.asked).toEqual([]);
  expect(obstacle("a.ipynb", talk.heard)).toEqual({ kind: "not-python", language: "R" });
});

it("forgets all when the kernel is restarted, and asks the new process", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);
  talk.follow("run-1");

  kernel.become("restarting");
  expect(obstacleOf(talk)).toBe("restarting");
  expect(talk.heard.runs).toEqual([]);
  kernel.answers = undefined;
  kernel.become("alive");
  await vi.advanceTimersByTimeAsync(3000);

  expect(obstacleOf(talk)).toBe("not-loaded");
});

it("does not take the answer of an earlier process", async () => {
  const kernel = new StandInKernel();
  let answer: (value: unknown) => void = () => undefined;
  kernel.request = () => new Promise((resolve) => (answer = resolve));
  const { talk } = await wantedTalk(kernel);
  const ofEarlier = answer;

  kernel.become("dead");
  ofEarlier(facts());
  await settled();

  expect(talk.heard.facts).toBeNull();
  expect(obstacleOf(talk)).toBe("dead");
});

it("keeps what it knows while the connection is lost, then asks and catches up with the run that is shown", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);
  talk.follow("run-1");

  kernel.become("disconnected");
  expect(obstacleOf(talk)).toBe("disconnected");
  kernel.become("alive");
  await settled();

  expect(kernel.types()).toEqual(["hello", "follow_run", "hello", "follow_run"]);
  expect(obstacleOf(talk)).toBeNull();
});

it("test_o14: follows a run: its whole by the answer, what happens by news", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);
  const events = recordedEvents("success");

  const feed = talk.follow("run-1");
  kernel.news({ type: "run_news", run_id: "another", message: { type: "new_events", events, now_s: 1 } });
  expect(feed.shown.state.plan).toBeNull();
  kernel.news({ type: "run_news", run_id: "run-1", message: { type: "new_events", events, now_s: 1 } });

  expect(kernel.types()).toEqual(["hello", "follow_run"]);
  expect(feed.shown.state.status).toBe("finished");
});

it("test_u08: asks ranks to stop, and the second time to stop at once", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);

  await talk.stop("run-1", false);
  await talk.stop("run-1", false);

  expect(kernel.asked.slice(1)).toEqual([
    { type: "stop_named_run", run_id: "run-1", now: false },
    { type: "stop_named_run", run_id: "run-1", now: true },
  ]);
});

it("test_u08: asks ranks to stop at once when the button said so, whatever the list of runs says", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);

  await talk.stop("run-1", true);

  expect(kernel.asked.slice(1)).toEqual([{ type: "stop_named_run", run_id: "run-1", now: true }]);
});

it("shows what the kernel refuses", async () => {
  const kernel = readyKernel();
  const { talk } = await wantedTalk(kernel);
  kernel.answers = () => ({ type: "refused", problem: "There is no run x." });

  await talk.stop("x", false);

  expect(talk.heard.problem).toBe("There is no run x.");
});

it("shows what the kernel refuses to a person also when it plans meanwhile", async () => {
  const kernel = readyKernel();
  const { talk } = await wantedTalk(kernel);
  kernel.answers = (request) =>
    request.type === "ask_plan" ? { type: "accepted" } : { type: "refused", problem: "There is no run x." };

  await talk.stop("x", false);
  await talk.askPlan(NO_CHOICE);

  expect(talk.heard.problem).toBe("There is no run x.");
});

it("takes the plan of its own newest question only", async () => {
  const kernel = readyKernel();
  const { talk } = await wantedTalk(kernel);
  const plan = (number: number, line: string) =>
    kernel.news({ type: "plan_answer", number, line, reasons: [], problem: "" });

  await talk.askPlan(NO_CHOICE);
  await talk.askPlan({ ...NO_CHOICE, num_processes: 2 });
  const [first, second] = kernel.asked.slice(1).map((request) => (request.type === "ask_plan" ? request.number : 0));
  plan(second ?? 0, "two ranks");
  plan(first ?? 0, "one rank");

  expect(talk.heard.plan?.line).toBe("two ranks");
  expect(talk.heard.planIsCurrent).toBe(true);
});

it("asks for a plan again when the answer was lost with the connection, and no more when it is there", async () => {
  const kernel = readyKernel();
  const { talk } = await wantedTalk(kernel);
  const questions = () => kernel.asked.filter((request) => request.type === "ask_plan");
  await talk.askPlan(NO_CHOICE);
  await talk.askPlan({ ...NO_CHOICE, num_processes: 2 });

  for (let times = 0; times < 2; times++) {
    kernel.become("disconnected");
    kernel.become("alive");
    await settled();
    const { number } = questions().at(-1) ?? { number: 0 };
    kernel.news({ type: "plan_answer", number, line: "two ranks", reasons: [], problem: "" });
  }

  expect(questions().map(({ choice }) => choice.num_processes)).toEqual([null, 2, 2]);
  expect(talk.heard).toMatchObject({ plan: { line: "two ranks" }, planIsCurrent: true });
});

it("does not ask again what the kernel has refused to plan, but asks what came after it", async () => {
  const kernel = readyKernel();
  const { talk } = await wantedTalk(kernel);
  const asked = () => kernel.asked.filter((request) => request.type === "ask_plan").map(({ choice }) => choice);
  const hello = async () => {
    await talk.askAgain();
    await settled();
  };
  kernel.answers = (request) => (request.type === "hello" ? facts() : { type: "refused", problem: "Too old." });
  await talk.askPlan(NO_CHOICE);
  expect(talk.heard.problem).toBe("Too old.");

  await hello();
  expect(asked()).toEqual([NO_CHOICE]);
  expect(talk.heard.problem).toBe("");
  const newer = { ...NO_CHOICE, num_processes: 2 };
  const refused = talk.askPlan(NO_CHOICE);
  kernel.answers = (request) => (request.type === "hello" ? facts() : { type: "accepted" });
  await talk.askPlan(newer);
  await refused;
  await hello();

  expect(asked()).toEqual([NO_CHOICE, NO_CHOICE, newer, newer]);
});

it("asks for a plan that was wanted without a connection when there is one", async () => {
  const kernel = readyKernel();
  const { talk } = await wantedTalk(kernel);

  kernel.become("disconnected");
  kernel.become("alive");
  void talk.askPlan(NO_CHOICE);
  expect(kernel.types()).not.toContain("ask_plan");
  await settled();

  expect(kernel.types().at(-1)).toBe("ask_plan");
});

it("catches up with the run that is shown when somebody looks again, however long nobody has asked", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);
  const feed = talk.follow("run-1");
  await settled();

  const whole = { type: "whole_run", state: pythonState("success"), lines: [], started_s: 1, now_s: 2, can_hear: true };
  talk.want(false);
  kernel.answers = (request) =>
    request.type === "hello"
      ? facts({ runs: [run({ status: "finished", duration_s: 700 })] })
      : { type: "run_news", run_id: "run-1", message: whole };
  talk.want(true);
  await settled();

  expect(kernel.types()).toEqual(["hello", "follow_run", "hello", "follow_run"]);
  expect(feed.shown.state.status).toBe("finished");
});

it("does not ask again for a run that is shown and is over", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);
  talk.follow("run-1");
  const events = recordedEvents("success");
  kernel.news({ type: "run_news", run_id: "run-1", message: { type: "new_events", events, now_s: 1 } });

  talk.want(false);
  talk.want(true);
  kernel.become("disconnected");
  kernel.become("alive");
  await settled();

  expect(kernel.types().filter((type) => type === "follow_run")).toHaveLength(1);
});

it("tells the end of a run once, and not of those that were over before", async () => {
  const kernel = readyKernel({ runs: [run({ run_id: "old", status: "failed", duration_s: 5 }), run()] });
  const { ended } = await wantedTalk(kernel);
  const over = run({ status: "finished", duration_s: 61 });

  kernel.news({ type: "runs_now", runs: [over] });
  kernel.news({ type: "runs_now", runs: [over] });

  expect(ended).toEqual([over]);
});

it("tells the end of a run that ended while the connection was lost", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { ended } = await wantedTalk(kernel);
  const over = run({ status: "failed", duration_s: 61 });

  kernel.become("disconnected");
  kernel.answers = () => facts({ runs: [over] });
  kernel.become("alive");
  await settled();

  expect(ended).toEqual([over]);
});

it("says why a kernel that is asked refuses, until it answers", async () => {
  const kernel = new StandInKernel();
  kernel.answers = () => ({ type: "refused", problem: "This kernel could not look at its machine." });
  const { talk } = await wantedTalk(kernel);
  expect(obstacle("train.ipynb", talk.heard)).toEqual({
    kind: "refused",
    problem: "This kernel could not look at its machine.",
  });

  kernel.answers = () => facts();
  await talk.askAgain();

  expect(obstacleOf(talk)).toBeNull();
});

it("keeps what it knows of a kernel that refuses after the connection was lost", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);

  kernel.become("disconnected");
  kernel.answers = () => ({ type: "refused", problem: "No." });
  kernel.become("alive");
  await settled();

  expect(obstacleOf(talk)).toBeNull();
  expect(talk.heard).toMatchObject({ answer: "ready", problem: "No.", runs: [run()] });
});

it("does not take what it refused earlier for a reason why it is silent", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);
  kernel.answers = () => ({ type: "refused", problem: "train is over." });
  await talk.stop("run-1", false);

  kernel.tell({ kind: "closed", commId: "comm-1" });

  expect(obstacleOf(talk)).toBe("not-loaded");
});

it("test_u08: takes a stop long after another for the first of two, unless the ranks are ending", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);
  await talk.stop("run-1", false);
  vi.advanceTimersByTime(10_001);
  expect(talk.heard.stopping.has("run-1")).toBe(false);
  await talk.stop("run-1", false);
  vi.advanceTimersByTime(10_001);
  kernel.news({ type: "runs_now", runs: [run({ status: "stopping" })] });
  await talk.stop("run-1", false);

  expect(kernel.asked.filter(({ type }) => type === "stop_named_run")).toEqual([
    { type: "stop_named_run", run_id: "run-1", now: false },
    { type: "stop_named_run", run_id: "run-1", now: false },
    { type: "stop_named_run", run_id: "run-1", now: true },
  ]);
});

it("test_u08: does not take a stop that the kernel could not hear for the first of two", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);

  kernel.become("disconnected");
  await talk.stop("run-1", false);
  kernel.become("alive");
  await settled();
  await talk.stop("run-1", false);

  expect(kernel.asked.filter(({ type }) => type === "stop_named_run")).toEqual([
    { type: "stop_named_run", run_id: "run-1", now: false },
  ]);
});

it("says that loading has come to nothing when the request is dropped", async () => {
  const kernel = new StandInKernel();
  kernel.loadExtension = () => Promise.reject(new Error("Canceled"));
  const { talk } = await wantedTalk(kernel);
  await vi.advanceTimersByTimeAsync(3000);

  await talk.loadExtension();

  expect(obstacle("train.ipynb", talk.heard)).toEqual({ kind: "cannot-load", problem: "Error: Canceled" });
});

it("takes a kernel for one of Python until it has told otherwise", async () => {
  const kernel = readyKernel();
  kernel.speaks = "R";
  const talk = new KernelTalk(kernel, () => undefined);
  expect(talk.mayBePython).toBe(true);
  talk.want(true);
  expect(kernel.asked).toEqual([]);

  await settled();

  expect(talk.mayBePython).toBe(false);
});

it("asks a kernel whose language is not to be had, and says so when it is silent", async () => {
  const kernel = new StandInKernel();
  kernel.speaks = "";
  const { talk } = await wantedTalk(kernel);
  expect(kernel.types()).toEqual(["hello"]);

  await vi.advanceTimersByTimeAsync(3000);

  const inTheWay = obstacle("a.ipynb", talk.heard);
  expect(inTheWay).toEqual({ kind: "not-loaded", executes: false, isKnownPython: false });
  expect(inTheWay && obstacleText(inTheWay).text).toContain("does not tell its language; launches need Python");
});

it("has the kernel go on with its news while somebody looks, or waits for the end of a run", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { talk } = await wantedTalk(kernel);
  const hellos = () => kernel.types().filter((type) => type === "hello").length;

  talk.beat(false);
  expect(hellos()).toBe(2);
  talk.want(false);
  talk.beat(true);
  expect(hellos()).toBe(3);
  talk.beat(false);
  await settled();

  expect(hellos()).toBe(3);
});

it("skips news that it does not know, and those of other comms", async () => {
  const kernel = readyKernel();
  const { talk } = await wantedTalk(kernel);

  kernel.news({ type: "of_the_future" });
  kernel.news(null);
  kernel.tell({ kind: "data", commId: "comm-2", data: BUSY_GPU });

  expect(talk.heard.now).toBeNull();
});

it("leaves nothing behind", async () => {
  const kernel = readyKernel();
  const { talk } = await wantedTalk(kernel);

  talk.dispose();

  expect(kernel.isHeard).toBe(false);
});
