// What a run waits for, and the forms that decide it.

import { h, replaceChildren } from "./dom.js";
import { moment } from "./format.js";
import { t } from "./language.js";
import { copyFrom, longText } from "./parts.js";
import { listWaiting, sendDecision } from "./source.js";

/** The requests of a waiting run. `update` fetches them; a form that somebody fills in stays as it is. */
export class DecisionPanel {
  constructor(runId, onDecided) {
    this.runId = runId;
    this.onDecided = onDecided;
    this.forms = new Map(); // id and hash → element
    this.title = h("h2");
    this.list = h("div.requests");
    this.end = h("div", { role: "status" });
    this.element = h("section.decisions", { hidden: true, "aria-label": t("Decisions") }, this.title, this.list, this.end);
  }

  /** Show what the run waits for now; nothing if it does not wait. */
  async update(isWaiting) {
    this.element.hidden = !isWaiting;
    if (!isWaiting) return this.show({ waiting: [], continues: true });
    try {
      this.show(await listWaiting(this.runId));
    } catch (error) {
      replaceChildren(this.end, h("p.line.error", { role: "alert" }, error.message));
    }
  }

  show({ waiting, continues }) {
    const keys = new Set(waiting.map(keyOf));
    for (const [key, form] of this.forms) {
      if (keys.has(key)) continue;
      form.remove();
      this.forms.delete(key);
    }
    for (const request of waiting) {
      if (this.forms.has(keyOf(request))) continue;
      const form = this.form(request);
      this.forms.set(keyOf(request), form);
      this.list.append(form);
    }
    const open = waiting.filter(isDecided).length;
    const title = open > 1 ? t("This run waits for {n} decisions", { n: open }) : open ? t("This run waits for a decision") : t("This run waits");
    replaceChildren(this.title, waiting.length ? title : t("Everything is decided"));
    replaceChildren(this.end, waiting.length ? null : continues ? h("p.line.good", null, t("The run continues.")) : this.howToContinue());
  }

  howToContinue() {
    const command = `closeout resume ${/^[\w.-]+$/.test(this.runId) ? this.runId : `'${this.runId.replaceAll("'", "'\\''")}'`}`;
    const copy = h("button", { type: "button", click: () => copyFrom(copy, command) }, t("Copy"));
    return h("div.line.warning", null,
      h("p", null, t("The decisions are recorded. This viewer does not have the run's agent. To continue the run:")),
      h("p.command", null, h("code", null, command), copy),
      h("p.quiet", null, t("A run that was started in Python is continued there: {code}", { code: `await agent.resume(${JSON.stringify(this.runId)})` })));
  }

  form(request) {
    if (!isDecided(request)) return awaitedTime(request);
    const isQuestion = request.kind === "question";
    const problem = h("p.line.error", { role: "alert", hidden: true });
    const fields = h("div.decide");
    const element = h("article.request", { "data-id": request.id },
      h("header", null,
        h("b", null, isQuestion ? t("Question") : t("Approval")),
        h("span.tool-name", { dir: "auto" }, revealed(request.tool)), h("span.quiet", { dir: "auto" }, request.id),
        h("code.digest", { title: `SHA-256 ${request.hash}` }, request.hash.slice(0, 12))),
      isQuestion ? longText(request.question, { tag: "div.says", marks: revealed }) : [
        request.reason ? h("p.quiet", { dir: "auto" }, revealed(request.reason)) : null,
        exactArguments(request)],
      request.expires && request.default !== null
        ? h("p.quiet", { dir: "auto" }, t("If nobody answers until {time}, the answer is: {text}", { time: moment(request.expires), text: request.default })) : null,
      fields, problem);
    const send = async (decision) => {
      const controls = element.querySelectorAll("button, input, textarea");
      for (const each of controls) each.disabled = true;
      try {
        const found = await sendDecision(this.runId, { id: request.id, hash: request.hash, ...decision });
        this.show(found);
        this.onDecided();
      } catch (error) {
        problem.hidden = false;
        replaceChildren(problem, error.message);
        for (const each of controls) each.disabled = false;
      }
    };
    const choices = () => replaceChildren(fields, isQuestion ? answerForm(request, send, deny) : h("div.buttons", null,
      button(t("Approve"), () => send({ verdict: "approve" }), "primary"), button(t("Edit arguments"), edit), button(t("Deny"), deny)));
    const edit = () => {
      const text = h("textarea", { rows: Math.min(24, request.json.split("\n").length + 1), spellcheck: "false", "aria-label": t("Arguments as JSON") });
      text.value = request.json;
      open(fields, text, h("div.buttons", null,
        button(t("Approve with these arguments"), () => send({ verdict: "approve", arguments: text.value || "{" }), "primary"), button(t("Cancel"), choices)));
    };
    const deny = () => {
      const text = h("input", { type: "text", "aria-label": t("Reason"), placeholder: t("Why not? The model reads it.") });
      open(fields, text, h("div.buttons", null, button(t("Deny"), () => send({ verdict: "deny", text: text.value }), "danger"), button(t("Cancel"), choices)));
    };
    choices();
    return element;
  }
}

/** Whether a person decides it. A time or a signal is only shown. */
function isDecided(request) {
  return request.kind === "approval" || request.kind === "question";
}

function awaitedTime(request) {
  const isSignal = request.kind === "signal";
  const until = request.expires === null ? null : moment(request.expires);
  const text = isSignal
    ? [t("Waits for the signal {name}.", { name: request.signal }), until && t("At the latest until {time}.", { time: until })].filter(Boolean).join(" ")
    : t("Waits until {time}.", { time: until });
  return h("article.request", { "data-id": request.id },
    h("header", null, h("b", null, isSignal ? t("Signal") : t("Timer")),
      h("span.tool-name", { dir: "auto" }, revealed(request.tool)), h("span.quiet", { dir: "auto" }, request.id)),
    h("p", { dir: "auto" }, revealed(text)));
}

function keyOf(request) {
  return `${request.id} ${request.hash}`;
}

function answerForm(request, send, deny) {
  const text = h("textarea", { rows: request.form ? Math.min(24, request.form.split("\n").length + 1) : 2, "aria-label": t("Answer"), placeholder: request.options.length ? t("Another answer") : t("Answer") });
  text.value = request.form;
  return [
    request.options.length
      ? h("div.buttons.options", null, request.options.map((option) =>
          h("button.button.option", { type: "button", dir: "auto", click: () => send({ verdict: "answer", text: option }) }, revealed(option))))
      : null,
    text,
    h("div.buttons", null, button(t("Send the answer"), () => send({ verdict: "answer", text: text.value }), "primary"), button(t("Deny"), deny)),
  ];
}

function open(fields, input, buttons) {
  replaceChildren(fields, input, buttons);
  input.focus();
}

function button(label, click, kind = "") {
  return h("button.button", { type: "button", class: kind, click }, label);
}

/** The arguments as they are called with: a text bare, another value as JSON. */
function exactArguments(request) {
  if (!request.arguments.length) return h("span.quiet", null, t("no arguments"));
  return h("dl.arguments", null, request.arguments.map(([name, value]) => [h("dt", { dir: "auto" }, revealed(name)), h("dd", null, longText(value, { marks: revealed }))]));
}

/**
 * A text in which characters that are not seen, or that reorder it, are marked codes: what is approved must be seen. The
 * three that are named have no such property in Unicode, but look empty (see closeout/visible.py).
 */
function revealed(text) {
  return text.split(/((?![ \n\t])[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u{2800}\u{16FE4}\u{1D159}])/u).map((part, at) =>
    at % 2 ? h("mark.code-point", null, `U+${part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`) : part);
}
