// The frame around the pages: the header, the address, the keyboard, light and dark.

import { showCompare } from "./compare.js";
import { h, replaceChildren } from "./dom.js";
import { EvaluationPage } from "./evaluation.js";
import { EvaluationsPage } from "./evaluations.js";
import { language, setLanguage, t } from "./language.js";
import { Playground } from "./play.js";
import { PromptsPage } from "./prompts.js";
import { RunPage } from "./run.js";
import { RunsPage } from "./runs.js";
import { exportedRun } from "./source.js";
import { SourcesPage } from "./sources.js";
import { showUsage } from "./usage.js";

const THEMES = ["auto", "light", "dark"];
const KEYS = [
  ["j / k", "next / previous"], ["n", "next repair, rollback or failure"], ["o", "open or close what is folded"],
  ["g / G", "first / last"], ["p", "prompts of the run"], ["d", "difference / whole prompt"], ["/", "search"], ["← ↓ ↑ →", "move in the matrix of an evaluation"], ["u", "back to the list"], ["?", "this help"],
];

let page = null; // the page that is shown: close() and key(), also while it opens
let shownIn = "";
const header = h("header.top");
let main = h("main");
const helpDialog = h("dialog", { id: "help" });

/** #/, #/run/ID?e=SEQ, #/run/ID/prompts?e=SEQ, #/run/ID/sources?c=CITATION or ?r=HANDLE, #/compare/ID/ID or …/ID/ID/ID, #/evaluations, #/evaluation/NAME?show=OUTCOME, #/usage?by=GROUP, #/play. An exported file shows its run wherever it is opened. */
function readAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...ids] = path.split("/").map(decode);
  const parameters = new URLSearchParams(query ?? "");
  const event = /^\d{1,15}$/.test(parameters.get("e") ?? "") ? Number(parameters.get("e")) : null;
  const exported = exportedRun();
  const ofRun = ["prompts", "sources"].includes(ids[1]) ? ids[1] : "run";
  if (exported) return { name: ofRun, id: exported.run_id, ids, event, query: parameters };
  if (name === "run" && ids[0]) return { name: ofRun, id: ids[0], ids, event, query: parameters };
  if (name === "compare" && ids[0]) return { name: "compare", ids: ids.filter(Boolean).slice(0, 3), event, query: parameters };
  if (name === "evaluation" && ids[0]) return { name, id: ids[0], ids, event, query: parameters };
  if (name === "evaluations" || name === "usage" || name === "play") return { name, ids, event, query: parameters };
  return { name: "runs", ids, event, query: parameters };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** A page that is drawn once. */
const drawn = (draw) => class {
  constructor(main, route) {
    this.open = () => draw(main, route);
  }

  key() {
    return false;
  }

  close() {}
};

const PAGES = { runs: RunsPage, run: RunPage, prompts: PromptsPage, sources: SourcesPage, compare: drawn(showCompare), evaluations: EvaluationsPage, evaluation: EvaluationPage, usage: drawn(showUsage), play: Playground };
/** The pages of the header, with the names of the pages below each. */
const SECTIONS = { "#/": ["Runs", "runs", "run", "prompts", "sources", "compare"], "#/evaluations": ["Evaluations", "evaluations", "evaluation"], "#/usage": ["Usage", "usage"], "#/play": ["Playground", "play"] };

async function show() {
  const route = readAddress();
  if (page?.goToEvent && page.runId === route.id && page.name === route.name && route.event !== null && shownIn === language()) {
    page.goToEvent(route.event);
    return;
  }
  shownIn = language();
  drawHeader();
  page?.close();
  document.title = route.id ? `${route.id} · Closeout` : "Closeout";
  document.documentElement.lang = language();
  // Each page draws into its own element: what still loads for a page that was left is not seen.
  const here = h("main", { id: "main", tabindex: "-1" }, h("p.quiet.loading", null, t("Loading …")));
  main.replaceWith(here);
  main = here;
  scrollTo(0, 0);
  const opening = (page = Object.assign(new PAGES[route.name](here, route), { name: route.name }));
  try {
    await opening.open();
  } catch (error) {
    opening.close();
    if (page === opening) page = null;
    replaceChildren(here, h("div.line.error", { role: "alert" }, h("h1", null, t("This page cannot be shown.")), error.message));
  }
}

function drawHeader() {
  const theme = remembered("theme", "auto");
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  const colours = t("Colours: {theme}", { theme: t(theme) });
  replaceChildren(
    header,
    h("a.brand", { href: "#/", "aria-label": "Closeout" }, h("span.brand-mark", { "aria-hidden": "true" }, "✓"), h("span.brand-name", null, "Closeout")),
    exportedRun() ? h("span.quiet", null, t("exported run")) : h("nav", { "aria-label": t("Pages") },
      Object.entries(SECTIONS).map(([href, [name, ...pages]]) =>
        h("a", { href, "aria-current": pages.includes(readAddress().name) ? "page" : null }, t(name)))),
    h("span.spacer"),
    h("button", { type: "button", click: changeLanguage, "aria-label": t("Language") }, language() === "en" ? "中文" : "English"),
    h("button", { type: "button", click: () => changeTheme(next), title: colours, "aria-label": colours }, { auto: "◐", light: "☀", dark: "☾" }[theme]),
    h("button", { type: "button", click: help, title: t("Keyboard"), "aria-label": t("Keyboard") }, "?"),
  );
}

/** What the reader chose. A file that was opened from disk may not be allowed to remember it. */
function remembered(name, otherwise) {
  try {
    return localStorage.getItem(`closeout.${name}`) ?? otherwise;
  } catch {
    return chosen.get(name) ?? otherwise;
  }
}

const chosen = new Map();

function remember(name, value) {
  chosen.set(name, value);
  try {
    localStorage.setItem(`closeout.${name}`, value);
  } catch {
    // then it holds for this visit
  }
}

function changeTheme(theme) {
  remember("theme", theme);
  drawHeader();
}

function changeLanguage() {
  remember("language", language() === "en" ? "zh" : "en");
  setLanguage(remembered("language", "en"));
  show();
}

function help() {
  replaceChildren(helpDialog, h("h2", null, t("Keyboard")),
    h("dl.keys", null, KEYS.map(([keys, what]) => [h("dt", null, h("kbd", null, keys)), h("dd", null, t(what))])),
    h("form", { method: "dialog" }, h("button.button", null, t("Close"))));
  helpDialog.showModal();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, dialog");
  if (event.key === "Escape" && typing) typing.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "?") help();
  else if (page?.key(event.key)) {
    // done
  } else if (event.key === "u" || event.key === "/") location.hash = "#/";
  else return;
  event.preventDefault();
});
addEventListener("hashchange", show);

setLanguage(remembered("language", navigator.language.startsWith("zh") ? "zh" : "en"));
document.body.append(header, main, helpDialog);
show();
