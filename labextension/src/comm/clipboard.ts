/** Copying text, also where the page has no clipboard of its own (plain http on another host). */

export async function copyText(text: string): Promise<boolean> {
  if (navigator.clipboard !== undefined) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch (error) {
      if (!(error instanceof DOMException)) {
        throw error; // a DOMException says that the page may not: the older way may still work
      }
    }
  }
  // What is copied has to be selected in a field, which takes the keyboard.
  const before = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.style.position = "fixed";
  area.style.opacity = "0";
  document.body.append(area);
  area.focus({ preventScroll: true });
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (before instanceof HTMLElement) {
    before.focus({ preventScroll: true });
  }
  return copied;
}
