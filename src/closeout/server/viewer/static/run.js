// The page of one run: its summary, its tokens, and its story, live while it runs.

import { DecisionPanel } from "./deciding.js";
import { MessageBox } from "./messaging.js";
import { OutcomePanel } from "./outcome.js";
import { h, replaceChildren } from "./dom.js";
import { cost, count, duration, moment, percent, short, fileSize } from "./format.js";
import { itemElement, wasCutOff, wasNotRun } from "./items.js";
import { t } from "./language.js";
import { LongList } from "./list.js";
import { aboutRun, copyFrom, longText, statusChip } from "./parts.js";
import { exportAddress, exportedRun, fileAddress, followRun, listEvents, listFiles, listUndoable, loadTrial, textOf } from "./source.js";
import { loadMore, requestsOf, Story, usageOf } from "./story.js";

const FIRST_EVENTS = 60; // enough for the first screen
const MORE_EVENTS = 5000;
const MOST_BARS = 240;
const LOOK_MS = 2000; // between two looks at a run that somebody may continue
const RESUMABLE = ["waiting", "interrupted", "failed", "cancelled"];
// What the buttons go to: a label, and how many of them an item contains.
const LANDMARKS = {
  repair: ["Repairs", (item) => item.repairs?.length],
  rollback: ["Rollbacks", (item) => (item.rolledBack ? 1 : 0)],
  failure: ["Failed calls", (item) => item.calls?.filter(({ finished }) => finished && !finished.ok).length],
  notRun: ["Calls not run", (item) => item.calls?.filter(wasNotRun).length],
  request: ["Failed requests", (item) => [item, ...(item.extras ?? [])].filter((each) => each.failure).length],
  eviction: ["Evictions", (item) => (["evicted", "compacted"].includes(item.kind) ? 1 : 0)],
  agent: ["Sub-agents", (item) => (item.kind === "agent" ? 1 : 0)],
  decision: ["Decisions", (item) => (item.kind === "decision" ? 1 : item.calls?.filter((call) => call.decision).length)],
  fork: ["Fork", (item) => (item.kind === "forked" ? 1 : 0)],
};

/** A run, drawn in `main`. `route` has id and event (a number to go to, or null). */
export class RunPage {
  constructor(main, route) {
    this.runId = route.id;
    this.target = route.event;
    this.main = main;
    this.story = new Story();
    this.record = null;
    this.items = [];
    this.selected = -1;
    this.widest = 1;
    this.closed = false;
    this.complete = false;
    this.stopFollowing = () => {};
    this.looking = 0;
    this.shownAt = -1; // the number of events when the decisions were shown
    this.decisions = new DecisionPanel(route.id, () => this.look());
    this.outcome = new OutcomePanel(route.id, { onResumed: () => this.look(), goTo: (seq) => this.goToEvent(seq) });
    this.messages = new MessageBox(route.id);
    this.list = new LongList((item) => this.element(item));
    this.head = h("section.run-head");
    this.chart = h("section.chart");
    this.jumps = h("nav.jumps", { "aria-label": t("Go to") });
    this.foot = h("p.foot", { role: "status" });
    this.verdict = h("div.verdict", { hidden: true });
    this.files = h("div.files", { hidden: true });
    this.filesAt = -1; // the number of events when the files were listed
    this.undoable = {}; // call → whether it has been undone
  }

  async open() {
    const isMore = await this.load(FIRST_EVENTS);
    if (this.closed) return;
    replaceChildren(this.main, h("div.run-page", null, h("div.first", null, this.outcome.element, this.decisions.element),
      h("aside.run-side", null, this.head, this.files, this.verdict, this.chart, this.jumps), h("div.run-main", null, this.list.element, this.foot, exportedRun() ? null : this.messages.element)));
    this.draw();
    this.list.fillFirst();
    // After this is painted.
    requestAnimationFrame(() => setTimeout(() => this.loadRest(isMore)));
  }

  /** Load more of the story. Returns whether there is more. */
  async load(first) {
    const { run, isMore } = await loadMore(this.runId, this.story, first);
    this.record = run;
    return isMore;
  }

  /** Load the rest in pieces, then follow the run if it is not over. */
  async loadRest(isMore) {
    try {
      await this.loadPieces(isMore);
    } catch (error) {
      replaceChildren(this.foot, error.message);
    }
  }

  async loadPieces(isMore) {
    while (isMore && !this.closed) {
      isMore = await this.load(MORE_EVENTS);
      if (!this.closed) this.draw();
      await new Promise((resume) => setTimeout(resume));
    }
    this.complete = true;
    if (this.closed) return;
    this.draw();
    this.drawVerdict();
    if (this.target !== null) this.goToEvent(this.target);
    this.watch();
  }

  /** Follow a run that runs. Look now and then at one that waits or was interrupted: somebody may continue it. */
  watch() {
    if (this.closed) return;
    this.drawFiles();
    if (exportedRun()) return;
    if (this.isOver()) this.drawUndo();
    this.messages.update(this.record.status);
    if (this.record.status === "running") this.follow();
    else if (RESUMABLE.includes(this.record.status)) {
      clearTimeout(this.looking);
      this.looking = setTimeout(() => this.look(), LOOK_MS);
    }
    if (this.shownAt === this.story.count && !this.decisions.awaitsLogin) return;
    this.shownAt = this.story.count;
    this.decisions.update(this.record);
  }

  async look() {
    clearTimeout(this.looking);
    try {
      const { run, events } = document.hidden ? { run: this.record, events: [] } : await listEvents(this.runId, this.story.count, 1);
      if (events.length || run.status !== this.record.status) {
        await this.load(MORE_EVENTS);
        this.draw();
      }
    } catch {
      // the server may be back at the next look
    }
    this.watch();
  }

  follow() {
    let drawing = 0;
    this.stopFollowing = followRun(
      this.runId,
      this.story.count,
      (found) => {
        if (found.count <= this.story.count) return;
        this.story.add(found);
        drawing ||= setTimeout(() => {
          drawing = 0;
          this.draw();
        }, 100);
      },
      (record) => {
        this.record = record;
        this.draw();
        this.watch();
      },
    );
  }

  draw() {
    if (this.closed) return;
    this.items = this.story.items;
    this.drawHead();
    this.drawChart();
    this.drawJumps();
    if (this.complete) this.outcome.update(this.record, this.record.status === "failed" ? this.items.findLast((item) => item.failure || item.extras?.some((extra) => extra.failure)) : null);
    this.list.update(this.items);
    const state = this.isOver() ? "" : ` · ${t("live")}`;
    replaceChildren(this.foot, this.complete ? `${count(this.story.count)} ${t("events")}${state}` : t("Loading …"));
  }

  mayContinue() {
    return !this.isOver() || RESUMABLE.includes(this.record.status);
  }

  isOver() {
    return this.record.status !== "running";
  }

  /** Whether what is open stays open. A waiting run continues where it is. */
  hasEnded() {
    return this.isOver() && this.record.status !== "waiting";
  }

  callsWhere(test) {
    return this.items.flatMap((item) => item.calls?.filter(test) ?? []);
  }

  // ---------------------------------------------------------------------------------------------- what is shown

  /** A line with the names of some calls, which leads to them. */
  callsWarning(test, text) {
    const names = [...new Set(this.callsWhere(test).map((call) => textOf(call.name)))].slice(0, 3).join(", ");
    const show = () => this.goToNext(this.items.filter((item) => item.calls?.some(test)));
    return h("button.line.warning", { type: "button", dir: "auto", click: show }, `${text}: ${names}`);
  }

  drawHead() {
    const { record, story } = this;
    const { totals } = story;
    const left = this.callsWhere(wasNotRun).length;
    const cutOff = this.hasEnded() ? this.callsWhere(wasCutOff).length : 0;
    const isOpen = (item) => item.kind === "turn" && !item.accepted && !item.rolledBack;
    const open = this.hasEnded() ? 0 : this.items.filter(isOpen).length;
    const { input_tokens: input, output_tokens: written, cache_read_tokens: cached, cost_usd: price } = totals.usage;
    const started = story.started?.time ?? record.started;
    const seconds = Math.max(0, (this.isOver() ? story.lastTime : Date.now() / 1000) - started);
    const tile = (name, value, detail = "") =>
      value === "" ? null : h("div.tile", null, h("dt", null, t(name)), h("dd", null, value, detail && h("small", null, detail)));
    const copy = h("button.quiet", { type: "button", click: () => copyFrom(copy, this.runId), title: t("Copy the run id") }, this.runId);
    replaceChildren(
      this.head,
      h("div.run-line", null, statusChip(record.status), copy, h("span.quiet", { dir: "auto" }, record.model)),
      h("h1.run-task", { dir: "auto" }, (textOf(story.started?.task) || record.task).slice(0, 300)),
      aboutRun(record),
      h("p.quiet", null, moment(started)),
      this.evaluationLink(),
      this.forkLink(),
      record.answer !== null && h("div.answer-line", null, h("span.label", null, t("Answer")), longText(record.answer, { tag: "b" })),
      record.answer !== null && left > 0 && this.callsWarning(wasNotRun, t(left === 1 ? "1 call was not run" : "{n} calls were not run", { n: count(left) })),
      cutOff > 0 && this.callsWarning(wasCutOff, t(cutOff === 1 ? "1 call has no result, so it may have been done or not" : "{n} calls have no result, so they may have been done or not", { n: count(cutOff) })),
      h("dl.tiles", null,
        tile("Turns", count(totals.turns), open ? t("{n} under way", { n: count(open) }) : ""),
        tile("Calls", count(totals.tool_calls), [totals.tool_failures && `${count(totals.tool_failures)} ${t("failed")}`, left && `${count(left)} ${t("not run")}`].filter(Boolean).join(" · ")),
        tile("Tokens", short(input + written), `${short(input)} ${t("in")} · ${short(written)} ${t("out")}`),
        tile("Cached", percent(cached, input)),
        tile("Cost", price === null ? t("unknown") : cost(price), price === null ? t("a price is missing") : ""),
        tile("Time", duration(seconds * 1000)),
        tile("Repairs", totals.repairs ? count(totals.repairs) : ""),
        tile("Rollbacks", totals.rollbacks ? count(totals.rollbacks) : ""),
      ),
      h("div.actions", null,
        h("a.button", { href: `#/run/${encodeURIComponent(this.runId)}/prompts` }, t("Prompts")),
        h("a.button", { href: `#/run/${encodeURIComponent(this.runId)}/sources` }, t("Sources")),
        exportedRun() ? null : h("a.button", { href: `#/compare/${encodeURIComponent(this.runId)}` }, t("Compare")),
        exportedRun() ? null : h("a.button", { href: exportAddress(this.runId), download: `${this.runId}.html` }, t("Export"))),
    );
  }

  /** Where the run is a trial of an evaluation: a link to that. */
  evaluationLink() {
    const { evaluation, epoch } = this.story.started?.origin ?? {};
    if (typeof evaluation !== "string" || exportedRun()) return null;
    return h("p.quiet", null, h("a", { href: `#/evaluation/${encodeURIComponent(evaluation)}`, dir: "auto" }, `${t("Evaluation")} ${evaluation}`),
      typeof epoch === "number" ? ` · ${t("trial {n}", { n: epoch })}` : "");
  }

  /** Where the run is a trial: the expected answer, and each scorer's verdict with its reason. */
  async drawVerdict() {
    if (typeof this.story.started?.origin?.evaluation !== "string") return;
    const trial = await loadTrial(this.runId);
    if (!trial) return;
    const { expected, scores } = trial;
    this.verdict.hidden = false;
    replaceChildren(this.verdict, h("h2", null, t("Verdict")),
      expected === null ? null : h("div", null, h("span.label", null, t("Expected answer")), longText(expected, { tag: "b" })),
      scores.length ? null : h("p.quiet", null, t("not judged")),
      scores.map((each) => h("div", null,
        h("p.run-line", null, h("span.chip", { class: `verdict-${!each.judged ? "none" : each.correct ? "right" : "wrong"}` },
          !each.judged ? t("not judged") : each.correct ? t("right") : t("wrong")),
        h("span.quiet", { dir: "auto" }, `${t("Scorer")}: ${each.scorer}`), [0, 1].includes(each.value) ? null : h("span.quiet", null, `${t("Score")} ${each.value}`)),
        each.reason ? longText(each.reason, { tag: "p" }) : null)));
  }

  /** The files that the run left, to save, with its pictures; then those of its task. */
  async drawFiles() {
    const left = this.items.some((item) => item.calls?.some(({ finished }) => finished?.files?.length));
    if ((!left && !this.story.started?.kept_files?.length) || this.filesAt === this.story.count) return;
    this.filesAt = this.story.count;
    let files = [];
    try {
      files = await listFiles(this.runId);
    } catch {
      return; // the server may be back at the next look
    }
    const list = (title, found) => found.length === 0 ? null : [h("h2", null, t(title)), h("ul", null, found.map((file) => this.file(file)))];
    this.files.hidden = files.length === 0;
    replaceChildren(this.files, list("Files", files.filter((file) => file.left)), list("Files of the task", files.filter((file) => !file.left)));
  }

  /** Show which calls this server can undo. */
  async drawUndo() {
    const found = await listUndoable(this.runId).catch(() => ({}));
    if (JSON.stringify(found) === JSON.stringify(this.undoable)) return;
    this.undoable = found;
    for (const item of this.items) if (item.calls?.length) item.changed = true;
    this.list.update(this.items);
  }

  file({ name, media_type: type, size: bytes, left, image }) {
    const about = h("span.quiet", null, `${type} · ${fileSize(bytes)}`);
    if (exportedRun()) return h("li", null, h("b", { dir: "auto" }, name), " ", about);
    const address = fileAddress(this.runId, name);
    return h("li", null, h("a", { href: address, download: name.split("/").pop(), dir: "auto" }, name), " ", about,
      image && left ? h("img", { src: address, alt: name, loading: "lazy" }) : null);
  }

  /** Where the run is a fork or a lane of a what-if comparison: links to the run that it was made of, and to the difference. */
  forkLink() {
    const { run: recorded } = this.story.started?.origin?.["what-if"] ?? {};
    if (typeof recorded === "string") {
      const about = t("What-if lane of {run}", { run: recorded });
      const [from, own] = [recorded, this.runId].map(encodeURIComponent);
      return h("p.quiet", { dir: "auto" }, exportedRun() ? about
        : [h("a", { href: `#/run/${from}` }, about), " · ", h("a", { href: `#/compare/${from}/${own}` }, t("Compare"))]);
    }
    const { run_id: origin, events } = this.story.started?.forked ?? {};
    if (typeof origin !== "string") return null;
    const [from, own] = [origin, this.runId].map(encodeURIComponent);
    const about = t("Forked from {run} before event {n}", { run: origin, n: events });
    return h("p.quiet", { dir: "auto" }, exportedRun() ? about
      : [h("a", { href: `#/run/${from}?e=${Math.max(0, Number(events) - 1)}` }, about), " · ", h("a", { href: `#/compare/${from}/${own}` }, t("Compare"))]);
  }

  drawChart() {
    const turns = this.items.flatMap((item) =>
      requestsOf(item).map((asked) => ({ ...asked, agent: item.agent, seq: item.seq, rolledBack: item.rolledBack })));
    turns.sort((a, b) => a.request.seq - b.request.seq);
    const usages = turns.map(usageOf);
    this.widest = Math.max(1, ...usages.slice(-5000).map((usage) => usage.input + usage.written));
    if (!usages.some((usage) => usage.input + usage.written)) return replaceChildren(this.chart);
    const perBar = Math.ceil(turns.length / MOST_BARS);
    const bars = [];
    let highest = 1;
    for (let at = 0; at < turns.length; at += perBar) {
      const sum = { cached: 0, fresh: 0, written: 0 };
      for (const usage of usages.slice(at, at + perBar)) for (const kind in sum) sum[kind] += usage[kind];
      highest = Math.max(highest, sum.cached + sum.fresh + sum.written);
      bars.push({ sum, turn: turns[at], last: Math.min(at + perBar, turns.length) });
    }
    const elements = bars.map(({ sum, turn, last }) => {
      const total = sum.cached + sum.fresh + sum.written;
      const title = `${turn.agent} · ${t("request")} ${turn.request.call + 1}${perBar > 1 ? ` – ${last}` : ""}: ${count(sum.cached)} ${t("cached")}, ${count(sum.fresh)} ${t("new")}, ${count(sum.written)} ${t("written")}`;
      const bar = h("button.bar", { type: "button", title, "aria-label": title, tabindex: "-1", click: () => this.goToEvent(turn.seq) });
      for (const kind of ["written", "fresh", "cached"]) {
        const part = h(`i.${kind}`);
        part.style.flexGrow = sum[kind];
        bar.append(part);
      }
      bar.style.height = `${Math.max(2, (100 * total) / highest)}%`;
      if (turn.rolledBack) bar.classList.add("marked");
      return h("span.bar-slot", null, bar);
    });
    replaceChildren(
      this.chart,
      h("h2", null, perBar > 1 ? t("Tokens, {n} requests a bar", { n: perBar }) : t("Tokens per request")),
      h("div.bars", null, elements),
      h("p.legend", null, ["cached", "fresh", "written"].map((kind) =>
        h("span", null, h(`i.${kind}`), t({ cached: "cached", fresh: "new", written: "written" }[kind])))),
    );
  }

  drawJumps() {
    const buttons = Object.entries(LANDMARKS).map(([name, [label, number]]) => {
      const found = this.items.filter(number);
      const total = found.reduce((sum, item) => sum + number(item), 0);
      if (!found.length) return null;
      return h("button.jump", { type: "button", class: `jump-${name}`, click: () => this.goToNext(found) },
        t(label), h("b", null, count(total)));
    });
    const last = h("button.jump", { type: "button", click: () => this.select(this.items.length - 1) }, this.record.answer !== null ? t("Answer") : this.hasEnded() ? t("End") : t("Latest"));
    replaceChildren(this.jumps, buttons, last);
  }

  element(item) {
    const element = itemElement(item, this);
    element.addEventListener("focusin", () => this.mark(this.items.indexOf(item)));
    return element;
  }

  clock(time) {
    const seconds = Math.max(0, time - (this.story.started?.time ?? time));
    return `+${duration(seconds * 1000)}`;
  }

  link(seq) {
    return `#/run/${encodeURIComponent(this.runId)}?e=${seq}`;
  }

  prompt(item) {
    return `#/run/${encodeURIComponent(this.runId)}/prompts?e=${item.request.seq}`;
  }

  // ---------------------------------------------------------------------------------------------- going about

  goToEvent(seq) {
    let index = this.items.findIndex((item) => item.seq === seq);
    // An event inside an item: the last item of its agent that began before it.
    if (index < 0) index = this.items.findIndex((item) => item.seq <= seq && seq <= item.last && holds(item, seq));
    if (index < 0) index = this.items.findIndex((item) => item.seq <= seq && seq <= item.last);
    this.target = index < 0 ? seq : null; // gone to when it is loaded
    if (index < 0) return;
    this.select(index);
    const inside = document.getElementById(`e${seq}`);
    if (inside && !inside.classList.contains("item")) {
      inside.scrollIntoView({ block: "center" });
      inside.classList.add("target");
    }
  }

  goToNext(found) {
    const places = found.map((item) => this.items.indexOf(item)).sort((a, b) => a - b);
    this.select(places.find((place) => place > this.selected) ?? places[0]);
  }

  select(index) {
    const element = this.list.reveal(Math.max(0, Math.min(index, this.items.length - 1)));
    if (!element) return;
    element.scrollIntoView({ block: element.offsetHeight > innerHeight * 0.7 ? "start" : "center" });
    element.focus({ preventScroll: true });
    this.mark(index);
    // What lies between may have been estimated; once it is laid out, the place is exact.
    requestAnimationFrame(() => element.scrollIntoView({ block: element.offsetHeight > innerHeight * 0.7 ? "start" : "center" }));
  }

  mark(index) {
    this.selected = index;
    document.querySelector(".item.selected")?.classList.remove("selected");
    document.getElementById(`e${this.items[index]?.seq}`)?.classList.add("selected");
  }

  key(key) {
    const problems = this.items.filter((item) => ["repair", "rollback", "failure", "notRun", "request"].some((name) => LANDMARKS[name][1](item)));
    if (key === "j") this.select(this.selected + 1);
    else if (key === "k") this.select(Math.max(0, this.selected - 1));
    else if (key === "n" && problems.length) this.goToNext(problems);
    else if (key === "g") this.select(0);
    else if (key === "G") this.select(this.items.length - 1);
    else if (key === "o") this.toggle();
    else if (key === "p") location.hash = `#/run/${encodeURIComponent(this.runId)}/prompts`;
    else return false;
    return true;
  }

  toggle() {
    const details = [...document.querySelectorAll(".item.selected details, .item.selected .more")];
    const open = details.some((each) => each.tagName === "DETAILS" ? !each.open : each.getAttribute("aria-expanded") === "false");
    for (const each of details) {
      if (each.tagName === "DETAILS") each.open = open;
      else if ((each.getAttribute("aria-expanded") === "true") !== open) each.click();
    }
  }

  close() {
    this.closed = true;
    clearTimeout(this.looking);
    this.stopFollowing();
    this.list.close();
  }
}

function holds(item, seq) {
  const parts = [item.reply, item.accepted, item.rolledBack, ...(item.repairs ?? [])];
  for (const extra of item.extras ?? []) parts.push(extra.request, extra.reply);
  for (const call of item.calls ?? []) parts.push(call.started, call.finished, call.decision, call.decided, call.flow);
  return parts.some((part) => part?.seq === seq);
}
