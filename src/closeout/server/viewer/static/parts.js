// Parts that several pages show: a status, a text that may be long, a value, the tokens of a request.

import { append, h, replaceChildren } from "./dom.js";
import { count, cost, duration, percent } from "./format.js";
import { t } from "./language.js";
import { cutLength, exportedRun, textOf, wholeEvent } from "./source.js";
import { usageOf } from "./story.js";

const CLAMPED_LINES = 14;
const CLAMPED_CHARACTERS = 1400;

export function statusChip(status) {
  return h("span.chip", { class: `status-${plainWord(status)}` }, t(status));
}

/** A word that may be part of a class name. */
export function plainWord(text) {
  return /^[a-z]+$/.test(text) ? text : "other";
}

/**
 * A text as it is, clamped if it is long, with a button that shows the rest. `whole` gets the text that the server cut.
 */
export function longText(value, { whole = null, tag = "pre.text", marks = null } = {}) {
  const text = textOf(value);
  const cut = cutLength(value);
  const body = h(tag, { dir: "auto" }, marks ? marks(text) : text);
  const isLong = cut || text.length > CLAMPED_CHARACTERS || text.split("\n", CLAMPED_LINES + 1).length > CLAMPED_LINES;
  if (!isLong) return body;
  body.classList.add("clamped");
  const length = cut || text.length;
  const button = h("button.more", { type: "button", "aria-expanded": "false" });
  const label = () => {
    const open = !body.classList.contains("clamped");
    button.textContent = open ? t("Show less") : t("Show all ({n} characters)", { n: count(length) });
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", async () => {
    if (cut && whole && body.classList.contains("clamped")) {
      button.disabled = true;
      try {
        const all = textOf(await whole());
        replaceChildren(body, marks ? marks(all) : all);
      } catch (error) {
        replaceChildren(body, text, `\n[${error.message}]`);
      }
      button.disabled = false;
    }
    body.classList.toggle("clamped");
    label();
  });
  label();
  return h("div.long", null, body, button);
}

/** A function that fetches a field of an event that the server cut. */
export function fieldOf(runId, seq, pick) {
  return async () => pick(await wholeEvent(runId, seq));
}

/** A JSON text or value, indented if it is an object. */
export function pretty(value) {
  if (typeof value !== "string") return value == null ? "" : JSON.stringify(value, null, 2);
  if (!/^\s*[[{]/.test(value)) return value;
  try {
    return JSON.stringify(exactly(value), null, 2);
  } catch {
    return value;
  }
}

/** The value of a JSON text in which numbers keep their digits, where the browser can do so. */
function exactly(text) {
  return JSON.parse(text, (key, value, context) => (typeof value === "number" && context?.source && JSON.rawJSON ? JSON.rawJSON(context.source) : value));
}

function isNumber(value) {
  return typeof value === "number" || Boolean(JSON.isRawJSON?.(value));
}

/** A result: JSON is indented, and a table if it is a list of flat objects. `whole` fetches the text that the server cut. */
export function resultText(value, whole) {
  const rows = cutLength(value) ? null : flatObjects(textOf(value));
  if (rows && rows.length <= CLAMPED_LINES) return h("div.text", null, tableOf(rows));
  return longText(cutLength(value) ? value : pretty(value), { whole: async () => pretty(await whole()), marks: tableOrText, tag: "div.text" });
}

function tableOrText(text) {
  const rows = flatObjects(text);
  return rows ? tableOf(rows) : text;
}

function tableOf(rows) {
  const names = [...new Set(rows.flatMap(Object.keys))];
  return h("table.records", null,
    h("thead", null, h("tr", null, names.map((name) => h("th", { scope: "col", dir: "auto" }, name)))),
    h("tbody", null, rows.map((row) => h("tr", null, names.map((name) =>
      h("td", { dir: "auto", class: isNumber(row[name]) ? "figure" : "" }, Object.hasOwn(row, name) ? cellText(row[name]) : null))))));
}

function cellText(value) {
  return isNumber(value) ? JSON.stringify(value) : String(value);
}

/** The objects of a JSON list if they contain neither lists nor objects, else null. */
function flatObjects(text) {
  if (!/^\s*\[\s*\{/.test(text)) return null;
  let list;
  try {
    list = exactly(text);
  } catch {
    return null;
  }
  const isFlat = (each) => each !== null && typeof each === "object" && !Array.isArray(each) && Object.keys(each).length > 0
    && Object.values(each).every((value) => value === null || typeof value !== "object" || isNumber(value));
  return list.every(isFlat) ? list : null;
}

/** The arguments of a call: each name with its value; what is no object is shown as it is. */
export function argumentList(value, whole) {
  if (cutLength(value)) return longText(value, { whole });
  let parsed = value;
  if (typeof value === "string") {
    try {
      parsed = JSON.parse(value);
    } catch {
      return longText(value);
    }
  }
  if (parsed === null || typeof parsed !== "object" || Array.isArray(parsed)) return longText(pretty(parsed));
  const rows = Object.entries(parsed).map(([name, each]) => [
    h("dt", { dir: "auto" }, name),
    h("dd", null, longText(cutLength(each) || typeof each === "string" ? each : pretty(each), { whole })),
  ]);
  return rows.length ? h("dl.arguments", null, rows) : h("span.quiet", null, t("no arguments"));
}

/** The tokens of one request as a bar: from the cache, new, written. `widest` is the number of tokens of a full bar. */
export function tokenBar(usage, widest) {
  const bar = h("span.token-bar", { "aria-hidden": "true" });
  for (const kind of ["cached", "fresh", "written"]) {
    if (!usage[kind]) continue;
    const part = h(`i.${kind}`);
    part.style.flexGrow = usage[kind];
    bar.append(part);
  }
  bar.style.width = `${Math.max(3, Math.min(100, (100 * (usage.input + usage.written)) / (widest || 1)))}%`;
  return h("span.token-track", null, bar);
}

export function usageLine(turn) {
  const usage = usageOf(turn);
  const parts = [];
  if (usage.input || usage.written) {
    const share = usage.cached ? ` (${percent(usage.cached, usage.input)} ${t("cached")})` : "";
    parts.push(`${count(usage.input)} ${t("in")}${share}`, `${count(usage.written)} ${t("out")}`);
  }
  if (usage.cost !== null) parts.push(cost(usage.cost));
  if (usage.ms !== null) parts.push(duration(usage.ms));
  return parts.join(" · ");
}

/** A box that opens: the summary is always shown. `fill` makes what is inside when it is first opened. */
export function fold(summary, fill, { open = false, name = "" } = {}) {
  const details = h(`details.${name || "fold"}`, { open }, h("summary", null, summary));
  let filled = false;
  const make = () => {
    if (!details.open || filled) return;
    filled = true;
    append(details, [fill()]);
  };
  details.addEventListener("toggle", make);
  make();
  return details;
}

/** Whose run it is: its agent, version, user and budgets. The agent and the users are links to their runs. */
export function aboutRun(run, isLabelled = true) {
  const named = (text) => (isLabelled ? h("span.label", null, t(text)) : null);
  const link = (name, value, label) => h("a", { href: exportedRun() ? "#/" : `#/?${name}=${encodeURIComponent(value)}`, dir: "auto", title: t(label) }, value);
  const parts = [
    run.agent ? h("span", null, named("Agent"), link("agent", run.agent, "Runs of this agent"), run.version ? ` ${run.version}` : "") : null,
    ...run.users.map((user) => h("span", null, named("User"), link("user", user, "Runs for this user"))),
    ...run.budgets.map((key) => h("span", null, named("Budget"), h("span", { dir: "auto" }, key)))];
  return h("span.run-about", null, parts);
}

/** A command to type, with a button that copies it. */
export function commandLine(command, text = command) {
  const copy = h("button", { type: "button", click: () => copyFrom(copy, command) }, t("Copy"));
  return h("p.command", null, h("code", null, text), copy);
}

/** Put a text on the clipboard and say so on the button for a moment. */
export async function copyFrom(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = t("Copied");
  } catch {
    button.textContent = t("Not allowed");
  }
  setTimeout(() => (button.textContent = before), 1200);
}
