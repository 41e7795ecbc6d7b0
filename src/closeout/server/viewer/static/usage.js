// What the recorded runs have used: by day as a chart, in groups as a table; and what the keys of budgets have spent.

import { h, replaceChildren } from "./dom.js";
import { cost, count, duration, short } from "./format.js";
import { t } from "./language.js";
import { loadUsage } from "./source.js";

const USAGE_GROUPS = { model: "Model", agent: "Agent", user: "User", tool: "Tool", key: "Budget" };
const USAGE_DAYS = [7, 31, 366];
const SHADES = 6; // groups with a colour of their own; the rest is one
// What the chart can show, and how it is written.
const REQUEST_FIGURES = { cost_usd: ["Cost", cost], tokens: ["Tokens", short], requests: ["Requests", count] };
const TOOL_FIGURES = { calls: ["Calls", count], failures: ["Failed", count], seconds: ["Time", (seconds) => duration(1000 * seconds)], result_tokens: ["Tokens of results", short] };

export async function showUsage(main, route) {
  const by = Object.hasOwn(USAGE_GROUPS, route.query.get("by") ?? "") ? route.query.get("by") : "model";
  const days = USAGE_DAYS.includes(Number(route.query.get("days"))) ? Number(route.query.get("days")) : 31;
  const figures = by === "tool" ? TOOL_FIGURES : REQUEST_FIGURES;
  const found = await loadUsage(`day,${by}`, days);
  const rows = found.usage.map((row) => ({ ...row, tokens: (row.input_tokens ?? 0) + (row.output_tokens ?? 0) }));
  const hasCost = by !== "tool" && rows.some((row) => row.cost_usd);
  const shown = Object.hasOwn(figures, route.query.get("show") ?? "") ? route.query.get("show") : Object.keys(figures)[by === "tool" || hasCost ? 0 : 1];
  const address = (changed) => `#/usage?${new URLSearchParams({ by, days, show: shown, ...changed })}`;
  const groups = summed(rows, by, Object.keys(figures).concat(by === "tool" ? [] : ["input_tokens", "cache_read_tokens", "output_tokens", "unpriced_requests"]), shown);
  replaceChildren(main, h("div.usage-page", null,
    h("h1", null, t("Usage")),
    h("p.quiet", null, t("Since {day} (UTC). Failed, cancelled and rolled-back requests count too.", { day: found.since })),
    linkChoice(t("By"), Object.entries(USAGE_GROUPS).map(([value, name]) => [t(name), `#/usage?by=${value}&days=${days}`, value === by])),
    linkChoice(t("Days"), USAGE_DAYS.map((value) => [count(value), address({ days: value }), value === days])),
    linkChoice(t("Show"), Object.entries(figures).map(([value, [name]]) => [t(name), address({ show: value }), value === shown])),
    rows.length ? [dayChart(rows, by, shown, figures[shown], groups, found.since), by === "tool" ? toolTable(groups, by) : usageTable(groups, by)]
      : h("p.foot", null, t("No run has used anything since then.")),
    found.budgets.length ? [h("h2", null, t("Budgets")), budgetTable(found.budgets)] : null));
}

function linkChoice(name, links) {
  return h("nav.choice", { "aria-label": name }, h("span.quiet", null, name),
    links.map(([text, href, current]) => h("a", { href, "aria-current": current ? "true" : null }, text)));
}

/** The sums of the rows of each group, the largest first: {name, row, shade}. */
function summed(rows, by, keys, shown) {
  const sums = new Map();
  for (const row of rows) {
    const sum = sums.get(row[by]) ?? Object.fromEntries(keys.map((key) => [key, 0]));
    for (const key of keys) sum[key] += row[key] ?? 0;
    sums.set(row[by], sum);
  }
  return [...sums].sort(([, a], [, b]) => b[shown] - a[shown]).map(([name, row], at) => ({ name, row, shade: Math.min(at, SHADES) }));
}

/** A bar for each day, with a part for each group. The figures are in the table, and in the title of each bar. */
function dayChart(rows, by, shown, [name, write], groups, since) {
  const days = [];
  for (let day = new Date(`${since}T00:00:00Z`); days.length < 400 && day <= new Date(); day = new Date(day.getTime() + 86_400_000)) days.push(day.toISOString().slice(0, 10));
  const of = new Map();
  for (const row of rows) of.set(row.day, [...(of.get(row.day) ?? []), row]);
  const total = (day) => (of.get(day) ?? []).reduce((sum, row) => sum + (row[shown] ?? 0), 0);
  const highest = Math.max(...days.map(total)) || 1;
  const bars = days.map((day) => {
    const value = total(day);
    const title = `${day}: ${write(value) || write(0)}`;
    const bar = h("span.day-bar", { title });
    for (const group of groups) {
      const part = (of.get(day) ?? []).find((row) => row[by] === group.name)?.[shown] ?? 0;
      if (!part) continue;
      const piece = h("i", { class: `shade-${group.shade}` });
      piece.style.flexGrow = part / value;
      bar.append(piece);
    }
    bar.style.height = value ? `${Math.max(2, (100 * value) / highest)}%` : "0";
    return h("span.bar-slot.day-slot", null, bar);
  });
  const label = t("{name} by day, at most {most} a day", { name: t(name), most: write(highest) });
  return h("section.chart.day-chart", null, h("h2", null, label),
    h("div.bars", { role: "img", "aria-label": label }, bars),
    h("p.axis", { "aria-hidden": "true" }, h("span", null, days[0]), h("span", null, days.at(-1))),
    h("p.legend", null, groups.slice(0, SHADES + 1).map((group) => h("span", { dir: "auto" }, h("i", { class: `shade-${group.shade}` }),
      group.shade < SHADES ? group.name || "–" : t("others")))));
}

function usageTable(groups, by) {
  const numbers = (row) => [count(row.requests), count(row.input_tokens), count(row.cache_read_tokens), count(row.output_tokens),
    [row.cost_usd || !row.unpriced_requests ? cost(row.cost_usd ?? 0) : "", row.unpriced_requests ? t("{n} unpriced", { n: count(row.unpriced_requests) }) : ""].filter(Boolean).join(" + ")];
  return numberTable([t(USAGE_GROUPS[by]), t("Requests"), t("Input"), t("Cached"), t("Output"), t("Cost")], 1,
    groups.map(({ name, row }) => [name || "–", ...numbers(row)]), by === "key" ? null : [t("Total"), ...numbers(total(groups))]);
}

function toolTable(groups, by) {
  const numbers = (row) => [count(row.calls), count(row.failures), duration(row.calls ? (1000 * row.seconds) / row.calls : 0), count(row.result_tokens)];
  return numberTable([t(USAGE_GROUPS[by]), t("Calls"), t("Failed"), t("Time of a call"), t("Tokens of results")], 1,
    groups.map(({ name, row }) => [name || "–", ...numbers(row)]), [t("Total"), ...numbers(total(groups))]);
}

function total(groups) {
  return groups.map(({ row }) => row).reduce((sum, row) => Object.fromEntries(Object.entries(row).map(([key, value]) => [key, value + (sum[key] ?? 0)])), {});
}

function budgetTable(rows) {
  return numberTable([t("Day"), t("Budget"), t("Requests"), t("Tokens"), t("Cost"), t("Reserved")], 2,
    rows.map((row) => [row.day, row.key, count(row.requests), count(row.tokens), cost(row.cost_usd), cost(row.reserved_usd)]), null);
}

function numberTable(head, texts, rows, foot) {
  const line = (cells, kind) => h("tr", null, cells.map((cell, at) => h(at < texts ? kind : `${kind}.number`, at < texts ? { dir: "auto" } : null, cell)));
  return h("div.wide", { role: "region", tabindex: "0", "aria-label": head.join(", ") }, h("table.usage", null,
    h("thead", null, line(head, "th")), h("tbody", null, rows.map((row) => line(row, "td"))), foot ? h("tfoot", null, line(foot, "td")) : null));
}
