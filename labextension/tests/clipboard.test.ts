// @vitest-environment jsdom
import { afterEach, expect, it } from "vitest";
import { copyText } from "../src/comm/clipboard";

afterEach(() => {
  document.body.replaceChildren();
});

it("copies without a clipboard of the page, and leaves the keyboard where it was", async () => {
  const button = document.createElement("button");
  document.body.append(button);
  button.focus();
  let copied = "";
  document.execCommand = () => {
    const field = document.activeElement;
    copied = field instanceof HTMLTextAreaElement ? field.value.slice(field.selectionStart, field.selectionEnd) : "";
    return true;
  }; // jsdom has none

  expect(navigator.clipboard).toBeUndefined();
  expect(await copyText("two\nlines")).toBe(true);

  expect(copied).toBe("two\nlines");
  expect(document.activeElement).toBe(button);
  expect(document.querySelector("textarea")).toBeNull();
});
