import { expect, it } from "vitest";
import {
  fromMetadata,
  magicLine,
  NO_CHOICE,
  ranksMeant,
  toMetadata,
  withMagicLine,
  withSettings,
} from "../src/panel/choice";
import { TWO_GPUS } from "./standInKernel";

const ALL = {
  num_processes: 2,
  device: "cuda",
  devices: [1, 0],
  mixed_precision: "bf16",
  debug: true,
  backend: "local",
};

it("writes only what is not left to the planner", () => {
  expect(magicLine(NO_CHOICE)).toBe("%%accelerate");
  expect(magicLine(ALL)).toBe(
    "%%accelerate --num-processes 2 --device cuda --devices 1,0 --mixed-precision bf16 --debug --backend local",
  );
  expect(magicLine({ ...NO_CHOICE, debug: false })).toBe("%%accelerate --no-debug");
});

it("test_w08: puts a visible line on top of a cell", () => {
  expect(withMagicLine("\n\ntrain()\n", { ...NO_CHOICE, num_processes: 2 })).toEqual({
    source: "%%accelerate --num-processes 2\ntrain()\n",
  });
  expect(withMagicLine("", NO_CHOICE)).toEqual({ source: "%%accelerate\n" });
});

it("replaces a line that is there, and keeps the options that it does not choose", () => {
  const line = "%%accelerate --num_processes=4 --out a,b --device cpu --no-debug --env 'A=b c' --keep";

  expect(withMagicLine(`${line}\ntrain()`, { ...NO_CHOICE, num_processes: 2 })).toEqual({
    source: "%%accelerate --num-processes 2 --out a,b --env 'A=b c' --keep\ntrain()",
  });
});

it("test_l14: keeps devices that are named by id, which the panel does not offer, unless others are chosen", () => {
  const line = "%%accelerate --devices GPU-8f6a,GPU-11c2 --keep";
  const put = (part: object, from = line) => withMagicLine(from, { ...NO_CHOICE, ...part });

  expect(put({ num_processes: 2 })).toEqual({
    source: "%%accelerate --num-processes 2 --devices GPU-8f6a,GPU-11c2 --keep\n",
  });
  expect(put({}, "%%accelerate --devices=GPU-8f6a")).toEqual({ source: "%%accelerate --devices=GPU-8f6a\n" });
  expect(put({ devices: [1] })).toEqual({ source: "%%accelerate --devices 1 --keep\n" });
  expect(put({ device: "cpu" })).toEqual({ source: "%%accelerate --device cpu --keep\n" });
  expect(put({}, "%%accelerate --devices=1,0")).toEqual({ source: "%%accelerate\n" });
});

it("test_l18: takes from the settings file what is not chosen, ranks and devices together", () => {
  const choice = { ...NO_CHOICE, num_processes: 4, device: "cpu", mixed_precision: "bf16" };
  const settings = { path: "/c/config.yaml", choice, problem: "" };

  expect(withSettings(NO_CHOICE, settings)).toEqual(choice);
  expect(withSettings({ ...NO_CHOICE, num_processes: 2 }, settings)).toEqual({
    ...NO_CHOICE,
    num_processes: 2,
    mixed_precision: "bf16",
  });
  expect(withSettings({ ...NO_CHOICE, mixed_precision: "no" }, settings)).toEqual({ ...choice, mixed_precision: "no" });
  expect(withSettings(ALL, null)).toEqual(ALL);
});

it("refuses a cell that belongs to another magic", () => {
  expect(withMagicLine("%%time\ntrain()", NO_CHOICE)).toEqual({
    problem: "The cell begins with %%time, and a cell takes one such line. Remove it, or move the rest.",
  });
});

it("counts ranks by the planner's rule", () => {
  expect(ranksMeant(NO_CHOICE, TWO_GPUS)).toBe(2);
  expect(ranksMeant({ ...NO_CHOICE, device: "cpu" }, TWO_GPUS)).toBe(1);
  expect(ranksMeant({ ...NO_CHOICE, devices: [1] }, TWO_GPUS)).toBe(1);
  expect(ranksMeant({ ...NO_CHOICE, num_processes: 5 }, TWO_GPUS)).toBe(5);
  expect(ranksMeant(NO_CHOICE, { ...TWO_GPUS, devices: {} })).toBe(1);
});

it("is kept in the notebook's metadata as far as it says something", () => {
  expect(toMetadata(NO_CHOICE, undefined)).toBeUndefined();
  expect(toMetadata({ ...NO_CHOICE, device: "cpu" }, { choice: { debug: true } })).toEqual({
    choice: { device: "cpu" },
  });
  expect(fromMetadata(JSON.parse(JSON.stringify(toMetadata(ALL, undefined))))).toEqual(ALL);
});

it("test_u05: leaves in the metadata what is not its own", () => {
  const kept = { choice: { device: "cpu" }, future: { panel: "left" } };

  expect(toMetadata({ ...NO_CHOICE, num_processes: 2 }, kept)).toEqual({ ...kept, choice: { num_processes: 2 } });
  expect(toMetadata(NO_CHOICE, kept)).toEqual({ future: kept.future });
  expect(toMetadata(NO_CHOICE, { choice: { device: "cpu" } })).toBeUndefined();
});

it("test_u05: takes no option for a value", () => {
  expect(fromMetadata({ choice: { device: "--keep", mixed_precision: "-x", backend: "local" } })).toEqual({
    ...NO_CHOICE,
    backend: "local",
  });
});

it("test_u05: what metadata of another version hold is dropped where it is no choice", () => {
  const odd = {
    num_processes: -1,
    device: "cpu\nimport os",
    devices: ["a"],
    mixed_precision: 3,
    debug: "yes",
    backend: "local",
    future: 1,
  };

  expect(fromMetadata({ choice: odd })).toEqual({ ...NO_CHOICE, backend: "local" });
  expect(fromMetadata(null)).toEqual(NO_CHOICE);
});
