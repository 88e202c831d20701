import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** Height of a row in pixels, also that of `.accel-line` in style/run.css. */
export const ROW_PX = 18;
/** Rows seen at once at most. */
export const MAX_ROWS_SEEN = 14;
const ROWS_BEYOND = 6;
/** Within this distance of its end a list counts as scrolled to the end. */
const AT_END_PX = ROW_PX / 2;

interface VirtualListProps {
  label: string;
  length: number;
  row: (index: number) => ComponentChildren;
  /** Stay at the end when rows come. */
  follows: boolean;
  /** The user has scrolled to the end, or away from it. */
  onFollow: (follows: boolean) => void;
}

/** A list of rows of one height, of which only those that are seen exist. */
export function VirtualList({ label, length, row, follows, onFollow }: VirtualListProps) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const heightPx = Math.min(length, MAX_ROWS_SEEN) * ROW_PX;
  const endPx = Math.max(0, length * ROW_PX - heightPx);
  const from = follows ? endPx : Math.min(top, endPx);
  useLayoutEffect(() => {
    if (follows && box.current !== null) {
      box.current.scrollTop = box.current.scrollHeight;
    }
  }, [follows, endPx]);
  const scrolled = (event: { currentTarget: HTMLDivElement }) => {
    const { scrollTop } = event.currentTarget;
    const atEnd = scrollTop >= endPx - AT_END_PX;
    setTop(scrollTop);
    if (atEnd !== follows && (atEnd || scrollTop < from - AT_END_PX)) {
      onFollow(atEnd);
    }
  };
  const first = Math.max(0, Math.floor(from / ROW_PX) - ROWS_BEYOND);
  const last = Math.min(length, first + MAX_ROWS_SEEN + 2 * ROWS_BEYOND);
  const indices = Array.from({ length: Math.max(0, last - first) }, (_, offset) => first + offset);
  return (
    <div
      class="accel-list"
      role="log"
      aria-label={label}
      aria-live="off"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, which the keyboard can then do, too
      tabIndex={0}
      ref={box}
      onScroll={scrolled}
      style={{ height: `${heightPx}px` }}
    >
      <div style={{ height: `${length * ROW_PX}px` }}>
        <div class="accel-list-window" style={{ transform: `translateY(${first * ROW_PX}px)` }}>
          {indices.map((index) => (
            <div key={index}>{row(index)}</div>
          ))}
        </div>
      </div>
    </div>
  );
}
