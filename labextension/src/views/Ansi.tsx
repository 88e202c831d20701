import { spans } from "../run/ansi";

/** Text with terminal colours as spans. */
export function Ansi({ text }: { text: string }) {
  return spans(text).map((span, index) =>
    span.classes === "" ? (
      span.text
    ) : (
      <span key={index} class={span.classes}>
        {span.text}
      </span>
    ),
  );
}
