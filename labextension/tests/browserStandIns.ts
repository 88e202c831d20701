/** What jsdom lacks and the views use: nothing is laid out or painted there. */
class NoResizes implements ResizeObserver {
  observe(): void {}
  unobserve(): void {}
  disconnect(): void {}
}

/** Any drawing call, without effect. */
const NO_DRAWING = new Proxy({}, { get: () => () => ({ width: 10 }), set: () => true });

class NoPath {
  constructor() {
    // biome-ignore lint/correctness/noConstructorReturn: a path that takes whatever is drawn
    return NO_DRAWING as NoPath;
  }
}

Object.assign(globalThis, { ResizeObserver: NoResizes, Path2D: NoPath });
window.matchMedia = (query: string) =>
  Object.assign(new EventTarget(), { matches: false, media: query }) as MediaQueryList;
Element.prototype.scrollIntoView = () => undefined;
HTMLCanvasElement.prototype.getContext = (() => NO_DRAWING) as never;
