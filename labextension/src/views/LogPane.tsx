import { useMemo, useState } from "preact/hooks";
import { type LevelFilter, type LogFilter, type LogRow, type RunLog, rowsOf, textOf } from "../run/log";
import { rankPrefix } from "../run/words";
import { Ansi } from "./Ansi";
import { CopyButton } from "./CopyButton";
import { VirtualList } from "./VirtualList";

const LEVELS: [LevelFilter, string][] = [
  ["usual", "usual: routine records of rank 0 only"],
  ["all", "everything"],
  ["warnings", "warnings and errors"],
  ["errors", "errors"],
];

interface LogPaneProps {
  log: RunLog;
  ranks: readonly number[];
  ended: boolean;
}

/** The ranks' output: of all or one rank, by level, searched. */
export function LogPane({ log, ranks, ended }: LogPaneProps) {
  const [filter, setFilter] = useState<LogFilter>({ rank: null, level: "usual", search: "" });
  const [follows, setFollows] = useState(true);
  const rows = useMemo(() => rowsOf(log, filter), [log, filter]);
  const prefix = ranks.length > 1 ? rankPrefix : () => "";
  return (
    <section class="accel-section accel-log" aria-label="Output">
      <div class="accel-tools">
        <RankChoice ranks={ranks} chosen={filter.rank} choose={(rank) => setFilter({ ...filter, rank })} />
        <select
          class="accel-input"
          aria-label="Which lines"
          value={filter.level}
          onChange={(event) => setFilter({ ...filter, level: event.currentTarget.value as LevelFilter })}
        >
          {LEVELS.map(([level, words]) => (
            <option key={level} value={level}>
              {words}
            </option>
          ))}
        </select>
        <input
          class="accel-input accel-search"
          type="search"
          placeholder="Search"
          aria-label="Search the output"
          value={filter.search}
          onInput={(event) => setFilter({ ...filter, search: event.currentTarget.value })}
        />
        <label class="accel-follow">
          <input type="checkbox" checked={follows} onChange={(event) => setFollows(event.currentTarget.checked)} />{" "}
          Follow
        </label>
        <CopyButton text={() => textOf(rows, prefix)} what="the lines shown" />
      </div>
      <VirtualList
        label="Output of the ranks"
        length={rows.length}
        follows={follows}
        onFollow={setFollows}
        row={(index) => <Row row={rows[index] as LogRow} prefix={prefix} />}
      />
      {rows.length === 0 && <p class="accel-words">{emptyText(log, ended)}</p>}
    </section>
  );
}

function emptyText(log: RunLog, ended: boolean): string {
  if (log.length > 0) {
    return "No line fits the choice.";
  }
  return ended ? "No output." : "No output yet.";
}

interface RankChoiceProps {
  ranks: readonly number[];
  chosen: number | null;
  choose: (rank: number | null) => void;
}

function RankChoice({ ranks, chosen, choose }: RankChoiceProps) {
  return (
    <select
      class="accel-input"
      aria-label="Which ranks"
      value={chosen === null ? "" : String(chosen)}
      onChange={(event) => choose(event.currentTarget.value === "" ? null : Number(event.currentTarget.value))}
    >
      <option value="">all ranks</option>
      {ranks.map((rank) => (
        <option key={rank} value={String(rank)}>
          rank {rank}
        </option>
      ))}
    </select>
  );
}

function Row({ row, prefix }: { row: LogRow; prefix: (ranks: number[]) => string }) {
  return (
    <div class={`accel-line accel-level-${row.line.level} ${row.ranks.length === 0 ? "accel-ours" : ""}`}>
      <span class="accel-prefix">{row.ranks.length === 0 ? "accel_nb: " : prefix(row.ranks)}</span>
      <Ansi text={row.line.text} />
      {row.count > 1 && <span class="accel-badge">× {row.count}</span>}
    </div>
  );
}
