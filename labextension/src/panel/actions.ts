/** What the panel's buttons do: they execute commands, and tell the choice. */
import { createContext } from "preact";
import type { Choice } from "./choice";
import type { CommandId } from "./commandIds";

export interface PanelActions {
  execute(command: CommandId, runId?: string): void;
  choose(choice: Choice): void;
  /** Put text on the clipboard; whether that was possible. */
  copy(text: string): Promise<boolean>;
}

export const PanelContext = createContext<PanelActions>({
  execute() {},
  choose() {},
  copy: () => Promise.resolve(false),
});
