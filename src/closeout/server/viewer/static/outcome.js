// Why a run has no answer, and what to do about it: above everything else on its page.

import { h, replaceChildren } from "./dom.js";
import { t } from "./language.js";
import { commandLine, longText } from "./parts.js";
import { exportedRun, listWaiting, resumeRun } from "./source.js";

const OUTCOME_TITLES = { failed: "This run failed", unanswered: "This run ended without an answer", cancelled: "This run was cancelled", interrupted: "This run was interrupted" };
const RESUMED_HERE = ["failed", "cancelled", "interrupted"];

/** Shows a run that ended without an answer: the reason, the button or the command that continues it, and a link to where it failed. */
export class OutcomePanel {
  constructor(runId, { onResumed, goTo }) {
    Object.assign(this, { runId, onResumed, goTo });
    this.element = h("section.run-outcome", { hidden: true, "aria-label": t("Outcome") });
  }

  /** `failure` is the item in which the run failed, if there is one. */
  async update(record, failure) {
    const key = JSON.stringify([record.status, record.reason, failure?.seq]);
    if (key === this.key) return;
    this.key = key;
    this.element.hidden = !(record.status in OUTCOME_TITLES);
    if (this.element.hidden) return;
    this.element.dataset.status = record.status;
    this.draw(record, failure, false);
    if (exportedRun() || !RESUMED_HERE.includes(record.status)) return;
    try {
      if ((await listWaiting(this.runId)).continues && key === this.key) this.draw(record, failure, true);
    } catch {
      // the command stays
    }
  }

  draw(record, failure, continues) {
    const problem = h("div", { role: "status" });
    const resume = h("button.button.primary", { type: "button", click: async () => {
      resume.disabled = true;
      try {
        await resumeRun(this.runId);
        this.onResumed();
      } catch (error) {
        replaceChildren(problem, h("p.line.error", { role: "alert" }, error.message));
        resume.disabled = false;
      }
    } }, t("Resume the run"));
    replaceChildren(this.element,
      h("h2", null, t(record.status === "interrupted" && record.reason ? "This run has not begun" : OUTCOME_TITLES[record.status])),
      record.reason && record.reason !== record.status ? longText(record.reason, { tag: "p.reason" }) : null,
      record.error_kind ? h("p.quiet", null, `${t("Kind of failure")}: `, h("code", null, record.error_kind)) : null,
      continues ? h("div.buttons", null, resume) : null, continues ? problem : null,
      record.steps.map(([when, command]) => h("div", null, h("p.quiet", null, continues ? t("Or in a terminal:") : t(when)), commandLine(command))),
      record.steps.some(([, command]) => command.includes("PACKAGE.MODULE:AGENT")) ? h("p.quiet", null, t("PACKAGE.MODULE:AGENT stands for your agent, such as shop.agents:clerk.")) : null,
      failure ? h("p", null, h("button.more", { type: "button", click: () => this.goTo(failure.seq) }, t("Show where it failed"))) : null);
  }
}
