// The button that cancels a run.

import { h, replaceChildren } from "./dom.js";
import { t } from "./language.js";
import { cancelRun } from "./source.js";

/** A button that asks before it cancels. `update` shows it while the run is not over. */
export class CancelButton {
  constructor(runId, onCancelled) {
    this.runId = runId;
    this.onCancelled = onCancelled;
    this.begin = h("button.button", { type: "button", click: () => this.ask() }, t("Cancel run"));
    this.state = h("p.quiet", { role: "status" });
    this.choices = h("div.buttons", null, this.begin);
    this.element = h("div.ending", { hidden: true }, this.choices, this.state);
  }

  update(isOver) {
    this.element.hidden = isOver;
  }

  ask() {
    const sure = h("button.button.danger", { type: "button", click: () => this.cancel() }, t("Cancel this run"));
    const keep = h("button.button", { type: "button", click: () => this.leave("") }, t("Keep it"));
    replaceChildren(this.state, t("Its calls are cut off. The run can be resumed later."));
    replaceChildren(this.choices, sure, keep);
    keep.focus();
  }

  leave(text) {
    const focused = this.element.contains(document.activeElement);
    replaceChildren(this.state, text);
    replaceChildren(this.choices, this.begin);
    if (focused) this.begin.focus();
  }

  async cancel() {
    for (const each of this.choices.children) each.disabled = true;
    replaceChildren(this.state, t("Cancelling …"));
    try {
      const { status } = await cancelRun(this.runId);
      this.leave(status === "running" ? t("The run has not ended yet: its process is stopped, or a tool goes on. The request stays.") : "");
      this.onCancelled();
    } catch (error) {
      this.leave(h("span.line.error", { role: "alert" }, error.message));
    }
  }
}
