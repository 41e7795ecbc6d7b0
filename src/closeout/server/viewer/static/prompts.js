// The requests of a run as the model saw them, and what changed from one to the next.

import { lineDifference } from "./diff.js";
import { h, replaceChildren } from "./dom.js";
import { count } from "./format.js";
import { t } from "./language.js";
import { LongList } from "./list.js";
import { fold, longText, plainWord, pretty, usageLine } from "./parts.js";
import { listRequests, textOf } from "./source.js";
import { loadStory, requestsOf } from "./story.js";

const MOST_LINES = 400; // of the difference between two texts

/** The requests of one agent, each with the one before it. Messages are put together only when they are asked for. */
export class RequestLog {
  constructor() {
    this.requests = [];
    this.places = new Map(); // event number → place in `requests`
    this.latest = new Map(); // agent → place of its last request
  }

  add(event) {
    const before = this.latest.get(event.agent) ?? -1;
    const previous = this.requests[before];
    const tools = event.tools || previous?.tools || "";
    this.latest.set(event.agent, this.requests.length);
    this.places.set(event.seq, this.requests.length);
    this.requests.push({ event, before, tools, isText: event.added.length > 0 && "prompt" in event.added[0] });
  }

  /** Whether the record holds the messages: older versions did not keep them. */
  isRecorded(place) {
    return this.requests[place].event.added.length > 0 || this.requests[place].event.messages === 0;
  }

  messages(place) {
    const parts = [];
    for (let end = Infinity; place >= 0 && end > 0; place = this.requests[place].before) {
      const { kept, added } = this.requests[place].event;
      if (end > kept) parts.unshift(added.slice(0, end - kept));
      end = Math.min(end, kept);
    }
    return parts.flat();
  }

  text(place) {
    let text = "";
    for (let end = Infinity; place >= 0 && end > 0; place = this.requests[place].before) {
      const { shared, added } = this.requests[place].event;
      if (end > shared) text = (added[0]?.prompt ?? "").slice(0, end - shared) + text;
      end = Math.min(end, shared);
    }
    return text;
  }
}

export class PromptsPage {
  constructor(main, route) {
    this.runId = route.id;
    this.target = route.event;
    this.main = main;
    this.log = new RequestLog();
    this.asked = new Map(); // event number of a request → its outcome and what changed before it
    this.selected = -1;
    this.whole = false; // show the whole prompt instead of the difference
    this.closed = false;
    this.list = new LongList((entry) => this.row(entry));
    this.detail = h("div.prompt-detail", { tabindex: "-1" });
    this.note = h("p.foot", { role: "status" });
  }

  async open() {
    const back = h("a", { href: `#/run/${encodeURIComponent(this.runId)}` }, `← ${this.runId}`);
    replaceChildren(this.main, h("div.prompts-page", null,
      h("aside.prompt-list", null, h("p", null, back), this.list.element, this.note), this.detail));
    // The events say why a prefix broke.
    const { story } = await loadStory(this.runId, () => !this.closed);
    for (const asked of story.items.flatMap(requestsOf)) this.asked.set(asked.request.seq, asked);
    for await (const requests of listRequests(this.runId)) {
      if (this.closed) return;
      for (const event of requests) this.log.add(event);
      this.list.update(this.log.requests);
      this.list.fillFirst();
      if (this.selected < 0) this.selectFirst();
      replaceChildren(this.note, `${count(this.log.requests.length)} ${t("requests")}`);
    }
    if (this.closed) return;
    if (this.target !== null && !this.reached) this.selectFirst();
    if (!this.log.requests.length) replaceChildren(this.detail, h("p.quiet", null, t("This run sent no requests.")));
  }

  selectFirst() {
    const place = this.target === null ? 0 : this.log.places.get(this.target);
    this.reached = place !== undefined;
    this.select(place ?? 0);
  }

  row(entry) {
    const place = this.log.places.get(entry.event.seq);
    const { event } = entry;
    const { isBroken, isFirst } = this.change(place);
    return h("button.prompt-row", { type: "button", class: place === this.selected ? "selected" : "", click: () => this.select(place), "data-place": place },
      h("b", null, `${event.call + 1}`),
      h("span", { dir: "auto" }, event.agent === "main" ? "" : `${event.agent.split("/").at(-1)} · `,
        event.purpose === "act" ? `${t("Turn")} ${event.turn + 1}` : t(event.purpose)),
      h("span.quiet", null, `${count(event.size)} ${t("characters")}`),
      isFirst ? h("span.flag", null, t("first")) : isBroken ? h("span.flag.flag-rollback", null, t("prefix broke")) : h("span.flag.flag-good", null, t("extends")));
  }

  /** How a request differs from the agent's previous one. */
  change(place) {
    const { event, before, isText } = this.log.requests[place];
    if (before < 0) return { isFirst: true, isBroken: false };
    const previous = this.log.requests[before].event;
    const isBroken = isText ? event.shared < previous.size : event.kept < previous.messages;
    return { isFirst: false, isBroken, previous };
  }

  select(place) {
    if (place < 0 || place >= this.log.requests.length) return;
    this.selected = place;
    const { event } = this.log.requests[place];
    this.list.element.querySelector(".selected")?.classList.remove("selected");
    const row = this.list.reveal(place);
    row?.classList.add("selected");
    row?.scrollIntoView({ block: "nearest" });
    history.replaceState(null, "", `#/run/${encodeURIComponent(this.runId)}/prompts?e=${event.seq}`);
    this.draw();
  }

  draw() {
    const place = this.selected;
    const { event, tools } = this.log.requests[place];
    const asked = this.asked.get(event.seq);
    const toggle = (whole, label) =>
      h("button", { type: "button", "aria-pressed": String(this.whole === whole), click: () => { this.whole = whole; this.draw(); } }, label);
    replaceChildren(
      this.detail,
      h("header.prompt-head", null,
        h("h1", null, `${t("Request")} ${event.call + 1}`, event.agent === "main" ? "" : ` · ${event.agent}`),
        h("p.quiet", null, [event.purpose, event.temperature != null ? `temperature ${event.temperature}` : "",
          ...Object.entries(event.options ?? {}).map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`), asked ? usageLine(asked) : ""].filter(Boolean).join(" · ")),
        this.reason(place, asked),
        h("div.toggle", null, toggle(false, t("Difference to the previous request")), toggle(true, t("Whole prompt"))),
        h("a", { href: `#/run/${encodeURIComponent(this.runId)}?e=${event.seq}` }, t("Show the turn"))),
      tools ? fold(t("Tools ({n})", { n: parse(tools).length }), () => parse(tools).map(toolElement)) : null,
      this.log.isRecorded(place) ? this.content(place) : h("p.quiet", null, t("The prompts of this run were not recorded.")));
  }

  content(place) {
    const { isText, before, event } = this.log.requests[place];
    if (isText) {
      const text = this.log.text(place);
      if (this.whole || before < 0) return longText(text);
      const start = Math.max(0, event.shared - 200);
      return [start ? h("p.same-note", null, t("{n} characters as before", { n: count(start) })) : null,
        lineDifference(lines(this.log.text(before).slice(start)), lines(text.slice(start)))];
    }
    const messages = this.log.messages(place);
    if (this.whole || before < 0) return messages.map((message, at) => messageElement(message, at));
    const removed = this.log.messages(before).slice(event.kept);
    return [
      event.kept ? h("p.same-note", null, t("{n} messages as before", { n: count(event.kept) })) : null,
      removed.map((message, at) => messageElement(message, event.kept + at, "removed")),
      messages.slice(event.kept).map((message, at) => messageElement(message, event.kept + at, "added")),
    ];
  }

  /** Why the request does not simply extend the one before. */
  reason(place, asked) {
    const { event, before, isText } = this.log.requests[place];
    const { isFirst, isBroken, previous } = this.change(place);
    if (isFirst) return h("p.line.good", null, t("The agent's first request."));
    if (!isBroken) return h("p.line.good", null, t("It extends the previous request: the prefix can come from the cache."));
    const reasons = (asked?.causes ?? []).map((cause) => CAUSES[cause.type]?.(cause)).filter(Boolean);
    if (event.tools && this.log.requests[before].tools) reasons.push(t("the tools changed"));
    if (previous.note) reasons.push(t("the hint of the previous request was taken out"));
    if (event.purpose !== "act") reasons.push(t("it is not for a turn but for: {purpose}", { purpose: t(event.purpose) }));
    const where = isText ? `${count(event.shared)} / ${count(previous.size)} ${t("characters")}` : t("message {n} of {m}", { n: event.kept + 1, m: previous.messages });
    return h("p.line.warning", null, h("b", null, `${t("The cached prefix broke")} (${where})`), " ", reasons.join("; ") || t("the record does not say why"));
  }

  key(key) {
    if (key === "j") this.select(this.selected + 1);
    else if (key === "k") this.select(this.selected - 1);
    else if (key === "d") {
      this.whole = !this.whole;
      this.draw();
    } else return false;
    return true;
  }

  close() {
    this.closed = true;
    this.list.close();
  }
}

const CAUSES = {
  TurnRolledBack: (event) => t("a reply was rolled back ({reason})", { reason: textOf(event.reason) }),
  Evicted: (event) => t("{n} results were evicted ({reason})", { n: event.results, reason: textOf(event.reason) }),
  Compacted: () => t("earlier turns were replaced by a summary"),
  AttemptStarted: (event) => (event.attempt ? t("attempt {n} began", { n: event.attempt + 1 }) : ""),
  ToolsChanged: () => t("the tools changed"),
  Noted: (event) => textOf(event.message),
};

function lines(text) {
  const all = text.split("\n");
  return all.length > MOST_LINES ? `${all.slice(0, MOST_LINES).join("\n")}\n…` : text;
}

function parse(text) {
  try {
    return JSON.parse(textOf(text));
  } catch {
    return [];
  }
}

function toolElement(tool) {
  return h("section.tool", null, h("b", { dir: "auto" }, String(tool.name)), longText(String(tool.description ?? "")),
    fold(t("Parameters"), () => longText(pretty(tool.parameters))));
}

function messageElement(message, at, state = "") {
  const content = typeof message.content === "string" ? message.content
    : Array.isArray(message.content) ? message.content.map((part) => part?.text ?? pretty(part)).join("\n") : "";
  return h("section.message", { class: `role-${plainWord(message.role)} ${state}` },
    h("header", null, h("b", null, String(message.role)), h("span.quiet", null, `${at + 1}`),
      message.tool_call_id && h("code", null, String(message.tool_call_id)), state && h("span.flag", null, t(state))),
    message.reasoning_content ? fold(t("Reasoning"), () => longText(String(message.reasoning_content))) : null,
    content ? longText(content) : null,
    (message.tool_calls ?? []).map((call) =>
      h("div.message-call", null, h("span.tool-name", { dir: "auto" }, String(call.function?.name)), longText(pretty(call.function?.arguments)))));
}
