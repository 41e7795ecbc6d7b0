// The list of evaluations, live.

import { h, replaceChildren } from "./dom.js";
import { ago, cost, count, moment, short, share } from "./format.js";
import { t } from "./language.js";
import { statusChip } from "./parts.js";
import { listEvaluations } from "./source.js";

const EVALUATIONS_MS = 3000;

export class EvaluationsPage {
  constructor(main) {
    this.main = main;
    this.rows = new Map(); // name → {text, element}
    this.list = h("div.runs", { role: "list" });
    this.note = h("p.foot", { role: "status" });
    this.selected = -1;
  }

  async open() {
    const found = await listEvaluations();
    if (this.closed) return;
    this.show(found);
    replaceChildren(this.main, h("div.evaluations-page", null,
      h("h1.unseen", null, t("Evaluations")),
      h("div.evaluations-head", { "aria-hidden": "true" }, ["Evaluation", "Score", "Finished trials", "Tokens", "Cost"].map((name) => h("span", null, t(name)))),
      this.list, this.note));
    this.timer = setInterval(() => this.refresh(), EVALUATIONS_MS);
  }

  async refresh() {
    if (document.hidden || this.loading) return;
    this.loading = true;
    try {
      const found = await listEvaluations();
      if (!this.closed) this.show(found);
    } catch {
      replaceChildren(this.note, t("The server does not answer."));
    }
    this.loading = false;
  }

  show(evaluations) {
    const names = new Set(evaluations.map((each) => each.name));
    for (const [name, { element }] of this.rows) {
      if (names.has(name)) continue;
      element.remove();
      this.rows.delete(name);
    }
    let place = this.list.firstElementChild;
    for (const each of evaluations) {
      const text = JSON.stringify(each);
      let row = this.rows.get(each.name);
      if (row?.text !== text) {
        const element = this.row(each);
        const focused = row?.element.contains(document.activeElement);
        if (place === row?.element) place = place.nextElementSibling;
        row?.element.remove();
        this.list.insertBefore(element, place);
        if (focused) element.querySelector("a").focus();
        row = { text, element };
        this.rows.set(each.name, row);
      } else if (row.element === place) place = place.nextElementSibling;
      else this.list.insertBefore(row.element, place);
    }
    replaceChildren(this.note, evaluations.length ? t(evaluations.length === 1 ? "1 evaluation" : "{n} evaluations", { n: count(evaluations.length) })
      : t("No evaluations yet. Try: closeout eval TASKS.jsonl --agent AGENT.yaml"));
  }

  row(each) {
    const score = each.score_so_far;
    const done = h("span.share", { title: `${count(each.finished)} / ${count(each.planned)}` }, h("i"));
    done.firstChild.style.width = `${(100 * each.finished) / (each.planned || 1)}%`;
    const failures = Object.entries(each.failures);
    return h("div.evaluation-row", { role: "listitem" },
      h("div.run-cell", null,
        h("a.run-link", { href: `#/evaluation/${encodeURIComponent(each.name)}`, dir: "auto" }, each.name),
        h("p.run-meta", null, statusChip(each.state), h("span", { title: moment(each.created) }, ago(each.created)),
          h("span", { dir: "auto" }, each.model), h("span", { dir: "auto" }, `${t("Scorer")}: ${each.scorer}`),
          failures.slice(0, 3).map(([kind, number]) => h("span.flag.flag-rollback", { dir: "auto" }, `${kind} ${count(number)}`)))),
      h("span.number", { "data-name": t("Score") }, score.mean === null ? "–" : h("b", null, share(score.mean)), h("small", null, score.error === null ? "" : ` ± ${share(score.error)}`),
        each.finished < each.planned ? h("small.below", null, t("of {n} finished trials", { n: count(each.finished) })) : null),
      h("span.number", { "data-name": t("Finished trials") }, `${count(each.finished)} / ${count(each.planned)}`, done),
      h("span.number", { "data-name": t("Tokens"), title: count(each.tokens) }, short(each.tokens)),
      h("span.number", { "data-name": t("Cost") }, each.cost ? cost(each.cost) : "–")); // without a price it is 0, too
  }

  key(key) {
    const links = [...this.list.querySelectorAll(".run-link")];
    if (key !== "j" && key !== "k") return false;
    this.selected = Math.max(0, Math.min(links.length - 1, this.selected + (key === "j" ? 1 : -1)));
    links[this.selected]?.focus();
    return true;
  }

  close() {
    this.closed = true;
    clearInterval(this.timer);
  }
}
