/** Which cell of a notebook started a run. */
import type { RunSummary } from "../protocol/generated";

interface CellFacts {
  id: string;
  /** null: it has not run, or runs. */
  executionCount: number | null;
}

/** Its position: by the notebook's own id, else by ``In[3]``; null: it is not there. */
export function cellOfRun(run: Pick<RunSummary, "cell" | "cell_id">, cells: readonly CellFacts[]): number | null {
  const byId = run.cell_id === "" ? -1 : cells.findIndex((cell) => cell.id === run.cell_id);
  if (byId >= 0) {
    return byId;
  }
  const count = Number(/^In\[(\d+)\]$/.exec(run.cell)?.[1] ?? Number.NaN);
  const byCount = cells.findIndex((cell) => cell.executionCount === count);
  return byCount >= 0 ? byCount : null;
}
