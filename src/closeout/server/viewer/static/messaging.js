// The box in which people write to a run's agent while it works.

import { h, replaceChildren } from "./dom.js";
import { t } from "./language.js";
import { sendMessage } from "./source.js";

/** A form below the story. `update` shows it while the run takes messages; what somebody is writing stays. */
export class MessageBox {
  constructor(runId) {
    this.runId = runId;
    this.text = h("textarea", { rows: 2, "aria-label": t("Message to the agent"), placeholder: t("Message to the agent") });
    this.interrupt = h("input", { type: "checkbox" });
    this.button = h("button.button.primary", { type: "submit" }, t("Send"));
    this.state = h("p.quiet", { role: "status" });
    this.element = h("form.message-box", { hidden: true, submit: (event) => this.send(event) }, this.text,
      h("div.buttons", null, this.button, h("label", null, this.interrupt, " ", t("Interrupt the reply")), this.state));
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.element.requestSubmit();
    });
  }

  update(status) {
    this.element.hidden = !["running", "waiting", "interrupted"].includes(status);
  }

  async send(event) {
    event.preventDefault();
    if (!this.text.value.trim()) return this.text.focus();
    this.button.disabled = true;
    try {
      await sendMessage(this.runId, { text: this.text.value, interrupt: this.interrupt.checked });
      this.text.value = "";
      this.interrupt.checked = false;
      replaceChildren(this.state, t("Sent. The agent reads it before its next request."));
    } catch (error) {
      replaceChildren(this.state, h("span.line.error", { role: "alert" }, error.message));
    }
    this.button.disabled = false;
    this.text.focus();
  }
}
