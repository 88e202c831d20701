import { Component } from "preact";
import type { RankState, RunState } from "../protocol/generated";
import { ranksInOrder } from "../run/state";
import { type Bar, barsOf } from "../run/tables";
import { duration, rankStatusText } from "../run/words";

/** One row per rank: state, step, time per step, progress. */
export function RankTable({ state }: { state: RunState }) {
  const ranks = ranksInOrder(state);
  const timed = ranks.some(([, rank]) => rank.step_times !== null);
  return (
    <div class="accel-ranks">
      <table class="accel-table" aria-label="Ranks">
        <thead>
          <tr>
            <th scope="col">Rank</th>
            <th scope="col" class="accel-wide">
              Device
            </th>
            <th scope="col">State</th>
            {timed && <th scope="col">Step</th>}
            {timed && <th scope="col">Per step</th>}
            <th scope="col" class="accel-fill">
              Progress
            </th>
          </tr>
        </thead>
        <tbody>
          {ranks.map(([number, rank]) => (
            <RankRow key={number} number={number} rank={rank} timed={timed} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface RankRowProps {
  number: number;
  rank: RankState;
  timed: boolean;
}

/** Drawn only when its rank has changed: of 64 ranks most have not. */
class RankRow extends Component<RankRowProps> {
  override shouldComponentUpdate(next: RankRowProps): boolean {
    return next.rank !== this.props.rank || next.timed !== this.props.timed;
  }

  override render() {
    const { number, rank, timed } = this.props;
    const { sign, word } = rankStatusText(rank);
    return (
      <tr class={rank.straggler === null ? "" : "accel-straggler"}>
        <th scope="row">{number}</th>
        <td class="accel-wide">{rank.device}</td>
        <td class={`accel-status-${word}`}>
          <span aria-hidden="true">{sign}</span> {word}
          {rank.dropped_lines > 0 && (
            <small class="accel-note"> {rank.dropped_lines.toLocaleString()} lines not shown</small>
          )}
        </td>
        {timed && <td class="accel-number">{rank.step_times?.num_steps ?? ""}</td>}
        {timed && <StepTime rank={rank} />}
        <td>
          {barsOf(rank).map((bar) => (
            <ProgressBar key={bar.number} bar={bar} rank={number} />
          ))}
        </td>
      </tr>
    );
  }
}

function StepTime({ rank }: { rank: RankState }) {
  const { step_times: times, straggler } = rank;
  return (
    <td class="accel-number">
      {times === null ? "" : duration(times.step_s)}
      {straggler !== null && (
        <span class="accel-badge" title={straggler.text}>
          {straggler.factor.toFixed(1)}× slower
        </span>
      )}
    </td>
  );
}

function ProgressBar({ bar, rank }: { bar: Bar; rank: number }) {
  const name = bar.label === "" ? `Progress of rank ${rank}` : `${bar.label}, rank ${rank}`;
  const count = bar.n === null ? "" : bar.total === null ? `${bar.n}` : `${bar.n}/${bar.total}`;
  const value = bar.part === null ? {} : { "aria-valuenow": Math.round(100 * bar.part) };
  return (
    <div class="accel-bar">
      <span class="accel-bar-label">{bar.label}</span>
      <div class="accel-track" role="progressbar" aria-label={name} aria-valuemin={0} aria-valuemax={100} {...value}>
        <div
          class={bar.part === null ? "accel-part accel-part-unknown" : "accel-part"}
          style={{ transform: `scaleX(${bar.part ?? 1})` }}
        />
      </div>
      <span class="accel-bar-count">{count}</span>
      <span class="accel-bar-rate accel-wide">{bar.rate}</span>
    </div>
  );
}
