// What the recorded runs have used, in groups, and what the keys of budgets have spent.

import { h, replaceChildren } from "./dom.js";
import { cost, count } from "./format.js";
import { t } from "./language.js";
import { loadUsage } from "./source.js";

const USAGE_GROUPS = { "day,model": "Day and model", day: "Day", model: "Model", key: "Budget", user: "User", agent: "Agent" };
const GROUP_NAMES = { day: "Day", key: "Budget", user: "User", model: "Model", agent: "Agent" };
const USAGE_DAYS = [7, 31, 366];

export async function showUsage(main, route) {
  const by = route.query.get("by") in USAGE_GROUPS ? route.query.get("by") : "day,model";
  const days = USAGE_DAYS.includes(Number(route.query.get("days"))) ? Number(route.query.get("days")) : 31;
  const found = await loadUsage(by, days);
  replaceChildren(main, h("div.usage-page", null,
    h("h1", null, t("Usage")),
    h("p.quiet", null, t("Since {day} (UTC). Failed, cancelled and rolled-back requests count too.", { day: found.since })),
    linkChoice(t("Groups"), Object.entries(USAGE_GROUPS).map(([value, name]) => [t(name), `#/usage?by=${value}&days=${days}`, value === by])),
    linkChoice(t("Days"), USAGE_DAYS.map((value) => [count(value), `#/usage?by=${by}&days=${value}`, value === days])),
    found.usage.length ? usageTable(by.split(","), found.usage) : h("p.foot", null, t("No run has used anything since then.")),
    found.budgets.length ? [h("h2", null, t("Budgets")), budgetTable(found.budgets)] : null));
  return { close() {}, key: () => false };
}

function linkChoice(name, links) {
  return h("nav.choice", { "aria-label": name }, h("span.quiet", null, name),
    links.map(([text, href, current]) => h("a", { href, "aria-current": current ? "true" : null }, text)));
}

function usageTable(groups, rows) {
  const total = (key) => rows.reduce((sum, row) => sum + (row[key] ?? 0), 0);
  const numbers = (row) => [count(row.requests), count(row.input_tokens), count(row.cache_read_tokens), count(row.output_tokens),
    cost(row.cost_usd ?? 0) + (row.unpriced_requests ? ` + ${t("{n} unpriced", { n: count(row.unpriced_requests) })}` : "")];
  const keys = ["requests", "input_tokens", "cache_read_tokens", "output_tokens", "cost_usd", "unpriced_requests"];
  const sums = Object.fromEntries(keys.map((key) => [key, total(key)]));
  return numberTable([...groups.map((name) => t(GROUP_NAMES[name])), t("Requests"), t("Input"), t("Cached"), t("Output"), t("Cost")], groups.length,
    rows.map((row) => [...groups.map((name) => row[name] || "–"), ...numbers(row)]),
    groups.includes("key") ? null : [t("Total"), ...groups.slice(1).map(() => ""), ...numbers(sums)]);
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
