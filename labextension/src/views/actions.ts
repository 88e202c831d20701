/** What the buttons of a view do. The view only calls; who shows it decides how. */
import { createContext } from "preact";

export interface Actions {
  /** Ask the ranks to end. `now`: at once, as the button said when it was pressed. */
  stop(now: boolean): void;
  askForStacks(): void;
  /** Put text on the clipboard; whether that was possible. */
  copy(text: string): Promise<boolean>;
}

export const NO_ACTIONS: Actions = {
  stop() {},
  askForStacks() {},
  copy: () => Promise.resolve(false),
};

export const ActionsContext = createContext<Actions>(NO_ACTIONS);
