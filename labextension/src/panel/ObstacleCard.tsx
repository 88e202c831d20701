/** Why there is nothing to show, and the way on. */
import { useContext } from "preact/hooks";
import { PanelContext } from "./actions";
import { COMMANDS, type CommandId, JUPYTER_COMMANDS } from "./commandIds";
import { type Obstacle, obstacleText } from "./words";

const WAYS_ON: Partial<Record<Obstacle["kind"], { label: string; command: CommandId }>> = {
  "no-kernel": { label: "Choose a kernel", command: JUPYTER_COMMANDS.changeKernel },
  "not-python": { label: "Choose a kernel", command: JUPYTER_COMMANDS.changeKernel },
  dead: { label: "Restart the kernel", command: JUPYTER_COMMANDS.restartKernel },
  disconnected: { label: "Connect again", command: JUPYTER_COMMANDS.reconnect },
  "not-loaded": { label: "Load accel_nb", command: COMMANDS.loadExtension },
  "cannot-load": { label: "Try again", command: COMMANDS.loadExtension },
  refused: { label: "Ask again", command: COMMANDS.askAgain },
  "too-old": { label: "Ask again", command: COMMANDS.askAgain },
};

export function ObstacleCard({ obstacle }: { obstacle: Obstacle }) {
  const actions = useContext(PanelContext);
  const { title, text, code } = obstacleText(obstacle);
  const way = WAYS_ON[obstacle.kind];
  return (
    <div class="accel-panel-obstacle" role="status" data-state={obstacle.kind}>
      <strong>{title}</strong>
      <p>{text}</p>
      {code !== undefined && <CodeLine code={code} />}
      {way !== undefined && (
        <button type="button" class="accel-panel-button accel-panel-main" onClick={() => actions.execute(way.command)}>
          {way.label}
        </button>
      )}
    </div>
  );
}

export function CodeLine({ code }: { code: string }) {
  return (
    <code class="accel-panel-code">
      {code.split(" ").map((word, place) => [place > 0 && " ", <span key={place}>{word}</span>])}
    </code>
  );
}
