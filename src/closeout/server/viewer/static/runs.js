// The list of runs: live, filtered, searched.

import { h, marked, replaceChildren } from "./dom.js";
import { ago, cost, count, duration, moment, percent, short, until } from "./format.js";
import { t } from "./language.js";
import { aboutRun, statusChip } from "./parts.js";
import { listRuns, pauseSchedule } from "./source.js";

const STATUSES = ["", "running", "waiting", "answered", "unanswered", "failed", "interrupted", "cancelled"];
const OPEN = ["failed", "interrupted", "waiting"]; // somebody may have to do something
const AGES = { "": "any time", "1h": "last hour", "24h": "last 24 hours", "7d": "last 7 days", "30d": "last 30 days" };
const AGE_SECONDS = { "1h": 3600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000 };
const FILTERS = ["text", "status", "agent", "user", "model", "newer"]; // in the address `text` is q
const REFRESH_MS = 2000;
const PAGE = 30;
const TYPING_MS = 25;
const GROUPS = 5; // evaluations that are named above the list

export class RunsPage {
  constructor(main, route) {
    this.main = main;
    this.filters = Object.fromEntries(FILTERS.map((name) => [name, route.query.get(name === "text" ? "q" : name) ?? ""]));
    this.rows = new Map(); // run id → {run, element}
    this.more = false;
    this.loading = null;
    this.selected = -1;
    this.chosen = []; // runs to compare
    this.search = h("input", { type: "search", placeholder: t("Search tasks, replies, results …"), "aria-label": t("Search"),
      value: this.filters.text, input: () => this.later(() => this.set("text", this.search.value)) });
    this.named = ["agent", "user", "model"].map((name) => {
      const label = t({ agent: "Agent", user: "User", model: "Model" }[name]);
      const input = h("input.name-filter", { type: "search", placeholder: label, "aria-label": label, value: this.filters[name],
        input: () => this.later(() => this.set(name, input.value)) });
      return input;
    });
    this.newer = h("select", { "aria-label": t("Began"), change: () => this.set("newer", this.newer.value) },
      Object.entries(AGES).map(([value, name]) => h("option", { value, selected: value === this.filters.newer }, t(name))));
    this.status = h("select", { "aria-label": t("Status"), change: () => this.set("status", this.status.value) },
      STATUSES.map((status) => h("option", { value: status, selected: status === this.filters.status }, t(status || "any status"))));
    this.list = h("div.runs", { role: "list" });
    this.pending = h("p.grouped");
    this.grouped = h("p.grouped.quiet");
    this.beside = h("div");
    this.end = h("div.list-end");
    this.note = h("p.foot", { role: "status" });
    this.compare = h("div.compare-bar", { hidden: true });
    this.observer = new IntersectionObserver((entries) => entries.some((e) => e.isIntersecting) && this.loadMore(), { rootMargin: "800px" });
  }

  async open() {
    replaceChildren(this.main, h("div.runs-page", null,
      h("h1.unseen", null, t("Runs")),
      h("form.filters", { role: "search", submit: (event) => event.preventDefault() }, this.search, this.status, this.newer, this.named),
      this.pending, this.grouped, this.beside,
      h("div.runs-head", { "aria-hidden": "true" }, ["Task", "Turns", "Tokens", "Cached", "Cost", "Time"].map((name) => h("span", null, t(name)))),
      this.list, this.end, this.note, this.compare));
    await this.load();
    if (this.closed) return;
    this.observer.observe(this.end);
    this.timer = setInterval(() => this.refresh(), REFRESH_MS);
  }

  later(act) {
    clearTimeout(this.typing);
    this.typing = setTimeout(act, TYPING_MS);
  }

  set(name, value) {
    if (this.filters[name] === value.trim()) return;
    this.filters[name] = value.trim();
    const query = new URLSearchParams(FILTERS.filter((each) => this.filters[each]).map((each) => [each === "text" ? "q" : each, this.filters[each]]));
    history.replaceState(null, "", `#/${query.size ? `?${query}` : ""}`);
    this.load();
  }

  /** The filters as the server takes them. */
  asked() {
    const { newer, ...filters } = this.filters;
    return Object.hasOwn(AGE_SECONDS, newer) ? { ...filters, since: Math.floor(Date.now() / 1000 - AGE_SECONDS[newer]) } : filters;
  }

  /** Load the first page. What was asked before and is not there yet is of no interest any more. */
  async load() {
    this.loading?.abort();
    const control = (this.loading = new AbortController());
    try {
      const found = await listRuns({ ...this.asked(), limit: PAGE }, control.signal);
      if (control !== this.loading) return;
      this.rows.clear();
      this.selected = -1;
      for (const run of found.runs) this.rows.set(run.run_id, { run, element: this.row(run) });
      this.list.replaceChildren(...[...this.rows.values()].map((row) => row.element));
      this.finish(found, found.more);
    } catch (error) {
      if (error.name !== "AbortError") replaceChildren(this.note, error.message);
    } finally {
      if (control === this.loading) this.loading = null;
    }
  }

  async loadMore() {
    if (!this.more || this.loading || !this.rows.size) return;
    const control = (this.loading = new AbortController());
    try {
      const before = this.list.lastElementChild.dataset.id;
      const found = await listRuns({ ...this.asked(), before, limit: PAGE }, control.signal);
      if (control !== this.loading) return;
      for (const run of found.runs) {
        if (this.rows.has(run.run_id)) continue;
        const element = this.row(run);
        this.rows.set(run.run_id, { run, element });
        this.list.append(element);
      }
      this.finish(found, found.more);
    } catch (error) {
      if (error.name !== "AbortError") replaceChildren(this.note, error.message);
    } finally {
      if (control === this.loading) this.loading = null;
    }
  }

  finish(found, more) {
    this.more = more;
    this.drawPending();
    this.drawGrouped(found.evaluations);
    this.drawBeside(found);
    // The end may still be in sight: an observer reports that only if it observes it again.
    this.observer.unobserve(this.end);
    this.observer.observe(this.end);
    this.indexing = found.indexed < found.total;
    let note = "";
    if (!this.rows.size) note = Object.values(this.filters).some(Boolean) ? t("No run matches.") : t("No runs yet. Try: closeout run \"What is 17 % of 2,340?\"");
    else if (!more) note = t(this.rows.size === 1 ? "1 run" : "{n} runs", { n: count(this.rows.size) });
    if (this.indexing) note += ` · ${t("indexed {n} of {m}", { n: count(found.indexed), m: count(found.total) })}`;
    replaceChildren(this.note, note);
  }

  /** How many of the runs in the list are open. A click shows only those. */
  drawPending() {
    const runs = this.filters.status ? [] : [...this.rows.values()].map((row) => row.run.status);
    const found = OPEN.map((status) => [status, runs.filter((each) => each === status).length]).filter(([, number]) => number);
    const text = JSON.stringify([found, this.more]);
    if (this.pendingText === text) return; // the focus stays on a button
    this.pendingText = text;
    const choose = (status) => {
      this.status.value = status;
      this.set("status", status);
    };
    replaceChildren(this.pending, found.map(([status, number]) =>
      h("button.more", { type: "button", click: () => choose(status) }, `${t(status)}: ${count(number)}${this.more ? "+" : ""}`)));
  }

  /** The recurring runs, and the webhooks that have failed so far. */
  drawBeside({ schedules, unsent }) {
    const next = (each) => (each.paused ? t("paused") : until(each.next));
    const text = JSON.stringify([schedules.map((each) => [each.name, next(each), each.last, each.error]), unsent]);
    if (this.besideText === text) return; // the focus stays on a button
    this.besideText = text;
    const change = (each) => pauseSchedule(each.name, !each.paused).then(() => this.refresh(), (error) => replaceChildren(this.note, error.message));
    const recurring = schedules.map((each) => h("span", { dir: "auto", title: `${each.every} ${each.timezone} ${each.last} ${each.error}` },
      `${each.name} (${next(each)}${each.error ? `, ${t("failed")}` : ""}) `,
      h("button.more", { type: "button", click: () => change(each) }, each.paused ? t("Continue") : t("Pause"))));
    const failed = unsent.map((each) => h("a", { href: `#/run/${encodeURIComponent(each.run_id)}`, dir: "auto", title: each.error },
      `${each.run_id}${each.due === null ? ` (${t("given up")})` : ""} `));
    replaceChildren(this.beside,
      recurring.length ? h("p.grouped.quiet", null, t("Recurring:"), " ", recurring) : null,
      failed.length ? h("p.grouped.quiet", null, t("Webhooks that failed:"), " ", failed) : null);
  }

  /** The evaluations, whose trials are not in the list: a search alone finds them here. */
  drawGrouped(evaluations) {
    const text = evaluations.join(" ");
    if (this.groups === text) return;
    this.groups = text;
    const names = evaluations.slice(0, GROUPS);
    replaceChildren(this.grouped, names.length ? [t("Trials are listed in their evaluations:"), " ",
      names.map((name) => h("a", { href: `#/evaluation/${encodeURIComponent(name)}`, dir: "auto" }, name)),
      evaluations.length > GROUPS ? h("a", { href: "#/evaluations" }, t("all {n}", { n: count(evaluations.length) })) : null] : null);
  }

  /** Look for new runs, and for changes of those at the top. */
  async refresh() {
    if (document.hidden || this.loading || scrollY > 1500) return;
    const filters = { ...this.filters };
    let found;
    try {
      found = await listRuns({ ...this.asked(), limit: PAGE });
    } catch {
      return replaceChildren(this.note, t("The server does not answer."));
    }
    if (this.loading || this.closed || JSON.stringify(filters) !== JSON.stringify(this.filters)) return;
    let place = this.list.firstElementChild;
    for (const run of found.runs) {
      const known = this.rows.get(run.run_id);
      let element = known?.element;
      if (!known || JSON.stringify(known.run) !== JSON.stringify(run)) {
        element = this.row(run);
        known?.element.replaceWith(element);
        if (known && place === known.element) place = element;
        if (!known) this.list.insertBefore(element, place);
        this.rows.set(run.run_id, { run, element });
      }
      place = element.nextElementSibling;
    }
    this.finish(found, this.more);
  }

  row(run) {
    const totals = run.totals;
    const usage = totals?.usage ?? {};
    const tokens = (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0);
    const until = run.ended ?? (run.status === "running" ? Date.now() / 1000 : null);
    const cached = percent(usage.cache_read_tokens, usage.input_tokens);
    const address = `#/run/${encodeURIComponent(run.run_id)}${run.hit ? `?e=${run.hit.seq}` : ""}`;
    const choose = h("input.choose", { type: "checkbox", "aria-label": t("Compare"), title: t("Compare"),
      click: () => this.choose(run.run_id, choose.checked) });
    choose.checked = this.chosen.includes(run.run_id);
    const bar = h("span.share", { title: `${cached} ${t("cached")}` }, h("i"));
    bar.firstChild.style.width = cached.replace(" ", "") || "0";
    const flags = [["rollbacks", "rollback"], ["repairs", "repair"]].filter(([name]) => totals?.[name])
      .map(([name, kind]) => h(`span.flag.flag-${kind}`, null, `${count(totals[name])} ${t(totals[name] === 1 ? kind : name)}`));
    return h("div.run-row", { role: "listitem", "data-id": run.run_id },
      h("div.run-cell", null,
        h("a.run-link", { href: address, dir: "auto" }, run.task || t("(no task)")),
        run.hit?.excerpt ? h("p.hit", { dir: "auto" }, h("span.label", null, t(run.hit.kind)), marked(run.hit.excerpt, run.hit.marks)) : null,
        run.answer !== null && !run.hit ? h("p.run-answer", { dir: "auto" }, "→ ", run.answer.slice(0, 300)) : null,
        run.reason && run.reason !== run.status && !run.hit ? h("p.run-reason", { dir: "auto", "data-status": run.status }, run.reason) : null,
        h("p.run-meta", null, choose, statusChip(run.status), h("span", { title: moment(run.started) }, ago(run.started)),
          aboutRun(run, false), h("span", { dir: "auto" }, run.model), h("code", null, run.run_id), flags)),
      h("span.number", { "data-name": t("Turns") }, totals ? count(totals.turns) : "…"),
      h("span.number", { "data-name": t("Tokens"), title: count(tokens) }, totals ? short(tokens) : "…"),
      h("span.number", { "data-name": t("Cached") }, cached || "–", bar),
      h("span.number", { "data-name": t("Cost") }, cost(usage.cost_usd) || t("unknown")),
      h("span.number", { "data-name": t("Time") }, until ? duration(1000 * (until - run.started)) : "–"));
  }

  choose(id, isChosen) {
    this.chosen = isChosen ? [...this.chosen.filter((each) => each !== id), id].slice(-2) : this.chosen.filter((each) => each !== id);
    for (const [run, { element }] of this.rows) element.querySelector(".choose").checked = this.chosen.includes(run);
    this.compare.hidden = !this.chosen.length;
    replaceChildren(this.compare, this.chosen.length === 2
      ? h("a.button.primary", { href: `#/compare/${this.chosen.map(encodeURIComponent).join("/")}` }, t("Compare these two runs"))
      : t("Choose one more run to compare."));
  }

  key(key) {
    const links = [...this.list.querySelectorAll(".run-link")];
    if (key === "j" || key === "k") {
      this.selected = Math.max(0, Math.min(links.length - 1, this.selected + (key === "j" ? 1 : -1)));
      links[this.selected]?.focus();
    } else if (key === "/") this.search.focus();
    else return false;
    return true;
  }

  close() {
    this.closed = true;
    this.loading?.abort();
    this.observer.disconnect();
    clearInterval(this.timer);
    clearTimeout(this.typing);
  }
}
