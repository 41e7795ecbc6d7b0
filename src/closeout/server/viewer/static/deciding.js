// What a run waits for, and the forms that decide it.

import { h, replaceChildren } from "./dom.js";
import { moment, until } from "./format.js";
import { t } from "./language.js";
import { commandLine, longText } from "./parts.js";
import { acceptRule, beginLogin, listWaiting, resumeRun, sendDecision, suggestRule } from "./source.js";

/** The requests of a waiting run. `update` fetches them; a form that somebody fills in stays as it is. */
export class DecisionPanel {
  constructor(runId, onDecided) {
    this.runId = runId;
    this.onDecided = onDecided;
    this.forms = new Map(); // id and hash → element
    this.awaitsLogin = false; // somebody may sign in, which the run's record does not show
    this.title = h("h2");
    this.together = h("div.buttons");
    this.list = h("div.requests");
    this.end = h("div", { role: "status" });
    this.element = h("section.decisions", { hidden: true, "aria-label": t("Decisions") }, this.title, this.list, this.together, this.end);
  }

  /** Show what the run waits for now; nothing if it does not wait. */
  async update(record) {
    const isWaiting = record.status === "waiting";
    this.record = record;
    this.element.hidden = !isWaiting;
    if (!isWaiting) return this.show({ waiting: [], continues: true });
    if (!this.forms.size) replaceChildren(this.title, t("This run waits"));
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
    this.awaitsLogin = waiting.some((each) => each.kind === "login" && !each.signed_in);
    const open = waiting.filter(isDecided).length;
    const title = open > 1 ? t("This run waits for {n} decisions", { n: open }) : open ? t("This run waits for a decision") : t("This run waits");
    replaceChildren(this.title, waiting.length ? title : t("Everything is decided"));
    const calls = waiting.filter((each) => each.kind === "approval");
    replaceChildren(this.together, calls.length < 2 ? null : [
      button(t("Approve all {n}", { n: calls.length }), () => this.decideAll(calls, { verdict: "approve" })),
      button(t("Deny all {n}", { n: calls.length }), () => this.decideAll(calls, { verdict: "deny" }))]);
    const isOver = waiting.every((each) => each.signed_in);
    replaceChildren(this.end, !isOver ? null : continues ? h("p.line.good", null, t("The run continues.")) : this.howToContinue());
  }

  /** Decide on the calls that are shown, as they are shown. */
  async decideAll(calls, decision) {
    try {
      for (const { id, hash } of calls) this.show(await sendDecision(this.runId, { id, hash, ...decision }));
      this.onDecided();
    } catch (error) {
      replaceChildren(this.end, h("p.line.error", { role: "alert" }, error.message));
    }
  }

  howToContinue() {
    const command = `closeout resume ${/^[\w.-]+$/.test(this.runId) ? this.runId : `'${this.runId.replaceAll("'", "'\\''")}'`}`;
    return h("div.line.warning", null,
      h("p", null, t("The decisions are recorded. This viewer does not have the run's agent. To continue the run:")),
      commandLine(command),
      h("p.quiet", null, t("A run that was started in Python is continued there: {code}", { code: `await agent.resume(${JSON.stringify(this.runId)})` })));
  }

  form(request) {
    if (request.kind === "login") return awaitedLogin(request, this.runId);
    if (!isDecided(request)) return this.awaitedTime(request);
    const isQuestion = request.kind === "question";
    const problem = h("p.line.error", { role: "alert", hidden: true });
    const fields = h("div.decide");
    const element = h("article.request", { "data-id": request.id },
      h("header", null,
        h("b", null, isQuestion ? t("Question") : t("Approval")),
        h("span.tool-name", { dir: "auto" }, revealed(request.tool)), h("span.quiet", { dir: "auto" }, request.id),
        h("code.digest", { title: `SHA-256 ${request.hash}` }, request.hash.slice(0, 12))),
      h("p.quiet", { dir: "auto" }, revealed(this.asker(request))),
      isQuestion ? longText(request.question, { tag: "div.says", marks: revealed }) : [
        request.reason ? h("p.quiet", { dir: "auto" }, revealed(request.reason)) : null,
        exactArguments(request)],
      request.expires && request.default !== null
        ? h("p.quiet", { dir: "auto" }, t("If nobody answers until {time}, the answer is: {text}", { time: moment(request.expires), text: request.default })) : null,
      fields, problem);
    const send = async (decision) => {
      const controls = element.querySelectorAll("button, input, textarea, select");
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
      button(t("Approve"), () => send({ verdict: "approve" })), button(t("Edit arguments"), edit), button(t("Deny"), deny)));
    const edit = () => {
      const text = h("textarea", { rows: Math.min(24, request.json.split("\n").length + 1), spellcheck: "false", "aria-label": t("Arguments as JSON") });
      text.value = request.json;
      open(fields, text, h("div.buttons", null,
        button(t("Approve with these arguments"), () => send({ verdict: "approve", arguments: text.value || "{" })), button(t("Cancel"), choices)));
    };
    const deny = () => {
      const text = h("input", { type: "text", "aria-label": t("Reason"), placeholder: t("Why not? The model reads it.") });
      open(fields, text, h("div.buttons", null, button(t("Deny"), () => send({ verdict: "deny", text: text.value }), "danger"), button(t("Cancel"), choices)));
    };
    choices();
    if (!isQuestion) this.offerRule(request, element, send);
    return element;
  }

  /** Beside a question that people have always answered alike: the rule that would answer it from now on. */
  async offerRule({ id }, element, send) {
    const found = await suggestRule(this.runId, id).catch(() => null);
    if (!found) return;
    const problem = h("p.line.error", { role: "alert", hidden: true });
    const accept = button(t("Approve, and from now on by this rule"), async () => {
      accept.disabled = true;
      try {
        await acceptRule(this.runId, id, found.rule);
        await send({ verdict: "approve" });
      } catch (error) {
        problem.hidden = false;
        replaceChildren(problem, error.message);
        accept.disabled = false;
      }
    });
    element.append(h("details.from-now-on", null, h("summary", null, t("And from now on …")),
      h("p.quiet", null, t("People have approved {n} calls that this rule fits, and denied none of them. It approves the next ones without a question. A denial ends it.", { n: found.approved })),
      longText(found.rule, { marks: revealed }),
      found.file
        ? [h("p.quiet", { dir: "auto" }, t("It becomes a line of {file}.", { file: found.file })), h("div.buttons", null, accept), problem]
        : h("p.quiet", null, t("To use it, add it to tools.approved in the settings of the agent."))));
  }

  /** Who asks, and for whom: the agent of the run, or the sub-agent that the id of the request names. */
  asker({ id }) {
    const { agent, users } = this.record;
    const path = id.split("/").slice(0, -1).map((part) => part.slice(part.indexOf(":") + 1));
    const name = [agent || t("the agent"), ...path].join(" → ");
    return users.length ? t("{name} asks, for {user}", { name, user: users.join(", ") }) : t("{name} asks", { name });
  }

  /** A time or a signal. A wait for a model's server may be ended by a person. */
  awaitedTime(request) {
    const element = awaitedTime(request);
    if (!request.may_end_early) return element;
    const problem = h("p.line.error", { role: "alert", hidden: true });
    const now = button(t("Try now"), async () => {
      now.disabled = true;
      try {
        this.show({ waiting: [], continues: await resumeRun(this.runId, request.id) });
        this.onDecided();
      } catch (error) {
        problem.hidden = false;
        replaceChildren(problem, error.message);
        now.disabled = false;
      }
    }, "primary");
    element.append(h("div.buttons", null, now), problem);
    return element;
  }
}

/** Whether a person decides it. A time or a signal is only shown. */
function isDecided(request) {
  return request.kind === "approval" || request.kind === "question";
}

function awaitedTime(request) {
  const isSignal = request.kind === "signal";
  const time = request.expires === null ? null : `${moment(request.expires)} (${until(request.expires)})`;
  const text = isSignal
    ? [request.signals.length > 1 ? t("Waits for the first of the signals {names}.", { names: request.signals.join(", ") }) : t("Waits for the signal {name}.", { name: request.signals[0] }), time && t("At the latest until {time}.", { time })].filter(Boolean).join(" ")
    : t("Waits until {time}.", { time });
  return h("article.request", { "data-id": request.id },
    h("header", null, h("b", null, isSignal ? t("Signal") : t("Timer")),
      request.tool ? [h("span.tool-name", { dir: "auto" }, revealed(request.tool)), h("span.quiet", { dir: "auto" }, request.id)] : null),
    h("p.awaited", { dir: "auto" }, revealed(text)),
    request.reason ? h("p.quiet", { dir: "auto" }, revealed(request.reason)) : null);
}

/** A login that a person must make at the server. Its page is a link: nothing is opened by itself. */
function awaitedLogin(request, runId) {
  const command = `closeout mcp login ${shellWord(request.url)}${request.scope ? ` --scope ${shellWord(request.scope)}` : ""}`;
  const problem = h("p.line.error", { role: "alert", hidden: !request.problem }, revealed(request.problem));
  const next = h("div.decide");
  const begin = button(t("Sign in"), async () => {
    begin.disabled = true;
    problem.hidden = true;
    try {
      const page = await beginLogin(runId, request.id);
      replaceChildren(next, page ? outsideLink(page, "Sign in at {host}") : h("p.line.good", null, t("Signed in.")));
    } catch (error) {
      problem.hidden = false;
      replaceChildren(problem, revealed(error.message));
    }
    begin.disabled = false;
  }, "primary");
  return h("article.request", { "data-id": request.id },
    h("header", null, h("b", null, t("Login")), h("span.tool-name", { dir: "auto" }, revealed(request.tool)), h("span.quiet", { dir: "auto" }, request.id)),
    h("p", { dir: "auto" }, t("This MCP server wants you to sign in:"), " ", h("code", null, revealed(request.url))),
    request.scope ? h("p.quiet", { dir: "auto" }, revealed(t("The login must have these rights: {scope}", { scope: request.scope }))) : null,
    request.signed_in
      ? h("p.line.good", null, t("Signed in."))
      : [h("div.buttons", null, begin), next, problem,
        h("p.quiet", null, t("Or in a terminal:")), commandLine(command, revealed(command))]);
}

function shellWord(text) {
  return /^[\w.:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** A link out of the viewer that names its host, whatever the address looks like; the address as text if it is no link. */
export function outsideLink(address, label) {
  const url = URL.canParse(address) ? new URL(address) : null;
  if (!url || !/^https?:$/.test(url.protocol)) return h("code", null, revealed(address));
  const link = h("a.button.outside", { target: "_blank", rel: "noopener noreferrer", dir: "auto" }, t(label, { host: url.host }), " ↗");
  link.setAttribute("href", url.href);
  return link;
}

function keyOf(request) {
  return `${request.id} ${request.hash} ${request.signed_in} ${request.problem}`;
}

function answerForm(request, send, deny) {
  if (request.fields.length) return formOf(request, send, deny);
  if (request.url) {
    return [
      h("div.buttons", null, outsideLink(request.url, "Open {host}")),
      h("div.buttons", null, button(t("Done"), () => send({ verdict: "answer", text: "done" }), "primary"), button(t("Deny"), deny)),
    ];
  }
  const text = h("textarea", { rows: 2, "aria-label": t("Answer"), placeholder: request.options.length ? t("Another answer") : t("Answer") });
  return [
    request.options.length
      ? h("div.buttons.options", null, request.options.map((option) =>
          h("button.button.option", { type: "button", dir: "auto", click: () => send({ verdict: "answer", text: option }) }, revealed(option))))
      : null,
    text,
    h("div.buttons", null, button(t("Send the answer"), () => send({ verdict: "answer", text: text.value }), "primary"), button(t("Deny"), deny)),
  ];
}

/** The form of a server's question. Its answer is JSON that is written here, so that numbers keep their digits. */
function formOf(request, send, deny) {
  const inputs = request.fields.map((field, number) => [field, inputOf(field, `${request.id}-${number}`)]);
  const submit = (event) => {
    event.preventDefault();
    const values = inputs.map(([field, input]) => [field.name, input.read()]).filter(([, value]) => value !== undefined);
    send({ verdict: "answer", text: `{${values.map(([name, value]) => `${JSON.stringify(name)}: ${value}`).join(", ")}}` });
  };
  return h("form.form", { submit }, inputs.map(([, input]) => input.element),
    h("div.buttons", null, h("button.button.primary", { type: "submit" }, t("Send the answer")), button(t("Deny"), deny)));
}

const INPUT_TYPES = { email: "email", uri: "url", date: "date" };
const JSON_NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

/** An input for a field: {element, read}. `read` returns the value as JSON, undefined if it is left out. */
function inputOf(field, id) {
  const hint = [field.description, limits(field)].filter(Boolean).join(" · ");
  const name = [revealed(field.title), field.required ? h("span.required", { title: t("required") }, " *") : null];
  const note = hint ? h("span.quiet.field-hint", { id: `${id}-hint`, dir: "auto" }, revealed(hint)) : null;
  const common = { id, "aria-describedby": note && `${id}-hint` };
  const labelled = (input) => h("div.field", null, h("label", { for: id, dir: "auto" }, name), input, note);
  if (field.type === "boolean") {
    const input = h("input", { type: "checkbox", ...common, checked: field.default === true });
    return { element: h("div.field.check", null, h("label", { for: id, dir: "auto" }, input, " ", name), note), read: () => String(input.checked) };
  }
  if (field.type === "array") {
    const boxes = field.choices.map(([value, title]) => [value, title, h("input", { type: "checkbox", checked: Array.isArray(field.default) && field.default.includes(value) })]);
    return {
      element: h("fieldset.field", { "aria-describedby": common["aria-describedby"] }, h("legend", { dir: "auto" }, name),
        boxes.map(([, title, box]) => h("label.check", { dir: "auto" }, box, " ", revealed(title))), note),
      read: () => JSON.stringify(boxes.filter(([, , box]) => box.checked).map(([value]) => value)),
    };
  }
  if (field.choices.length) {
    const options = field.choices.map(([value, title]) => h("option", { value, selected: value === field.default }, revealedText(title)));
    const input = h("select", { ...common, required: field.required }, h("option", { value: "", selected: field.default === null }, t("(none)")), options);
    return { element: labelled(input), read: () => (input.selectedIndex ? JSON.stringify(input.value) : leftOut(field)) };
  }
  const isNumber = field.type !== "string";
  const input = h("input", {
    type: isNumber ? "number" : INPUT_TYPES[field.format] ?? "text", ...common, required: field.required && (isNumber || Number(field.minLength) > 0),
    step: isNumber ? (field.type === "integer" ? 1 : "any") : null, min: field.minimum, max: field.maximum,
    minlength: field.minLength, maxlength: field.maxLength, placeholder: field.format === "date-time" ? "2026-12-01T08:00:00Z" : null, dir: "auto", autocomplete: "off",
  });
  input.value = field.default ?? "";
  if (isNumber) return { element: labelled(input), read: () => (input.value === "" ? leftOut(field) : JSON_NUMBER.test(input.value) ? input.value : String(Number(input.value))) };
  return { element: labelled(input), read: () => (input.value === "" && !field.required ? leftOut(field) : JSON.stringify(input.value)) };
}

/** null for a field that has a default, which would fill it. */
function leftOut(field) {
  return field.default === null ? undefined : "null";
}

function limits(field) {
  if (field.minimum !== null && field.maximum !== null) return t("{least} to {most}", { least: field.minimum, most: field.maximum });
  if (field.minimum !== null) return t("at least {n}", { n: field.minimum });
  return field.maximum !== null ? t("at most {n}", { n: field.maximum }) : "";
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
  return text.split(UNSEEN).map((part, at) => (at % 2 ? h("mark.code-point", null, codeOf(part)) : part));
}

/** The same where only text can be, as in a list to choose from. */
function revealedText(text) {
  return text.split(UNSEEN).map((part, at) => (at % 2 ? `<${codeOf(part)}>` : part)).join("");
}

const UNSEEN = /((?![ \n\t])[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u{2800}\u{16FE4}\u{1D159}])/u;

function codeOf(character) {
  return `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}
