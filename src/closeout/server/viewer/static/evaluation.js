// One evaluation: what it found, and its trials as a matrix of tasks and epochs, live while it is at work.

import { h, replaceChildren } from "./dom.js";
import { cost, count, duration, moment, share } from "./format.js";
import { t } from "./language.js";
import { LongList } from "./list.js";
import { fold, statusChip } from "./parts.js";
import { listEvaluations, loadEvaluation } from "./source.js";

const OUTCOMES = { right: "✓", wrong: "✗", unanswered: "–", failed: "!", waiting: "?", running: "●", unfinished: "·" };
// How a task differs from the other tasks: in another evaluation, or from trial to trial.
const DIFFERENCES = { worse: "↓", better: "↑", uneven: "≠" };
const ROW_PIXELS = 41;
const MOST_COLUMNS = 30; // beyond these, the cells of a row wrap and have no heads
const LEAST_MS = 2000;
const PATIENCE = 15; // a look at the server may take one part in so many of the time

export class EvaluationPage {
  constructor(main, route) {
    this.main = main;
    this.id = route.id;
    this.scorer = route.query.get("scorer") ?? "";
    const show = route.query.get("show") ?? "";
    this.chosen = Object.hasOwn(OUTCOMES, show) || Object.hasOwn(DIFFERENCES, show) ? show : "";
    this.with = route.query.get("with"); // the evaluation to compare with; null: the one before
    this.others = [];
    this.before = new Map(); // task → share of right trials in that evaluation
    this.other = null;
    this.compared = h("section.compared", { hidden: true, "aria-label": t("Comparison") });
    this.text = route.query.get("q") ?? "";
    this.rows = new Map(); // task → row, the same object while the page lives
    this.shown = [];
    this.at = { row: 0, column: 0 };
    this.list = new LongList((row) => this.row(row), ROW_PIXELS);
    this.list.element.setAttribute("role", "rowgroup");
    this.head = h("section.run-head");
    this.figures = h("div");
    this.details = h("details", { open: innerWidth > 760 }, h("summary", null, t("Figures")), this.figures);
    this.filters = h("div.outcomes", { role: "group", "aria-label": t("Outcome") });
    this.search = h("input", { type: "search", placeholder: t("Search tasks …"), "aria-label": t("Search"), value: this.text,
      input: () => this.choose({ text: this.search.value.trim() }) });
    this.columns = h("div.matrix-head", { "aria-hidden": "true" });
    this.matrix = h("div.matrix", { role: "grid", "aria-label": t("Tasks and trials") }, this.columns, this.list.element);
    this.note = h("p.foot", { role: "status" });
  }

  async open() {
    const began = performance.now();
    const found = await loadEvaluation(this.id, { scorer: this.scorer });
    if (this.closed) return;
    replaceChildren(this.main, h("div.run-page", null,
      h("aside.run-side", null, this.head, h("section.run-head", null, this.details)),
      h("div.run-main.evaluation-main", null, this.compared, h("div.filters", null, this.search), this.filters, this.matrix, this.note)));
    this.show(found);
    this.list.fillFirst();
    this.later(performance.now() - began);
    await this.compare();
  }

  /** Load the evaluation to compare with: the chosen one, or the latest earlier one of as many trials. */
  async compare() {
    try {
      this.others = (await listEvaluations()).filter((each) => each.name !== this.id);
      const earlier = this.others.filter((each) => each.created < this.found.created && each.planned === this.found.totals.planned);
      const name = this.with ?? earlier[0]?.name ?? "";
      this.other = this.others.some((each) => each.name === name) ? await loadEvaluation(name, {}) : null;
    } catch {
      this.other = null; // the page is of use without it
    }
    if (this.closed) return;
    const then = this.before;
    this.before = new Map(this.other?.matrix.map((row) => [row.task, shareRight(row)]) ?? []);
    for (const row of this.rows.values()) row.changed ||= this.before.get(row.task) !== then.get(row.task);
    this.drawCompared();
    this.drawRows();
  }

  drawCompared() {
    const { found, other } = this;
    this.compared.hidden = !this.others.length;
    const choice = h("select", { "aria-label": t("Compare with"), change: () => {
      this.with = choice.value;
      this.remember();
      this.compare();
    } }, ["", ...this.others.map((each) => each.name)].map((name) => h("option", { value: name, selected: name === (other?.name ?? "") }, name || t("nothing"))));
    const common = [...this.rows.values()].filter((row) => this.before.has(row.task)).length;
    const points = other && typeof found.score.mean === "number" && typeof other.score.mean === "number" ? 100 * (found.score.mean - other.score.mean) : null;
    replaceChildren(this.compared, h("label", null, t("Compared with"), " ", choice),
      !other ? null : !common ? h("p.quiet", null, t("The two evaluations have no task in common."))
        : h("p", null, points === null ? "" : h("b", { class: points < 0 ? "note-error" : "" }, `${points > 0 ? "+" : points < 0 ? "−" : ""}${Math.abs(points).toFixed(1)} ${t("points")}`),
          ` (${share(other.score.mean)} → ${share(found.score.mean)}): `,
          ["worse", "better"].map((kind, at) => [at ? " · " : "", h("button.more", { type: "button", click: () => this.choose({ outcome: kind }) }, t(`{n} ${kind}`, { n: count([...this.rows.values()].filter((row) => this.differs(row) === kind).length) }))])));
  }

  /** How a task differs: from the other evaluation, or from trial to trial; "" if it does not. */
  differs(row) {
    const now = shareRight(row), then = this.before.get(row.task);
    if (then !== undefined && then !== now) return now < then ? "worse" : "better";
    return now > 0 && now < 1 ? "uneven" : "";
  }

  /** Look again after a while: the longer the server needs, the later. */
  later(took) {
    if (!this.closed) this.timer = setTimeout(() => this.refresh(), Math.max(LEAST_MS, PATIENCE * took));
  }

  async refresh() {
    const began = performance.now();
    try {
      if (!document.hidden) {
        const found = await loadEvaluation(this.id, { scorer: this.scorer, version: this.found.version });
        if (this.closed) return;
        if (found.matrix) this.show(found);
        else if (found.state !== this.found.state) {
          this.found.state = found.state;
          this.drawHead();
        }
      }
    } catch {
      replaceChildren(this.note, t("The server does not answer."));
    }
    this.later(performance.now() - began);
  }

  show(found) {
    this.found = found;
    this.counts = Object.fromEntries(Object.keys(OUTCOMES).map((name) => [name, 0]));
    for (const row of found.matrix) {
      for (const trial of row.trials) this.counts[trial.outcome] += 1;
      const known = this.rows.get(row.task);
      const text = JSON.stringify(row.trials);
      if (!known) this.rows.set(row.task, { ...row, seen: text, changed: false });
      else if (known.seen !== text) Object.assign(known, row, { seen: text, changed: true });
    }
    const epochs = Math.max(0, ...found.matrix.map((row) => row.trials.length));
    this.matrix.classList.toggle("many", epochs > MOST_COLUMNS);
    replaceChildren(this.columns, h("span", null, t("Task")), epochs > MOST_COLUMNS ? null
      : h("span.cells", null, Array.from({ length: epochs }, (_, at) => h("span.cell", null, String(at + 1)))), h("span.row-share", null, t("right")));
    this.drawHead();
    this.drawFigures();
    this.drawRows();
  }

  drawHead() {
    const { found } = this;
    const { totals, score } = found;
    const bar = h("div.outcome-bar", { "aria-hidden": "true" }, Object.keys(OUTCOMES).map((name) => {
      const part = h(`i.${name}`);
      part.style.flexGrow = this.counts[name];
      return part;
    }));
    const command = found.provenance.find(([label]) => label === "command")?.[1];
    replaceChildren(this.head,
      h("div.run-line", null, statusChip(found.state), h("span.quiet", { dir: "auto" }, found.model), h("span.quiet", null, moment(found.created))),
      h("h1.run-task", { dir: "auto" }, found.name),
      h("p.big", null, share(score.mean), score.error === null ? null : h("small", null, ` ± ${share(score.error)}`)),
      h("p.quiet", null, `${t("of {n} trials", { n: count(score.trials) })}, ${t("{n} tasks", { n: count(score.clusters) })}`),
      bar,
      totals.finished < totals.planned
        ? h("p.quiet", null, t("{n} of {m} trials are not finished; they count as wrong.", { n: count(totals.planned - totals.finished), m: count(totals.planned) }), " ",
          totals.finished ? t("Of the finished ones, {share} are right.", { share: share(totals.correct / totals.finished) }) : "") : null,
      command && ["interrupted", "stopped", "waiting"].includes(found.state) ? h("div.line.warning", { dir: "auto" }, t(found.state === "waiting" ? "When the trials that wait are decided, the same command continues it:" : "The same command continues it:"), " ", h("code", null, command)) : null);
  }

  drawFigures() {
    const { found } = this;
    const { totals, score, bootstrap, failures } = found;
    const trials = t("of {n} trials", { n: count(totals.planned) });
    const ended = t("of {n} finished trials", { n: count(totals.finished) });
    const each = (value) => (totals.finished ? (value / totals.finished).toFixed(1) : "–");
    const k = (found.epochs > 1 ? Object.keys(found.pass_at) : []).map((name) =>
      [`pass@${name}`, share(found.pass_at[name].mean), `pass^${name} ${share(found.pass_hat[name].mean)} · ${t("of {n} tasks", { n: count(found.pass_at[name].clusters) })}`]);
    const lines = [
      [t("95 % interval"), `${share(score.low)} – ${share(score.high)}`, `${t("bootstrap")} ${share(bootstrap.low)} – ${share(bootstrap.high)}`],
      [t("right"), count(totals.correct), trials],
      ...k,
      [t("answered"), count(totals.answered), ended],
      [t("without an answer"), count(totals.unanswered), ended],
      [t("failed"), count(totals.failed), ended],
      totals.suspended ? [t("waiting"), count(totals.suspended), trials] : null,
      totals.not_judged ? [t("not judged"), count(totals.not_judged), ended] : null,
      totals.tries ? [t("tried again"), count(totals.tries), ""] : null,
      [t("Tokens"), count(totals.input_tokens + totals.output_tokens), `${count(totals.input_tokens)} ${t("in")}, ${count(totals.cached_tokens)} ${t("cached")}; ${count(totals.output_tokens)} ${t("out")}`],
      [t("Cost"), totals.cost === null ? t("unknown") : cost(totals.cost), totals.cost === null || !totals.finished ? "" : `${cost(totals.cost / totals.finished)} ${t("a trial")}`],
      [t("a trial"), `${each(totals.turns)} ${t("turns")}`, `${each(totals.tool_calls)} ${t("calls")}, ${duration((1000 * totals.seconds) / (totals.finished || 1))}`],
      [t("Repairs"), count(totals.repairs), `${t("Rollbacks")} ${count(totals.rollbacks)}`],
      ...Object.entries(failures).map(([kind, number]) => [kind, count(number), ended]),
    ];
    const scorers = found.scorers.length > 1 ? h("select", { "aria-label": t("Scorer"), change: (event) => this.rescore(event.target.value) },
      found.scorers.map((name) => h("option", { value: name, selected: name === found.scorer }, name))) : null;
    replaceChildren(this.figures, scorers,
      h("table.figures", null, h("tbody", null, lines.filter(Boolean).map(([name, value, detail]) =>
        h("tr", null, h("th", { scope: "row", dir: "auto" }, name), h("td", null, value, detail ? h("small", null, detail) : null))))),
      fold(t("How to repeat it"), () => h("dl.arguments", null, found.provenance.map(([name, value]) =>
        [h("dt", null, name), h("dd", { dir: "auto" }, value)]))));
  }

  async rescore(scorer) {
    this.scorer = scorer;
    this.remember();
    clearTimeout(this.timer);
    this.found.version = "";
    await this.refresh();
  }

  // ---------------------------------------------------------------------------------------------- the matrix

  choose({ outcome = this.chosen, text = this.text }) {
    this.chosen = outcome;
    this.text = text;
    this.remember();
    this.at = { row: 0, column: 0 };
    for (const row of this.rows.values()) row.changed = true; // other cells are dimmed
    this.drawRows();
  }

  remember() {
    const query = new URLSearchParams(Object.entries({ show: this.chosen, q: this.text, scorer: this.scorer, with: this.with }).filter(([, each]) => each));
    history.replaceState(null, "", `#/evaluation/${encodeURIComponent(this.id)}${query.size ? `?${query}` : ""}`);
  }

  drawRows() {
    for (const name of Object.keys(DIFFERENCES)) this.counts[name] = 0;
    for (const row of this.rows.values()) if (this.differs(row)) this.counts[this.differs(row)] += 1;
    replaceChildren(this.filters, Object.entries({ ...OUTCOMES, ...DIFFERENCES }).filter(([name]) => this.counts[name] || name === this.chosen).map(([name, sign]) =>
      h("button.outcome", { type: "button", "aria-pressed": String(this.chosen === name), click: () => this.choose({ outcome: this.chosen === name ? "" : name }) },
        h("span.cell", { class: name, "aria-hidden": "true" }, sign), t(name), h("b", null, count(this.counts[name])))));
    const words = this.text.toLowerCase();
    const focused = this.matrix.contains(document.activeElement) ? this.shown[this.at.row] : null;
    // What differs comes first; then the tasks that are not right, then the rest, each in the order of the data set.
    const order = (row) => [...Object.keys(DIFFERENCES), ""].indexOf(this.differs(row)) + (row.trials.every((trial) => trial.outcome === "right") ? 1 : 0);
    this.shown = [...this.rows.values()].filter((row) =>
      (!this.chosen || this.differs(row) === this.chosen || row.trials.some((trial) => trial.outcome === this.chosen)) &&
      (!words || row.task.toLowerCase().includes(words) || row.question.toLowerCase().includes(words)))
      .sort((a, b) => order(a) - order(b));
    this.list.update(this.shown);
    if (focused) {
      this.at.row = Math.max(0, this.shown.indexOf(focused)); // the tasks may have another order now
      if (!this.matrix.contains(document.activeElement)) this.move(0, 0);
    }
    const tasks = this.shown.length === this.found.score.clusters ? t("{n} tasks", { n: count(this.shown.length) })
      : t("{n} of {m} tasks", { n: count(this.shown.length), m: count(this.found.score.clusters) });
    replaceChildren(this.note, tasks, ["running", "paused"].includes(this.found.state) ? ` · ${t("live")}` : "");
  }

  row(row) {
    const right = row.trials.filter((trial) => trial.outcome === "right").length;
    const then = this.before.get(row.task);
    const differs = this.differs(row);
    return h("div.matrix-row", { role: "row" },
      h("div.matrix-task", { role: "rowheader", dir: "auto", title: `${row.question}\n→ ${row.answer}` }, h("code", null, row.task), " ", row.question),
      h("div.cells", null, row.trials.map((trial) => this.cell(row, trial))),
      h("span.row-share", { role: "gridcell", class: differs }, then !== undefined && then !== right / (row.trials.length || 1) ? h("small", null, `${Math.round(100 * then)} % → `) : null, `${right}/${row.trials.length}`));
  }

  cell(row, trial) {
    const about = [`${row.task} · ${t("trial {n}", { n: trial.epoch })}: ${t(trial.outcome)}`, trial.answer && `→ ${trial.answer}`, trial.reason].filter(Boolean).join("\n");
    const properties = { class: `${trial.outcome} ${Object.hasOwn(OUTCOMES, this.chosen) && trial.outcome !== this.chosen ? "dimmed" : ""}`, title: about, "aria-label": about, tabindex: "-1", role: "gridcell" };
    return trial.run_id === null ? h("span.cell", properties, OUTCOMES[trial.outcome])
      : h("a.cell", { ...properties, href: `#/run/${encodeURIComponent(trial.run_id)}` }, OUTCOMES[trial.outcome]);
  }

  /** Go to another cell; to the nearest one if that is beyond the edge. */
  move(down, right) {
    if (!this.shown.length) return;
    const inside = (value, size) => Math.max(0, Math.min(size - 1, value));
    const row = inside(this.at.row + down, this.shown.length);
    this.at = { row, column: inside(this.at.column + right, this.shown[row].trials.length) };
    const cell = this.list.reveal(row)?.querySelectorAll("a.cell, span.cell")[this.at.column];
    cell?.scrollIntoView({ block: "nearest" });
    cell?.focus({ preventScroll: true });
  }

  key(key) {
    const focused = document.activeElement?.closest(".matrix-row .cell");
    const steps = { j: [1, 0], ArrowDown: [1, 0], k: [-1, 0], ArrowUp: [-1, 0], h: [0, -1], ArrowLeft: [0, -1], l: [0, 1], ArrowRight: [0, 1], G: [Infinity, 0], g: [-Infinity, 0] };
    if (Object.hasOwn(steps, key)) {
      if (!focused && key.startsWith("Arrow")) return false; // scrolls
      this.move(...(focused ? steps[key] : [0, 0]));
    } else if (key === "/") this.search.focus();
    else if (key === "u") location.hash = "#/evaluations";
    else return false;
    return true;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.list.close();
  }
}

function shareRight(row) {
  return row.trials.filter((trial) => trial.outcome === "right").length / (row.trials.length || 1);
}
