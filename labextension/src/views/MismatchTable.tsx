import type { CollectiveMismatch } from "../protocol/generated";
import { mismatchRows } from "../run/tables";

/** What each rank called, the odd one out marked. */
export function MismatchTable({ mismatch }: { mismatch: CollectiveMismatch }) {
  return (
    <section class="accel-section" role="alert">
      <h4 class="accel-title">The ranks called operations that do not fit together</h4>
      <table class="accel-table accel-stacked" aria-label="What each rank called">
        <thead>
          <tr>
            <th scope="col">Rank</th>
            <th scope="col">Operation</th>
            <th scope="col">Given</th>
            <th scope="col">Where</th>
          </tr>
        </thead>
        <tbody>
          {mismatchRows(mismatch).map((row) => (
            <tr key={row.rank} class={row.odd ? "accel-odd" : ""}>
              <th scope="row">{row.rank}</th>
              <td>
                <code>{row.operation || "none yet"}</code>
              </td>
              <td>
                <code>{row.given}</code>
                {row.odd && <span class="accel-badge">differs</span>}
              </td>
              <td>{row.place}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
