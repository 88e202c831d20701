import { Component } from "preact";
import type { RankState, RunState } from "../protocol/generated";
import { ranksInOrder, USAGES_KEPT } from "../run/state";
import { type Bar, barsOf } from "../run/tables";
import { usageText } from "../run/usage";
import { duration, rankStatusText } from "../run/words";
import { Sparkline } from "./Sparkline";

/** Up to so many the bars glide: each that does is painted anew in every frame. */
const FEW_RANKS = 8;

/** One row per rank: state, memory, how busy it is, step, time per step, progress. */
export function RankTable({ state }: { state: RunState }) {
  const ranks = ranksInOrder(state);
  const timed = ranks.some(([, rank]) => rank.step_times !== null);
  const measured = ranks.some(([, rank]) => rank.usage !== null);
  return (
    <div class={ranks.length <= FEW_RANKS ? "accel-ranks accel-few-ranks" : "accel-ranks"}>
      <table class="accel-table accel-stacked" aria-label="Ranks">
        <thead>
          <tr>
            <th scope="col">Rank</th>
            <th scope="col" class="accel-wide">
              Device
            </th>
            <th scope="col">State</th>
            {measured && <th scope="col">Memory</th>}
            {measured && <th scope="col">Busy</th>}
            {timed && <th scope="col">Step</th>}
            {timed && <th scope="col">Per step</th>}
            <th scope="col" class="accel-fill">
              Progress
            </th>
          </tr>
        </thead>
        <tbody>
          {ranks.map(([number, rank]) => (
            <RankRow key={number} number={number} rank={rank} timed={timed} measured={measured} />
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
  measured: boolean;
}

/** Drawn only when its rank has changed: of 64 ranks most have not. */
class RankRow extends Component<RankRowProps> {
  override shouldComponentUpdate(next: RankRowProps): boolean {
    const { rank, timed, measured } = this.props;
    return next.rank !== rank || next.timed !== timed || next.measured !== measured;
  }

  override render() {
    const { number, rank, timed, measured } = this.props;
    const { sign, word } = rankStatusText(rank);
    return (
      <tr class={rank.straggler === null ? "" : "accel-straggler"}>
        <th scope="row">{number}</th>
        <td class="accel-wide">{rank.device}</td>
        <td class={`accel-state accel-status-${word}`}>
          <span aria-hidden="true">{sign}</span> {word}
          {rank.dropped_lines > 0 && (
            <small class="accel-note"> {rank.dropped_lines.toLocaleString()} lines not shown</small>
          )}
        </td>
        {measured && <Usage rank={rank} />}
        {timed && <td class="accel-number accel-steps">{rank.step_times?.num_steps ?? ""}</td>}
        {timed && <StepTime rank={rank} />}
        <td class="accel-progress">
          {barsOf(rank).map((bar) => (
            <ProgressBar key={bar.number} bar={bar} rank={number} />
          ))}
        </td>
      </tr>
    );
  }
}

function Usage({ rank }: { rank: RankState }) {
  const text = usageText(rank);
  if (text === undefined) {
    return (
      <>
        <td class="accel-memory" />
        <td class="accel-busy" />
      </>
    );
  }
  return (
    <>
      <td class="accel-number accel-memory" title={text.details}>
        {text.memory}
      </td>
      <td class="accel-number accel-busy" title={text.details}>
        <Sparkline values={rank.busy} most={USAGES_KEPT} full={1} /> <span class="accel-percent">{text.busy}</span>
      </td>
    </>
  );
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
      <span class="accel-bar-rate">{bar.rate}</span>
    </div>
  );
}
