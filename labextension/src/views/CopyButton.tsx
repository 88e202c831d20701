import { useContext, useState } from "preact/hooks";
import { ActionsContext } from "./actions";

interface CopyButtonProps {
  /** Called when it is pressed. */
  text: () => string;
  /** What is copied, for the label. */
  what: string;
}

export function CopyButton({ text, what }: CopyButtonProps) {
  const actions = useContext(ActionsContext);
  const [outcome, setOutcome] = useState("Copy");
  const copy = async () => setOutcome((await actions.copy(text())) ? "Copied" : "Not allowed here");
  return (
    <button
      type="button"
      class="accel-button"
      aria-label={`Copy ${what}`}
      onBlur={() => setOutcome("Copy")}
      onClick={copy}
    >
      <span aria-live="polite">{outcome}</span>
    </button>
  );
}
