/** The panel as a widget of JupyterLab's side bar: draws at most once per frame, and only while it can be seen. */
import { LabIcon } from "@jupyterlab/ui-components";
import type { Message } from "@lumino/messaging";
import { Widget } from "@lumino/widgets";
import { render } from "preact";
import type { PanelActions } from "./actions";
import icon from "./icon.svg";
import { keepingFocus } from "./keepingFocus";
import type { PanelModel } from "./model";
import { PanelView } from "./PanelView";

export const PANEL_ICON = new LabIcon({ name: "accel-nb:panel", svgstr: icon });

export class PanelWidget extends Widget {
  private readonly ends = new AbortController();
  private waits = false;

  constructor(
    private readonly model: PanelModel,
    private readonly actions: PanelActions,
  ) {
    super();
    this.id = "accel-nb-panel";
    this.title.icon = PANEL_ICON;
    this.title.caption = "Accelerate";
    this.addClass("accel-panel");
    this.node.setAttribute("role", "region");
    this.node.setAttribute("aria-label", "Accelerate");
    this.node.tabIndex = -1;
    model.changes.on(() => this.drawSoon(), this.ends.signal);
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this.ends.abort();
      this.model.dispose();
      render(null, this.node);
    }
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.seen();
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this.seen();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.seen();
  }

  protected override onBeforeDetach(message: Message): void {
    super.onBeforeDetach(message);
    this.model.setVisible(false);
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.focus();
  }

  private seen(): void {
    this.model.setVisible(this.isVisible);
    this.drawSoon();
  }

  private drawSoon(): void {
    if (!this.waits && this.isVisible) {
      this.waits = true;
      requestAnimationFrame(() => {
        this.waits = false;
        if (!this.ends.signal.aborted) {
          keepingFocus(this.node, () =>
            render(<PanelView shown={this.model.shown} actions={this.actions} />, this.node),
          );
        }
      });
    }
  }
}
