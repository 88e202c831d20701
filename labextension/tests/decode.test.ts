import { expect, it } from "vitest";
import { decodeEvent, decodeLines, decodeMessage } from "../src/protocol/decode";

it("skips events that a newer kernel sends", () => {
  const known = { type: "notice", text: "hello" };

  expect(
    decodeMessage({ type: "new_events", events: [known, { type: "from_the_future" }, 3, null], now_s: 1 }),
  ).toEqual({
    type: "new_events",
    events: [known],
    now_s: 1,
  });
});

it("keeps fields that it does not know", () => {
  expect(decodeEvent({ type: "notice", text: "hello", colour: "red" })).toMatchObject({
    type: "notice",
    text: "hello",
  });
});

it.each([undefined, null, 3, "run_ended", [], {}, { type: 3 }, { type: "toString" }])(
  "takes %j for no message",
  (value) => {
    expect(decodeMessage(value)).toBeUndefined();
    expect(decodeEvent(value)).toBeUndefined();
  },
);

it("leaves out broken lines of a recording", () => {
  expect(decodeLines('{"type": "notice", "text": "a"}\n\n{"type": "not\n{"type": "run_ended"}\n')).toHaveLength(2);
});
