// @vitest-environment jsdom
import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import "./browserStandIns";
import { Changes } from "../src/comm/changes";
import type { CommandArguments } from "../src/panel/actions";
import { type Choice, NO_CHOICE } from "../src/panel/choice";
import { keepingFocus } from "../src/panel/keepingFocus";
import { type FollowedNotebook, PanelModel } from "../src/panel/model";
import { PanelView } from "../src/panel/PanelView";
import { DEFAULT_SETTINGS } from "../src/panel/settings";
import { KernelTalk } from "../src/panel/talk";
import { BUSY_GPU, facts, readyKernel, run, StandInKernel, TWO_GPUS } from "./standInKernel";

class StandInNotebook implements FollowedNotebook {
  readonly name = "train.ipynb";
  readonly changes = new Changes();
  choice = NO_CHOICE;

  constructor(public talk: KernelTalk | null) {}

  choose(choice: Choice): void {
    this.choice = choice;
    this.changes.tell();
  }
}

const page = document.createElement("div");
document.body.append(page); // what is nowhere in the document does not change

beforeEach(() => vi.useFakeTimers());
afterEach(() => {
  act(() => render(null, page));
  vi.restoreAllMocks();
  vi.useRealTimers();
});

async function panelOf(kernel: StandInKernel | null) {
  const model = new PanelModel();
  const notebook = new StandInNotebook(kernel && new KernelTalk(kernel, () => undefined));
  const executed: [string, CommandArguments | undefined][] = [];
  const actions = {
    execute: (command: string, args?: CommandArguments) => void executed.push([command, args]),
    choose: (choice: Choice) => notebook.choose(choice),
    copy: () => Promise.resolve(true),
  };
  const draw = () => act(() => render(<PanelView shown={model.shown} actions={actions} />, page));
  model.follow(notebook);
  model.setVisible(true);
  await vi.advanceTimersByTimeAsync(0);
  model.changes.on(draw, new AbortController().signal);
  draw();
  return { model, notebook, executed, draw };
}

const named = (label: string) =>
  [...page.querySelectorAll<HTMLElement>("button, select, input, [aria-label]")].find(
    (one) => (one.getAttribute("aria-label") ?? one.textContent) === label,
  );
const press = (label: string) => act(() => named(label)?.click());
const select = (label: string, value: string) =>
  act(() => {
    const field = named(label);
    if (field instanceof HTMLSelectElement) {
      field.value = value;
      field.dispatchEvent(new Event("change", { bubbles: true }));
    }
  });

it("says that there is no notebook, and no kernel", async () => {
  const { model, draw, executed } = await panelOf(null);
  expect(page.textContent).toContain("This notebook has no kernel");
  press("Choose a kernel");
  expect(executed).toEqual([["notebook:change-kernel", undefined]]);

  model.follow(null);
  draw();

  expect(page.textContent).toContain("Open a notebook");
});

it("offers one click to load the extension", async () => {
  const { executed } = await panelOf(new StandInKernel());
  await vi.advanceTimersByTimeAsync(3000);

  expect(page.querySelector("[data-state=not-loaded]")?.textContent).toContain("%load_ext accel_nb");
  press("Load accel_nb");

  expect(executed).toEqual([["accel-nb:load-extension", undefined]]);
});

it("says that the kernel is busy", async () => {
  const kernel = readyKernel();
  await panelOf(kernel);

  kernel.executes = true;
  kernel.changes.tell();

  expect(page.querySelector(".accel-panel-busy")?.textContent).toContain("a cell is running");
});

it("test_w06: shows each device, how full and busy it is, and who uses it", async () => {
  await panelOf(readyKernel({ now: BUSY_GPU }));

  const card = named("cuda:5 NVIDIA H200");
  expect(card?.textContent).toContain("90 %");
  expect(card?.querySelector("[role=meter]")?.getAttribute("aria-valuetext")).toBe("70 of 140 GiB");
  expect([...(card?.querySelectorAll("li") ?? [])].map((user) => user.textContent)).toEqual([
    "this kernel2 GiB",
    "rank 1 of train40 GiB",
    "another kernel8 GiB",
  ]);
  expect(card?.querySelectorAll("li .accel-panel-kernel, li .accel-panel-rank, li .accel-panel-other")).toHaveLength(3);
  expect(named("CPU")?.textContent).toContain("16 CPUs");
});

it("says why devices that are here cannot be used", async () => {
  const why = "There are 2 GPUs, and torch was built without CUDA.";
  await panelOf(readyKernel({ hardware: { ...TWO_GPUS, devices: {}, unusable: { cuda: why } } }));

  expect(named("Hardware")?.textContent).toContain(why);
  expect(named("Hardware")?.textContent).not.toContain("No accelerator is visible");
});

it("test_w08: a choice is a line in words, and is what the buttons use", async () => {
  const { notebook, executed } = await panelOf(readyKernel());

  press("One rank less");
  select("Device", "cuda");
  select("Precision", "bf16");
  select("Checks", "never");

  const line = "%%accelerate --num-processes 1 --device cuda --mixed-precision bf16 --no-debug";
  expect(page.querySelector(".accel-panel-code")?.textContent).toBe(line);
  expect(notebook.choice).toMatchObject({ num_processes: 1, device: "cuda", mixed_precision: "bf16", debug: false });
  press("Insert cell");
  press("Run this cell on 1 rank");
  expect(executed.map(([command]) => command)).toEqual(["accel-nb:insert-cell", "accel-nb:run-cell"]);
});

it("refuses a number of ranks that is none, in words, and keeps what was chosen", async () => {
  const { notebook } = await panelOf(readyKernel());
  const field = () => named("Number of ranks") as HTMLInputElement;
  const type = (text: string) =>
    act(() => {
      field().value = text;
      field().dispatchEvent(new Event("input", { bubbles: true }));
    });
  const told = () => page.querySelector(".accel-panel-form [role=alert]")?.textContent;
  type("3");

  type("0");
  expect(told()).toContain("0 is no number of ranks: give a whole number of at least 1");
  expect(field().getAttribute("aria-invalid")).toBe("true");
  type("1.5");
  expect(told()).toContain("1.5 is no number of ranks");
  expect(notebook.choice.num_processes).toBe(3);
  act(() => void field().dispatchEvent(new FocusEvent("blur")));

  expect(told()).toBeUndefined();
  expect(field().value).toBe("3");
});

it("test_l18: shows what the settings file says, that it comes from there, and that a choice overrules it", async () => {
  const choice = { ...NO_CHOICE, num_processes: 4, device: "cpu", mixed_precision: "bf16", debug: true };
  const { notebook } = await panelOf(readyKernel({ settings: { path: "/c/config.yaml", choice, problem: "" } }));
  const shown = (label: string) => (named(label) as HTMLSelectElement).selectedOptions[0]?.textContent;

  expect((named("Number of ranks") as HTMLInputElement).placeholder).toBe("file: 4");
  expect(["Device", "Precision", "Checks", "Backend"].map(shown)).toEqual([
    "cpu (file)",
    "bf16 (file)",
    "always (file)",
    "auto",
  ]);
  expect(named("Start")?.textContent).toContain("file: /c/config.yaml");
  expect(named("Run this cell on 4 ranks")).toBeDefined();
  expect(page.querySelector(".accel-panel-code")?.textContent).toBe("%%accelerate");
  select("Precision", "no");

  expect(notebook.choice).toEqual({ ...NO_CHOICE, mixed_precision: "no" });
  expect(page.querySelector(".accel-panel-code")?.textContent).toBe("%%accelerate --mixed-precision no");
});

it("keeps the focus of the keyboard where a button was that has gone", async () => {
  const { draw } = await panelOf(new StandInKernel());
  await vi.advanceTimersByTimeAsync(3000);
  page.tabIndex = -1;
  const drawn = (change: () => void) => keepingFocus(page, () => act(change));

  named("Load accel_nb")?.focus();
  drawn(() => render(null, page));
  expect(document.activeElement).toBe(page);
  page.blur();
  drawn(draw);

  expect(document.activeElement).toBe(document.body);
});

it("test_l14: devices are chosen by boxes, by their position among the visible ones", async () => {
  const { notebook } = await panelOf(readyKernel());
  const boxes = () => [...page.querySelectorAll<HTMLInputElement>("fieldset input")];

  expect(boxes().map((box) => box.checked)).toEqual([true, true]);
  act(() => boxes()[0]?.click());

  expect(notebook.choice.devices).toEqual([1]);
  expect(named("Run this cell on 1 rank")).toBeDefined();
});

it("says in words what will start, some time after the last change", async () => {
  const kernel = readyKernel();
  await panelOf(kernel);
  await vi.advanceTimersByTimeAsync(300);
  press("One rank more");
  press("One rank more");
  await vi.advanceTimersByTimeAsync(300);

  const questions = kernel.asked.filter((request) => request.type === "ask_plan");
  expect(questions.map((question) => question.choice.num_processes)).toEqual([null, 4]);
  const { number } = questions[1] ?? { number: 0 };
  act(() => kernel.news({ type: "plan_answer", number, line: "4 ranks", reasons: ["because"], problem: "" }));
  expect(named("What will start")?.textContent).toContain("4 ranks");
  act(() => kernel.news({ type: "plan_answer", number, line: "", reasons: [], problem: "Too many ranks." }));
  expect(page.querySelector("p.accel-panel-warning")?.textContent).toBe("Too many ranks.");
});

it("scrolls to why a button did nothing, once for each reason", async () => {
  const { model } = await panelOf(readyKernel());
  const scrolled = vi.spyOn(Element.prototype, "scrollIntoView");

  model.refuse("Select the code cell.");
  model.setVisible(true);
  model.refuse("The cell is read-only.");

  expect(page.querySelector("p.accel-panel-warning")?.textContent).toBe("The cell is read-only.");
  expect(scrolled).toHaveBeenCalledTimes(2);
});

it("scrolls again to the reason why a button did nothing when it is pressed again", async () => {
  const { model } = await panelOf(readyKernel());
  const scrolled = vi.spyOn(Element.prototype, "scrollIntoView");

  model.refuse("Select the code cell.");
  const before = page.querySelector("p.accel-panel-warning");
  model.refuse("Select the code cell.");

  expect(page.querySelector("p.accel-panel-warning")).not.toBe(before);
  expect(scrolled).toHaveBeenCalledTimes(2);
});

it("forgets why a button did nothing with the kernel process", async () => {
  const kernel = readyKernel();
  const { model } = await panelOf(kernel);
  model.refuse("Select the code cell.");

  kernel.become("restarting");
  kernel.become("alive");
  await act(async () => void (await vi.advanceTimersByTimeAsync(0)));

  expect(named("Start")).toBeDefined();
  expect(page.textContent).not.toContain("Select the code cell.");
});

it("asks a new kernel process what would start, also when no run was open", async () => {
  const kernel = readyKernel();
  await panelOf(kernel);
  const questions = () => kernel.asked.filter((request) => request.type === "ask_plan");
  await vi.advanceTimersByTimeAsync(300);
  expect(questions()).toHaveLength(1);

  kernel.become("restarting"); // in a container, the next process may have the same number
  kernel.become("alive");
  await act(async () => void (await vi.advanceTimersByTimeAsync(300)));

  expect(questions()).toHaveLength(2);
});

it("opens a run that begins by itself, once", async () => {
  const kernel = readyKernel();
  const { model } = await panelOf(kernel);

  kernel.news({ type: "runs_now", runs: [run()] });
  expect(page.querySelector(".accel-panel-run .accel-run")).not.toBeNull();
  model.showRun(null);
  kernel.news({ type: "runs_now", runs: [run({ status: "stopping" })] });

  expect(page.querySelector(".accel-panel-run .accel-run")).toBeNull();
});

it("leaves a run as it is shown when its stacks are asked for", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { model, notebook } = await panelOf(kernel);
  const shown = model.shown.openRun?.shown;
  const scrolled = vi.spyOn(Element.prototype, "scrollIntoView");

  model.showRun("run-1");
  await notebook.talk?.askForStacks("run-1");
  expect(model.shown.openRun?.shown).toBe(shown);
  const message = { type: "stack_texts", text_by_rank: { 0: "File train.py, line 3" }, problem: "" };
  act(() => kernel.news({ type: "run_news", run_id: "run-1", message }));

  expect(kernel.types().filter((type) => type === "follow_run")).toHaveLength(1);
  expect(page.querySelector("[aria-label=Stacks]")?.textContent).toContain("File train.py, line 3");
  expect(scrolled).toHaveBeenCalledOnce();
});

it("names the cell of a run once", async () => {
  const cell = run({ run_id: "run-2", function_name: "Cell In[3]", status: "finished", duration_s: 5 });
  await panelOf(readyKernel({ runs: [run({ status: "finished", duration_s: 5 }), cell] }));

  const told = [...page.querySelectorAll(".accel-panel-run-title")].map((title) => title.textContent);
  expect(told[0]).toContain("Cell In[3]");
  expect(told[0]?.match(/In\[3\]/g)).toHaveLength(1);
  expect(told[1]).toContain("train");
  expect(told[1]).toContain("· In[3]");
});

it("gives each run its buttons", async () => {
  const { executed } = await panelOf(readyKernel({ runs: [run()] }));

  press("Stop train");
  press("Stacks of train");
  press("Go to the cell of train");
  press("train, running: hide the run");

  expect(executed).toEqual([
    ["accel-nb:stop-run", { runId: "run-1", now: false }],
    ["accel-nb:show-stacks", { runId: "run-1" }],
    ["accel-nb:jump-to-cell", { runId: "run-1" }],
    ["accel-nb:show-run", { runId: "run-1" }],
  ]);
});

const stopInView = () => page.querySelector<HTMLButtonElement>(".accel-run .accel-stop");
const stopWords = () => [...page.querySelectorAll(".accel-panel-stop, .accel-run .accel-stop")].map(textOf);
const textOf = (one: Element) => one.textContent?.replace("■ ", "");

it("test_u08: stops at once from the view of a run whose ranks somebody else has asked to end", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { executed } = await panelOf(kernel);

  const message = { type: "new_events", events: [{ type: "stop_requested", by: "handle" }], now_s: 1 };
  act(() => kernel.news({ type: "run_news", run_id: "run-1", message }));
  expect(stopWords(), "the kernel's list has not been told anew").toEqual(["Stop now", "Stop now"]);
  expect(page.querySelector(".accel-panel-status")?.textContent).toContain("stopping");
  act(() => stopInView()?.click());

  expect(executed).toEqual([["accel-nb:stop-run", { runId: "run-1", now: true }]]);
});

it("test_u08: says Stop again in the view of kept ranks, some time after a cell of theirs was stopped", async () => {
  const kernel = readyKernel({ runs: [run()] });
  const { notebook, executed } = await panelOf(kernel);

  act(() => stopInView()?.click());
  await act(async () => await notebook.talk?.stop("run-1", false));
  expect(stopWords()).toEqual(["Stop now", "Stop now"]);
  act(() => named("Stop train now")?.click());
  await act(async () => void (await vi.advanceTimersByTimeAsync(10_001)));
  expect(stopWords()).toEqual(["Stop", "Stop"]);
  act(() => stopInView()?.click());

  expect(executed.map(([, args]) => args?.now)).toEqual([false, true, false]);
});

it("counts how long a run takes by the kernel's clock, whatever this page's says", async () => {
  const kernel = readyKernel({ now: { ...BUSY_GPU, time_s: 161 }, runs: [run({ started_s: 100 })] });
  await panelOf(kernel);
  const took = () => page.querySelector(".accel-panel-run-facts time")?.textContent;
  expect(took()).toBe("1:01");

  await act(async () => void (await vi.advanceTimersByTimeAsync(2000)));

  expect(took()).toBe("1:03");
});

it("shows why a run failed, and no buttons that would do nothing", async () => {
  await panelOf(
    readyKernel({
      runs: [run({ status: "failed", duration_s: 3, headline: "KeyError: 'bias'", cell_id: "", cell: "" })],
    }),
  );

  expect(page.querySelector(".accel-panel-run")?.textContent).toContain("KeyError: 'bias'");
  expect(named("Stop train")).toBeUndefined();
  expect(named("Go to the cell of train")).toBeUndefined();
});

it("test_u02: shows that versions differ beside all that works", async () => {
  await panelOf(readyKernel({ version: "9.9.9" }));

  expect(page.querySelector("[role=alert]")?.textContent).toContain("accel_nb 9.9.9");
  expect(named("Insert cell")).toBeDefined();
});

it("test_u06: each section can be switched off", async () => {
  const { model } = await panelOf(readyKernel());
  const sections = () => [...page.querySelectorAll("section")].map((one) => one.getAttribute("aria-label"));
  expect(sections()).toEqual(["Hardware", "Start", "Runs"]);

  model.setSettings({ ...DEFAULT_SETTINGS, showHardware: false, showStart: false });

  expect(sections()).toEqual(["Runs"]);
});

it("follows the notebook in front", async () => {
  const { model, draw } = await panelOf(readyKernel({ runs: [run()] }));
  const other = readyKernel();

  model.follow(new StandInNotebook(new KernelTalk(other, () => undefined)));
  await vi.advanceTimersByTimeAsync(0);
  draw();

  expect(other.types()[0]).toBe("hello");
  expect(page.textContent).toContain("None yet in this kernel");
});

it("leaves a section folded while the kernel is restarted, and for the next notebook", async () => {
  const kernel = readyKernel();
  const { model, draw } = await panelOf(kernel);
  const hardware = () => page.querySelector<HTMLDetailsElement>("details.accel-panel-section");
  await act(async () => {
    hardware()?.querySelector("summary")?.click();
    await vi.advanceTimersByTimeAsync(10);
  });
  expect(hardware()?.open).toBe(false);

  kernel.become("restarting");
  expect(hardware()).toBeNull();
  model.follow(new StandInNotebook(new KernelTalk(readyKernel(), () => undefined)));
  await vi.advanceTimersByTimeAsync(10);
  draw();

  expect(hardware()?.open).toBe(false);
});

it("shows a run again that nobody has closed when its notebook is back in front", async () => {
  const { model, notebook, draw } = await panelOf(readyKernel({ runs: [run()] }));
  const isOpen = () => page.querySelector(".accel-panel-run .accel-run") !== null;
  const back = async () => {
    model.follow(new StandInNotebook(null));
    model.follow(notebook);
    await vi.advanceTimersByTimeAsync(0);
    draw();
  };

  await back();
  expect(isOpen()).toBe(true);
  model.showRun(null);
  await back();

  expect(isOpen()).toBe(false);
});

it("does not go on to ask for a run of which it has nothing to show", async () => {
  const kernel = readyKernel({ runs: [run()] });
  await panelOf(kernel);
  kernel.answers = (request) => (request.type === "hello" ? facts({ comm_id: "comm-2" }) : { type: "accepted" });

  kernel.tell({ kind: "closed", commId: "comm-1" });
  kernel.tell({ kind: "opened", target: "accel_nb.panel" });
  await vi.advanceTimersByTimeAsync(0);

  expect(kernel.types().filter((type) => type === "follow_run")).toHaveLength(1);
});
