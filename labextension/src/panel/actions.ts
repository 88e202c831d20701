/** What the panel's buttons do: they execute commands, and tell the choice. */
import { createContext } from "preact";
import type { Choice } from "./choice";
import type { CommandId } from "./commandIds";

/** The arguments of the commands. */
export interface CommandArguments {
  /** Left out: the newest run. */
  runId?: string;
  /** End the ranks at once, as the button said when it was pressed. */
  now?: boolean;
}

export interface PanelActions {
  execute(command: CommandId, args?: CommandArguments): void;
  choose(choice: Choice): void;
  /** Put text on the clipboard; whether that was possible. */
  copy(text: string): Promise<boolean>;
}

export const PanelContext = createContext<PanelActions>({
  execute() {},
  choose() {},
  copy: () => Promise.resolve(false),
});
