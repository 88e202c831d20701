/** Where the keyboard is after what it was on has gone. */

/** A button that has done its work goes: whoever uses the keyboard stays where it was, before what comes next. */
export function keepingFocus(node: HTMLElement, draw: () => void): void {
  const hadFocus = node.contains(document.activeElement);
  draw();
  if (hadFocus && !node.contains(document.activeElement)) {
    node.focus();
  }
}
