/** The module of the widget in the cell (anywidget's protocol): connects one view of one run with its kernel. */
import { render } from "preact";
import { copyText } from "./comm/clipboard";
import { RunFeed } from "./comm/feed";
import { decodeMessage } from "./protocol/decode";
import { RunView } from "./views/RunView";

/** An event of Jupyter's widgets: a model that is shown has lost its kernel. */
const CUT_OFF = "comm_live_update";

/** What is used here of anywidget's model. */
interface Model {
  on(name: "msg:custom" | typeof CUT_OFF, callback: (content: unknown) => void): void;
  off(name: "msg:custom" | typeof CUT_OFF, callback: (content: unknown) => void): void;
  send(content: unknown): void;
}

interface RenderArguments {
  model: Model;
  el: HTMLElement;
}

/** Draws at most once per frame of the screen; gives what ends it. */
export function renderRun({ model, el }: RenderArguments): () => void {
  const ends = new AbortController();
  let waits = false;
  const feed = new RunFeed(() => model.send({ type: "connect" }), drawSoon);
  const actions = {
    stop: (now: boolean) => model.send({ type: "stop_run", now }),
    askForStacks: () => model.send({ type: "ask_stacks" }),
    copy: copyText,
  };

  function draw(): void {
    waits = false;
    if (!ends.signal.aborted) {
      render(<RunView shown={feed.shown} actions={actions} />, el);
    }
  }

  function drawSoon(): void {
    if (!waits) {
      waits = true;
      requestAnimationFrame(draw);
    }
  }

  const receive = (content: unknown) => feed.receive(content);
  const cutOff = () => feed.cutOff();
  model.on("msg:custom", receive);
  model.on(CUT_OFF, cutOff);
  ends.signal.addEventListener("abort", () => {
    model.off("msg:custom", receive);
    model.off(CUT_OFF, cutOff);
    render(null, el);
  });
  draw();
  feed.connect();
  return () => ends.abort();
}

/** As soon as the module has come to the page: a cell out of sight may not be drawn for long. */
function initialize({ model }: { model: Model }): void {
  const tell = () => model.send({ type: "loaded" });
  // Until the front end has opened a subshell, what is sent waits for the cell that runs. The kernel repeats the whole
  // run as long as it has heard nothing.
  model.on("msg:custom", (content) => {
    if (decodeMessage(content)?.type === "whole_run") {
      tell();
    }
  });
  tell();
}

export default { initialize, render: renderRun };
