import { describe, expect, it } from "vitest";
import type { RankUsage } from "../src/protocol/generated";
import { advanceAll, NEW_RUN } from "../src/run/state";
import { usageText } from "../src/run/usage";
import { bytes } from "../src/run/words";
import { pathOf } from "../src/views/Sparkline";

const GIB = 2 ** 30;

function textAfter(...samples: Omit<RankUsage, "type">[]) {
  const events = samples.map((sample) => ({ type: "rank_usage" as const, rank: 0, ...sample }));
  const rank = advanceAll(NEW_RUN, events).ranks[0];
  return rank === undefined ? undefined : usageText(rank);
}

describe("what a rank takes, in words", () => {
  it("is memory and CPUs where it has no device of its own", () => {
    const peak = { memory_bytes: 3 * GIB, cpus: 0.2 };

    expect(textAfter(peak, { memory_bytes: 1.25 * GIB, cpus: 1.5 })).toEqual({
      memory: "1.3 GiB",
      busy: "150%",
      details: "1.5 CPUs busy; 1.3 GiB of memory with its children, at most 3.0 GiB",
    });
  });

  it("is what it holds of its device, and how much that computes", () => {
    const device = { device_memory_bytes: 80 * GIB, device_used_bytes: 9 * GIB, device_utilization: 0.75 };
    const shown = textAfter({ memory_bytes: GIB, cpus: 1, ...device, device_own_bytes: 7 * GIB });

    expect(shown?.memory).toBe("7.0 / 80 GiB");
    expect(shown?.busy).toBe("75%");
    expect(shown?.details).toContain("device: 9.0 GiB of 80 GiB in use, of them 7.0 GiB by this rank");
  });

  it("is what anybody holds of its device where the driver does not tell whose it is", () => {
    const shown = textAfter({ memory_bytes: GIB, cpus: 2, device_memory_bytes: 80 * GIB, device_used_bytes: 2 ** 29 });

    expect(shown?.memory).toBe("512 MiB / 80 GiB");
    expect(shown?.busy).toBe("200%");
    expect(shown?.details).toContain("used by anybody");
  });
});

describe("sizes", () => {
  it.each([
    [0, "0 B"],
    [1023, "1023 B"],
    [1536, "1.5 KiB"],
    [512 * 2 ** 20, "512 MiB"],
    [140 * GIB, "140 GiB"],
  ])("%d is %s", (size, text) => {
    expect(bytes(size)).toBe(text);
  });
});

describe("the course of a figure", () => {
  it("ends at the right, and a full value is at the top", () => {
    expect(pathOf([0, 1], 61, 1)).toBe("M59.0 13.0L60.0 1.0");
  });

  it("is scaled to what is beyond the full value", () => {
    expect(pathOf([2, 4, 1], 61, 1)).toBe("M58.0 7.0L59.0 1.0L60.0 10.0");
  });

  it("needs two values", () => {
    expect(pathOf([1], 60, 1)).toBe("");
  });
});
