// Two or three runs side by side, and the first step at which they differ.

import { h, replaceChildren } from "./dom.js";
import { beforeAndAfter } from "./diff.js";
import { ago, cost, count, duration, percent } from "./format.js";
import { t } from "./language.js";
import { argumentList, fieldOf, fold, longText, resultText, statusChip, usageLine } from "./parts.js";
import { firstRequest, listEvents, listRuns, textOf } from "./source.js";
import { loadStory } from "./story.js";

export async function showCompare(main, { ids }) {
  if (ids.length < 2) return chooseOther(main, ids[0]);
  drawComparison(main, await Promise.all(ids.map(loadSide)));
}

async function loadSide(id) {
  const { run, story } = await loadStory(id);
  return { run, totals: story.totals, started: story.started, asked: await firstRequest(id), steps: stepsOf(story) };
}

/** What the main agent did: a step for each reply, and the answer. */
function stepsOf(story) {
  const items = story.items.filter((item) => item.agent === "main");
  return items.filter((item) => item.kind === "turn" || item.kind === "answer").map((item) => {
    const answer = textOf(item.event?.answer);
    if (item.kind === "answer") return { item, name: t(answer ? "Answer" : "No answer"), text: answer || textOf(item.event.error) || t("No answer"), calls: [] };
    const text = textOf(item.accepted?.text ?? item.reply?.text);
    const name = item.purpose === "act" ? `${t("Turn")} ${item.number + 1}` : t(item.purpose);
    const calls = item.calls.map((call) => ({ name: textOf(call.name), given: call.started?.arguments ?? call.arguments, call }));
    return { item, name, text, calls };
  });
}

/** What makes two steps the same: the calls if there are any, else the text. */
function signature(step) {
  if (!step) return "";
  const rolledBack = step.item.rolledBack ? "rolled back " : "";
  if (!step.calls.length) return rolledBack + step.item.kind + step.text;
  return rolledBack + step.calls.map((call) => `${call.name} ${canonical(call.given)}`).join("\n");
}

function canonical(value) {
  try {
    const parsed = typeof value === "string" ? JSON.parse(value) : value;
    return JSON.stringify(parsed, parsed && typeof parsed === "object" ? Object.keys(parsed).sort() : undefined);
  } catch {
    return textOf(value);
  }
}

function drawComparison(main, sides) {
  const steps = Math.max(...sides.map((side) => side.steps.length));
  let first = 0;
  while (first < steps && new Set(sides.map((side) => signature(side.steps[first]))).size === 1) first += 1;
  const same = first === steps;
  const row = sides.length > 2 ? "div.compare-row.of-three" : "div.compare-row";
  const rows = [];
  for (let at = 0; at < steps; at += 1)
    rows.push(h(row, { class: at === first ? "first-difference" : at < first ? "same" : "", id: at === first ? "first" : null },
      sides.map((side) => cell(side.steps[at], side))));
  const jump = h("button.button.primary", { type: "button", click: () => document.getElementById("first").scrollIntoView({ block: "center" }) }, t("Go there"));
  const [left, ...others] = sides;
  const ofLab = others.some((side) => laneName(side));
  replaceChildren(main, h("div.compare-page", null,
    h("h1.unseen", null, t("Compare")),
    h(`${row}.compare-heads`, null, sides.map((side) => runHead(side, ofLab))),
    others.map((right) => [
      left.run.task !== right.run.task ? h("section.compare-tasks", null, h("p.line.warning", null, t("The tasks differ.")), beforeAndAfter(left.run.task, right.run.task, [left, right].map((side) => side.run.run_id))) : null,
      settingsDifference(left, right)]),
    h("p.line", { class: same ? "good" : "warning", role: "status" }, same ? t(sides.length === 2 ? "Both runs took the same steps." : "All runs took the same steps.")
      : t("The first difference is at step {n} of {m}.", { n: first + 1, m: steps }), " ", same ? null : jump),
    rows));
}

const PARTS = { model: "model", dialect: "dialect", instructions: "instructions", answer: "answer contract", tools: "tools", prompts: "prompts" };

/** Which parts of the agents differ; the instructions and the rest of the first prompts with their words. */
function settingsDifference(left, right) {
  const [one, other] = [left, right].map((side) => side.started?.fingerprint ?? {});
  const names = [...new Set([...Object.keys(one), ...Object.keys(other)])].filter((name) => canonical(one[name]) !== canonical(other[name]));
  if (!names.length) return null;
  const said = names.map((name) => (Object.hasOwn(PARTS, name) ? t(PARTS[name]) : name)).join(", ");
  const prompts = [left, right].map(firstPrompt);
  return h("section.compare-settings", null, h("p.line.warning", { dir: "auto" }, h("b", null, t("The agents differ:")), ` ${said}`),
    names.includes("instructions") && prompts[0] !== prompts[1] ? fold(t("The first prompts"), () => beforeAndAfter(...prompts, [left, right].map((side) => side.run.run_id))) : null);
}

/** What the model reads before the task: the system message, or the text of the first request. */
function firstPrompt({ asked }) {
  const [first] = asked?.added ?? [];
  return textOf(first?.prompt ?? first?.content);
}

/** What a run is in a what-if comparison; the recorded one is the run that the others were made of. */
function laneName({ started }) {
  const lane = started?.origin?.["what-if"]?.lane;
  return lane === "baseline" ? t("Baseline") : lane === "candidate" ? t("Candidate") : "";
}

function runHead(side, ofLab) {
  const { run, totals } = side;
  const name = ofLab ? laneName(side) || t("Recorded run") : "";
  const { usage } = totals;
  const facts = [[t("Turns"), count(totals.turns)], [t("Calls"), count(totals.tool_calls)], [t("Tokens"), count(usage.input_tokens + usage.output_tokens)],
    [t("Cached"), percent(usage.cache_read_tokens, usage.input_tokens) || "–"], [t("Cost"), cost(usage.cost_usd) || t("unknown")], [t("Repairs"), count(totals.repairs)],
    [t("Rollbacks"), count(totals.rollbacks)], [t("Time"), run.ended ? duration(1000 * (run.ended - run.started)) : "–"]];
  return h("section.compare-run", null,
    name ? h("p.lane-name", null, name) : null,
    h("p.run-line", null, statusChip(run.status), h("a", { href: `#/run/${encodeURIComponent(run.run_id)}` }, run.run_id)),
    h("p", { dir: "auto" }, run.task), h("p.quiet", { dir: "auto" }, run.model),
    h("dl.tiles", null, facts.map(([name, value]) => h("div.tile", null, h("dt", null, name), h("dd", null, value)))));
}

function cell(step, { run }) {
  if (!step) return h("div.compare-cell.empty", null);
  const link = h("a.anchor", { href: `#/run/${encodeURIComponent(run.run_id)}?e=${step.item.seq}` }, `#${step.item.seq}`);
  return h("div.compare-cell", { class: step.item.rolledBack ? "rolled-back" : "" },
    h("header.item-head", null, h("span.item-name", null, step.name), step.item.rolledBack && h("span.flag.flag-rollback", null, t("Rolled back")),
      step.item.repairs?.length ? h("span.flag.flag-repair", null, `${step.item.repairs.length} ${t(step.item.repairs.length === 1 ? "repair" : "repairs")}`) : null,
      step.item.kind === "turn" && h("span.usage", null, usageLine(step.item)), link),
    step.text ? longText(step.text, { tag: "div.says" }) : null,
    step.calls.map((call) => h("section.call", null, h("header", null, h("span.tool-name", { dir: "auto" }, call.name)),
      argumentList(call.given, null), call.call.shown ? h("div.result", null, resultText(call.call.shown.text, fieldOf(run.run_id, step.item.accepted?.seq, (each) => each.returns.find((one) => one.call === call.call.shown.call).text))) : null)));
}

async function chooseOther(main, id) {
  const [{ run }, { runs }] = await Promise.all([listEvents(id, 0, 1), listRuns({ limit: 200 })]);
  const others = runs.filter((each) => each.run_id !== id);
  others.sort((a, b) => Number(b.task === run.task) - Number(a.task === run.task));
  replaceChildren(main, h("div.compare-page", null,
    h("h1", null, t("Compare with"), " …"), h("p.quiet", { dir: "auto" }, run.task),
    others.map((each) => h("p.compare-choice", null, statusChip(each.status),
      h("a", { href: `#/compare/${encodeURIComponent(id)}/${encodeURIComponent(each.run_id)}`, dir: "auto" }, each.task || each.run_id),
      each.task === run.task ? h("span.flag.flag-good", null, t("same task")) : null,
      h("span.quiet", null, `${each.model} · ${ago(each.started)}`)))));
}
