// How each item of a run's story is shown.

import { beforeAndAfter } from "./diff.js";
import { h, marked, occurrences, replaceChildren } from "./dom.js";
import { count, duration, moment } from "./format.js";
import { t } from "./language.js";
import { argumentList, fieldOf, fold, longText, plainWord, pretty, resultText, tokenBar, usageLine } from "./parts.js";
import { cutLength, textOf, undoCall } from "./source.js";
import { usageOf } from "./story.js";

/** The element of an item. `page` has runId, widest (tokens), and link (event number → address). */
export function itemElement(item, page) {
  const [name, body] = content(item, page);
  const element = h(
    `article.item.${item.kind}`,
    { id: `e${item.seq}`, tabindex: "-1", "aria-label": name },
    h("header.item-head", null, h("span.item-name", null, name), agentName(item), headExtras(item, page)),
    body,
  );
  if (item.rolledBack) element.classList.add("rolled-back");
  if (item.kind === "answer" && item.event.answer == null) element.classList.add("without");
  element.style.setProperty("--depth", Math.min(item.depth, 6));
  element.dataset.depth = item.depth;
  return element;
}

/** The name and the body of an item. An event with values that nobody expects is shown as it is. */
function content(item, page) {
  try {
    return (ITEMS[item.kind] ?? other)(item, page);
  } catch (error) {
    const [name, body] = other(item);
    return [name, [line("error", t("This event has unexpected values."), error.message), body]];
  }
}

function agentName(item) {
  return item.depth ? h("span.agent-path", { dir: "auto", title: item.agent }, item.agent.split("/").at(-1)) : null;
}

function headExtras(item, page) {
  const when = h("time", { title: moment(item.time) }, page.clock(item.time));
  const link = h("a.anchor", { href: page.link(item.seq), title: t("Link to this event") }, `#${item.seq}`);
  if (item.kind !== "turn") return h("span.item-extras", null, when, link);
  const prompt = item.request && h("a", { href: page.prompt(item) }, t("prompt"));
  return h(
    "span.item-extras", null,
    h("span.usage", null, usageLine(item)), item.request && tokenBar(usageOf(item), page.widest), prompt, when, link,
  );
}

// ------------------------------------------------------------------------------------------------ a turn

const PURPOSES = {
  close: "Closing",
  experience: "Failure account",
  compact: "Summary request",
};

function turnName(item) {
  if (item.purpose !== "act") return t(PURPOSES[item.purpose] ?? item.purpose);
  if (item.agent.endsWith(":program")) return t("Calls of the program");
  const attempt = item.request?.attempt ? ` · ${t("attempt")} ${item.request.attempt + 1}` : "";
  return `${t("Turn")} ${item.number + 1}${attempt}`;
}

function turn(item, page) {
  const { reply, accepted, rolledBack, failure } = item;
  const body = [];
  if (item.request?.note) body.push(labelled(t("Hint to the model"), longText(item.request.note), "hint"));
  for (const retry of item.retries) {
    body.push(line("warning", t("Sent again after {n} s", { n: retry.wait.toFixed(1) }), textOf(retry.reason)));
  }
  if (failure) body.push(line("error", `${t("Request failed")}: ${textOf(failure.kind)}`, textOf(failure.error)));
  const reasoning = accepted?.reasoning || reply?.reasoning;
  if (textOf(reasoning)) {
    const event = textOf(accepted?.reasoning) ? accepted : reply;
    body.push(
      fold(t("Reasoning ({n} characters)", { n: count(cutLength(reasoning) || reasoning.length) }), () =>
        longText(reasoning, { whole: fieldOf(page.runId, event.seq, (whole) => whole.reasoning) }),
      ),
    );
  }
  body.push(...replyText(item, page));
  for (const extra of item.extras) body.push(extraElement(extra, page));
  for (const repair of item.repairs) body.push(repairElement(repair, item));
  for (const call of item.calls) body.push(callElement(call, item, page));
  for (const seen of item.answers) body.push(line("good", t("Answer seen on the way"), textOf(seen.answer)));
  if (rolledBack) body.push(rollback(rolledBack));
  if (textOf(item.partial)) body.push(longText(item.partial, { tag: "div.says" }));
  if (!reply && !failure && !page.isOver()) body.push(h("p.waiting", null, t("The model is writing …")));
  return [turnName(item), body];
}

/** A request that a strategy sent during the turn. */
function extraElement(extra, page) {
  const { request, reply, failure } = extra;
  return h(
    "section.extra", { id: `e${request.seq}` },
    h("header", null, h("b", { dir: "auto" }, textOf(request.purpose)), h("span.quiet", null, usageLine(extra)),
      h("a", { href: page.prompt(extra) }, t("prompt")), h("a.anchor", { href: page.link(request.seq) }, `#${request.seq}`)),
    failure && line("error", `${t("Request failed")}: ${textOf(failure.kind)}`, textOf(failure.error)),
    textOf(reply?.text) && fold(t("The reply as it was written"), () =>
      longText(reply.text, { whole: fieldOf(page.runId, reply.seq, (whole) => whole.text) })),
  );
}

function replyText(item, page) {
  const { reply, accepted } = item;
  const raw = textOf(reply?.text);
  const text = accepted ? textOf(accepted.text) : raw;
  const found = [];
  if (text) {
    const event = accepted ?? reply;
    found.push(longText(event.text, { tag: "div.says", whole: fieldOf(page.runId, event.seq, (whole) => whole.text) }));
  }
  if (raw && raw !== text) {
    found.push(
      fold(t("The reply as it was written"), () =>
        longText(reply.text, { whole: fieldOf(page.runId, reply.seq, (whole) => whole.text) }),
      ),
    );
  }
  if (reply && reply.finish_reason !== "stop" && reply.finish_reason !== "tool_calls") {
    found.push(line("warning", t("The reply ended early"), textOf(reply.finish_reason)));
  }
  return found;
}

const WAITS = { question: "waits for an answer", timer: "waits for a time", signal: "waits for a signal", login: "waits for a login" };
const ENDED = { approve: "Approved", deny: "Denied", answer: "Answered", time: "The time has come", signal: "Signal received", timeout: "The signal did not come in time", login: "Signed in" };
const REQUESTS = { question: "Question to a person", timer: "Waits for a time", signal: "Waits for a signal", login: "Waits for a login" };

/** Whether the model was told of a call that it was not run: denied, refused, or with wrong arguments. */
export function wasNotRun(call) {
  return Boolean(call.shown && !call.started && (!call.decided || call.decided.verdict === "deny"));
}

/** Whether a call has begun and has no outcome. If its run has ended, nobody knows whether it was done. */
export function wasCutOff(call) {
  return Boolean(call.started && !call.finished);
}

function callElement(call, item, page) {
  const { started, finished } = call;
  const waits = call.decision && !call.decided && !finished && !call.shown && page.mayContinue();
  const isQuestion = call.decision?.kind === "question";
  const state = call.passedOn ? "passed-on" : waits ? "waits" : !started ? "not-run" : !finished ? "running" : finished.ok ? "ok" : "failed";
  const label = { "passed-on": t("passed to the client"), waits: t(WAITS[call.decision?.kind] ?? "waits for approval"), "not-run": t(call.decided?.verdict === "deny" ? "denied" : "not run"), running: t(page.hasEnded() ? "no result" : "running …"), ok: "", failed: t("failed") }[state];
  const head = h(
    "header", null,
    h("span.tool-name", { dir: "auto" }, textOf(call.name) || "?"),
    call.handle && h("span.quiet", null, call.handle),
    label && h("span.state", null, label),
    finished?.ok && undoButton(call, item, page),
    finished && h("span.quiet", null, duration(finished.ms)),
    finished?.labels?.length > 0 && h("span.quiet", { dir: "auto", title: t("Labels of the result") }, finished.labels.map(textOf).join(", ")),
    started && h("a.anchor", { href: page.link(started.seq) }, `#${started.seq}`),
  );
  const given = started ? started.arguments : call.arguments;
  const whole = started ? fieldOf(page.runId, started.seq, (each) => pretty(each.arguments)) : null;
  const element = h(`section.call.${state}${wasNotRun(call) ? ".left-out" : ""}`, { id: started ? `e${started.seq}` : null }, head,
    (isQuestion && questionElement(given)) || argumentList(given, whole));
  for (const note of decisionNotes(call, waits)) element.append(note);
  if (finished || call.shown) element.append(resultElement(call, item, page));
  return element;
}

/** A button that undoes a call, if the server can; it asks once more before. */
function undoButton(call, item, page) {
  const name = [...item.agent.split("/").slice(1), call.handle].join("/");
  if (!(name in page.undoable)) return null;
  const place = h("span.undo");
  const button = (label, click, kind = "") => h("button.button", { type: "button", class: kind, click }, label);
  const draw = () => replaceChildren(place, page.undoable[name]
    ? h("span.state", null, t("undone"))
    : button(t("Undo"), () => replaceChildren(place, button(t("Undo this call"), undo, "danger"), button(t("Cancel"), draw))));
  const undo = async () => {
    try {
      const { undone, text } = await undoCall(page.runId, name);
      if (!undone) throw new Error(text);
      page.undoable[name] = true;
      draw();
    } catch (error) {
      replaceChildren(place, h("span.error-text", { role: "alert", dir: "auto" }, t("Not undone: {text}", { text: error.message })), button(t("Undo"), undo));
    }
  };
  draw();
  return place;
}

function decidedName({ verdict }) {
  return t(ENDED[verdict] ?? textOf(verdict));
}

/** What was decided about a call, and by whom. What the model reads of it is in the result. */
function decisionNotes({ decision, decided, flow, shown }, waits) {
  const notes = [];
  const note = (event, kind, text) => notes.push(h(`p.decision-note.${kind}`, { id: `e${event.seq}`, dir: "auto" }, text));
  if (flow) note(flow, flow.decision === "refuse" ? "refused" : "asked", [h("b", null, `${t("Flow rules")}: ${t(textOf(flow.decision))}`), ` ${textOf(flow.reason)} `, h("span.quiet", null, flow.labels.map(textOf).join(", "))]);
  if (decision && !decided && !waits) note(decision, "asked", t(REQUESTS[decision.kind] ?? "Approval needed"));
  if (decision && textOf(decision.reason) && textOf(decision.reason) !== textOf(flow?.reason)) note(decision, "asked", textOf(decision.reason));
  if (decided) {
    const by = textOf(decided.by) ? t("by {name}", { name: textOf(decided.by) }) : "";
    const text = textOf(decided.text);
    const said = ["deny", "answer"].includes(decided.verdict) && !textOf(shown?.text).includes(text) ? text : "";
    note(decided, decided.verdict === "deny" ? "refused" : "decided", [h("b", null, decidedName(decided)), ` ${by} ${said}`]);
    if (decided.arguments != null) notes.push(argumentList(decided.arguments, null));
  }
  return notes;
}

/** A question with its options; null if the arguments are not those of a question. */
function questionElement(given) {
  let asked = given;
  if (typeof given === "string") {
    try {
      asked = JSON.parse(given);
    } catch {
      return null;
    }
  }
  if (typeof asked?.question !== "string") return null;
  const options = Array.isArray(asked.options) ? asked.options : [];
  return h("div.question", null, longText(asked.question, { tag: "div.says" }),
    options.length ? h("ul.options", null, options.map((option) => h("li", { dir: "auto" }, textOf(option)))) : null);
}

function resultElement(call, item, page) {
  const { finished, shown } = call;
  const note = textOf(finished?.note);
  const result = h("div.result", { id: finished ? `e${finished.seq}` : null });
  if (finished && !finished.ok && note && !shown) result.append(h("p.error-text", { dir: "auto" }, note));
  if (shown) {
    const isShown = (returned) => returned.call === shown.call;
    const whole = fieldOf(page.runId, item.accepted?.seq, (each) => each.returns.find(isShown).text);
    result.append(resultText(shown.text, whole));
    if (shown.tokens) result.append(h("span.quiet.tokens", null, `${count(shown.tokens)} ${t(shown.tokens === 1 ? "token" : "tokens")}`));
  }
  if (finished && textOf(finished.record)) {
    const whole = fieldOf(page.runId, finished.seq, (each) => pretty(each.record));
    const record = () => longText(cutLength(finished.record) ? finished.record : pretty(finished.record), { whole });
    result.append(fold(t("The whole result"), record, { open: !shown && !note }));
  }
  return result;
}

function repairElement(repair, item) {
  const recorded = [textOf(repair.before), textOf(repair.after)];
  const where = textOf(repair.where);
  // Some repairs name only the place. Then the whole reply is shown as it was written, and as it was read.
  const isPart = recorded.every(Boolean) || where === "messages" || !item.reply;
  const [before, after] = isPart ? recorded : [written(item), read(item)];
  return h(
    "section.repair", { id: `e${repair.seq}` },
    h("header", null, h("b", null, t("Repaired")), h("code", { dir: "auto" }, textOf(repair.kind)),
      where && h("span.quiet", { dir: "auto" }, where)),
    beforeAndAfter(before, after),
  );
}

/** The calls of a reply as the model wrote them; its text if it has none. */
function written({ reply }) {
  return reply.tool_calls?.map((call) => callText(call.name, call.arguments)).join("\n") || textOf(reply.text);
}

/** The calls of a turn as they were made; its text if it has none. */
function read({ accepted, calls, reply }) {
  const made = accepted?.calls?.length ? accepted.calls : calls.map((call) => ({ name: call.name, arguments: call.started?.arguments ?? call.arguments }));
  return made.map((call) => callText(call.name, call.arguments)).join("\n") || textOf(accepted?.text ?? reply.text);
}

function callText(name, given) {
  return `${textOf(name)} ${typeof given === "string" || cutLength(given) ? textOf(given) : JSON.stringify(given)}`;
}

function rollback(event) {
  return h(
    "section.rollback", { id: `e${event.seq}` },
    h("header", null, h("b", null, t("Rolled back")), h("code", { dir: "auto" }, textOf(event.reason)),
      event.tokens ? h("span.quiet", null, `${count(event.tokens)} ${t(event.tokens === 1 ? "token" : "tokens")}`) : null),
    textOf(event.detail) ? longText(event.detail) : null,
    textOf(event.change) ? labelled(t("What changes"), longText(event.change)) : null,
  );
}

// ------------------------------------------------------------------------------------------------ other items

const ITEMS = {
  turn,
  task(item, page) {
    const { event } = item;
    const question = textOf(event.question);
    return [
      t("Task"),
      [
        longText(event.task, { tag: "div.says.task-text", whole: fieldOf(page.runId, event.seq, (each) => each.task) }),
        question && question !== textOf(event.task)
          ? fold(t("With its files"), () =>
              longText(event.question, { whole: fieldOf(page.runId, event.seq, (each) => each.question) }))
          : null,
        textOf(event.earlier)
          ? fold(t("Earlier conversation"), () =>
              longText(cutLength(event.earlier) ? event.earlier : pretty(event.earlier), {
                whole: fieldOf(page.runId, event.seq, (each) => pretty(each.earlier)) }))
          : null,
        fold(t("Settings"), () =>
          longText(pretty({ agent: event.name, settings: event.settings, fingerprint: event.fingerprint,
            origin: event.origin, files: event.files }))),
      ],
    ];
  },
  resumed: ({ event, seq }) => [t(seq === 1 ? "Began" : "Resumed"), [h("p.quiet", null, t("after {n}", { n: duration(event.idle * 1000) })),
    event.differences?.length ? longText(event.differences.map(textOf).join("\n")) : null]],
  forked: ({ event }, page) => [t("Forked here"), [page.forkLink(), h("p.quiet", null, t("What is above is from that run.")),
    event.differences?.length ? longText(event.differences.map(textOf).join("\n")) : null]],
  agent: ({ event }) => [`${t("Sub-agent")} ${textOf(event.name)}`, longText(event.task, { tag: "div.says" })],
  report: ({ event }, page) => [`${t("Report")} (${textOf(event.status)})`,
    longText(event.report, { tag: "div.says", whole: fieldOf(page.runId, event.seq, (each) => each.report) })],
  attempt: ({ event }) => [`${t("Attempt")} ${event.attempt + 1}`, event.experiences.map((each) =>
    labelled(t("What earlier attempts learned"), longText(each)))],
  attemptEnded: ({ event }) => [`${t("Attempt")} ${event.attempt + 1} ${t("ended")}: ${textOf(event.reason)}`,
    textOf(event.experience) ? longText(event.experience) : null],
  evicted: ({ event }) => [t("Evicted"), h("p", null, t("{n} results before turn {turn} left the context ({reason}): {tokens} tokens freed.", {
    n: count(event.results), turn: event.before + 1, reason: textOf(event.reason), tokens: count(event.tokens) }))],
  compacted: ({ event }) => [t("Compacted"), [
    h("p", null, t("Turns before {turn} are replaced by a summary: {tokens} tokens freed.", {
      turn: event.before + 1, tokens: count(event.tokens) })), longText(event.summary)]],
  toolsChanged: ({ event }) => [t("Other tools offered"), fold(t("Tools"), () =>
    longText(cutLength(event.tools) ? event.tools : pretty(event.tools)))],
  decision: ({ event }, page) => [t(REQUESTS[event.kind] ?? "Approval needed"), [
    event.kind === "timer" ? h("p", null, t("Waits until {time}.", { time: moment(event.expires) }))
      : h("p", null, h("span.tool-name", { dir: "auto" }, textOf(event.name)), ` ${textOf(event.request)}`),
    textOf(event.reason) ? longText(event.reason) : null,
    event.kind === "timer" ? null : (event.kind === "question" && questionElement(event.arguments)) ||
      argumentList(event.arguments, fieldOf(page.runId, event.seq, (each) => pretty(each.arguments)))]],
  flow: ({ event }) => [t("Flow rules"), [
    h("p", null, h("span.tool-name", { dir: "auto" }, textOf(event.name)), ` ${textOf(event.handle)} · ${t(textOf(event.decision))} · ${event.labels.map(textOf).join(", ")}`),
    longText(event.reason)]],
  decided: ({ event }) => [decidedName(event), [
    h("p.quiet", { dir: "auto" }, `${textOf(event.request)} · ${textOf(event.by)}`),
    textOf(event.text) ? longText(event.text) : null,
    event.arguments == null ? null : argumentList(event.arguments, null)]],
  handedOver: ({ event }) => [t("Handed over"), h("p", { dir: "auto" }, t("{name} continues the conversation.", { name: textOf(event.name) }))],
  message: ({ event }, page) => [t("Message from the user"), [
    longText(event.text, { tag: "div.says", whole: fieldOf(page.runId, event.seq, (each) => each.text) }),
    h("p.quiet", { dir: "auto" }, [moment(event.sent), textOf(event.by), event.interrupts ? t("interrupted the reply") : ""].filter(Boolean).join(" · "))]],
  serverTold: ({ event }) => [t("The model's server was asked"), h("p.quiet", { dir: "auto" },
    `${textOf(event.what)}: ${event.value == null ? t("unknown") : pretty(event.value)}`)],
  checkpoint: ({ event }) => [t("Checkpoint"), h("p.quiet", { dir: "auto" }, textOf(event.name))],
  note: ({ event }) => [textOf(event.name), h("p", { class: `note-${plainWord(event.level)}`, dir: "auto" }, textOf(event.message))],
  stopped: ({ event }) => [`${t("The run stopped here")}: ${t(textOf(event.status))}`,
    textOf(event.error) ? line("error", textOf(event.error_kind), textOf(event.error)) : null],
  answer({ event }, page) {
    const answer = textOf(event.answer);
    const closing = textOf(event.closing_text);
    return [
      event.answer == null ? t("End of the run") : t("Answer"),
      [
        event.answer == null
          ? h("p.no-answer", null, t("No answer"))
          : h("div.final", { dir: "auto" }, longText(event.answer, { tag: "div" })),
        h("p.quiet", null, [...new Set([t(event.status), textOf(event.stop_reason)])].join(" · ")),
        textOf(event.error) ? line("error", textOf(event.error_kind), textOf(event.error)) : null,
        closing && closing !== answer
          ? labelled(t("The contract read it from"), longText(event.closing_text, {
              marks: (text) => marked(text, occurrences(text, answer)),
              whole: fieldOf(page.runId, event.seq, (each) => each.closing_text) }))
          : null,
        textOf(event.summary) ? fold(t("Final summary"), () =>
          longText(event.summary, { whole: fieldOf(page.runId, event.seq, (each) => each.summary) })) : null,
      ],
    ];
  },
};

function other({ event }) {
  const { seq, time, type, agent, ...fields } = event;
  return [textOf(type), longText(pretty(fields))];
}

function labelled(label, element, name = "labelled") {
  return h(`div.${name}`, null, h("span.label", null, label), element);
}

function line(kind, title, text) {
  return h(`p.line.${kind}`, { dir: "auto" }, h("b", null, title), text ? ` ${text}` : null);
}
