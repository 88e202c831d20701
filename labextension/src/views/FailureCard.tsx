import type { RunState } from "../protocol/generated";
import { failureReport } from "../run/failures";
import { Ansi } from "./Ansi";
import { CopyButton } from "./CopyButton";

/** The cause first, with the user's traceback; then what it means, and what became of the others. */
export function FailureCard({ state }: { state: RunState }) {
  const report = failureReport(state);
  if (report === undefined) {
    return null;
  }
  const { explanation } = report.cause;
  const text = () => [report.headline, ...report.others, "", report.body].join("\n");
  return (
    <section class="accel-section accel-failure" role="alert">
      <div class="accel-title-row">
        <h4 class="accel-title">{report.headline}</h4>
        <CopyButton text={text} what="the failure" />
      </div>
      {report.body !== "" && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, which the keyboard can then do, too
        <pre class="accel-pre" tabIndex={0}>
          <Ansi text={report.body} />
        </pre>
      )}
      {explanation !== null && (
        <p class="accel-words">
          {explanation.meaning} {explanation.remedy}
        </p>
      )}
      {report.others.map((line) => (
        <p key={line} class="accel-words">
          {line}
        </p>
      ))}
      {state.log_dir !== "" && (
        <p class="accel-words">
          Log: <code>{`${state.log_dir}/rank_${report.cause.rank}.log`}</code>
        </p>
      )}
    </section>
  );
}
