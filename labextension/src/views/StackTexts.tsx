import type { StackTexts } from "../protocol/generated";
import { CopyButton } from "./CopyButton";

/** Where every rank was when it was asked. */
export function StackList({ stacks }: { stacks: StackTexts }) {
  const ranks = Object.entries(stacks.text_by_rank);
  const text = () => ranks.map(([rank, stack]) => `rank ${rank}\n${stack}\n`).join("\n");
  return (
    <section class="accel-section" aria-label="Stacks">
      <div class="accel-title-row">
        <h4 class="accel-title">Stacks</h4>
        {ranks.length > 0 && <CopyButton text={text} what="the stacks" />}
      </div>
      {stacks.problem !== "" && <p class="accel-words">{stacks.problem}</p>}
      {ranks.map(([rank, stack]) => (
        <details key={rank} open={ranks.length <= 2}>
          <summary>rank {rank}</summary>
          <pre class="accel-pre">{stack}</pre>
        </details>
      ))}
    </section>
  );
}
