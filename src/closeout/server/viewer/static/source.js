// Where the pages get runs and events from: the server, or the data in an exported file.

const EXPORTED = document.getElementById("run-data");
const exportedData = EXPORTED ? JSON.parse(EXPORTED.textContent) : null;

/** The run in this file if the page was exported, else null. */
export function exportedRun() {
  return exportedData?.run ?? null;
}

async function fetchJson(path, parameters = {}, options = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value != null));
  const response = await fetch(`api/${path}?${query}`, options);
  const body = await response.json();
  if (!response.ok) throw new Error(body.error?.message ?? `HTTP ${response.status}`);
  return body;
}

const runPath = (id) => `runs/${encodeURIComponent(id)}`;

/** A page of runs: {runs, more, indexed, total, evaluations: those whose trials are left out}. Parameters: text, status, model, agent, user, since, before, limit. */
export function listRuns(parameters, signal) {
  return fetchJson("runs", parameters, { signal });
}

/** All evaluations, the latest first. */
export async function listEvaluations() {
  return (await fetchJson("evaluations")).evaluations;
}

/** One evaluation with its matrix; without it if `version` is the latest. */
export function loadEvaluation(name, parameters) {
  return fetchJson(`evaluations/${encodeURIComponent(name)}`, parameters);
}

/** What the runs have used, in groups, and what the keys of budgets have spent: {since, usage, budgets}. */
export function loadUsage(by, days) {
  return fetchJson("usage", { by, days });
}

/** The verdicts on a run that is a trial of an evaluation: {expected, scores, …}; null for another run. */
export async function loadTrial(id) {
  if (exportedData) return exportedData.trial;
  return fetchJson(`${runPath(id)}/trial`);
}

/** The citations of a run's answer, and what the run read: {citations, sources}. */
export async function listSources(id) {
  return exportedData ? exportedData.sources : fetchJson(`${runPath(id)}/sources`);
}

/** One result with its texts in pieces; null if an exported file does not have it. */
export async function loadSource(id, handle) {
  return exportedData ? exportedData.sources.texts[handle] ?? null : fetchJson(`${runPath(id)}/sources`, { handle });
}

/** The files of a run: {name, media_type, size, left, image} each. */
export async function listFiles(id) {
  if (exportedData) return exportedData.files;
  return (await fetchJson(`${runPath(id)}/files`)).files;
}

export function fileAddress(id, name) {
  return `api/${runPath(id)}/files/${name.split("/").map(encodeURIComponent).join("/")}`;
}

/** A run, and its events from number `start` on: {run, events}. */
export function listEvents(id, start, limit) {
  return fetchJson(`${runPath(id)}/events`, { start, limit });
}

/** The items of a run's story that the events from number `start` on changed: {run, items, count, time}. */
export async function loadItems(id, start, limit) {
  if (exportedData) return { run: exportedData.run, ...exportedData.story };
  return fetchJson(`${runPath(id)}/story`, { start, limit });
}

/** One whole event, without cuts. */
export function wholeEvent(id, seq) {
  return fetchJson(`${runPath(id)}/events/${seq}`);
}

/** All requests to the model, in pieces: yields arrays of ModelRequested events. */
export async function* listRequests(id) {
  if (exportedData) {
    yield exportedData.requests;
    return;
  }
  for (let start = 0; start !== null; ) {
    const { requests, next } = await fetchJson(`${runPath(id)}/requests`, { start });
    yield requests;
    start = next;
  }
}

/** The first request to the model, or undefined. */
export async function firstRequest(id) {
  return (await fetchJson(`${runPath(id)}/requests`, { limit: 1 })).requests[0];
}

/** Call `onItems` with what changes in a run's story, and `onEnd` with its record when it is over. Returns a function that stops. */
export function followRun(id, start, onItems, onEnd) {
  if (exportedData) return () => {};
  const stream = new EventSource(`api/${runPath(id)}/follow?start=${start}`);
  stream.addEventListener("message", (message) => onItems(JSON.parse(message.data)));
  stream.addEventListener("end", (message) => {
    stream.close();
    onEnd(JSON.parse(message.data));
  });
  return () => stream.close();
}

/** What a run waits for: {waiting, continues}. `continues`: the server continues it when all is decided. */
export function listWaiting(id) {
  return fetchJson(`${runPath(id)}/waiting`);
}

/** Decide on what was shown: {id, hash, verdict, text?, arguments?}. Returns what the run still waits for. */
export function sendDecision(id, decision) {
  return post(`${runPath(id)}/decisions`, decision);
}

/** The rule that past decisions suggest for a call that waits: {rule, approved, denied, file}, or null. */
export function suggestRule(id, call) {
  return fetchJson(`${runPath(id)}/rule`, { call });
}

/** Write a rule that was shown into the settings of the run's agent. */
export function acceptRule(id, call, rule) {
  return post(`${runPath(id)}/rule`, { id: call, rule });
}

/** The calls that the server can undo: call → whether it has been undone. */
export function listUndoable(id) {
  return exportedData ? {} : fetchJson(`${runPath(id)}/undo`);
}

/** Undo a call: {undone, text}. */
export function undoCall(id, call) {
  return post(`${runPath(id)}/undo`, { id: call });
}

/** Pause a schedule, or continue it. */
export function pauseSchedule(name, pause) {
  return post(`schedules/${encodeURIComponent(name)}/${pause ? "pause" : "continue"}`, {});
}

/** Begin to sign in to the server whose login the run waits for. Returns the address of the page to open, empty if none. */
export async function beginLogin(id, name) {
  return (await post(`${runPath(id)}/login`, { id: name })).page;
}

/** The agent that the server executes runs of, and those below it: {name, model, tools: [name, marks, number of the agent that it calls or null]}. */
export async function loadAgents() {
  return (await fetchJson("agent")).agents;
}

export function agentPicture(isDark) {
  return `api/agent.svg${isDark ? "?dark" : ""}`;
}

/** Begin a run of the server's agent: {task, history, files, user?}. */
export function beginRun(asked) {
  return post("runs", asked);
}

/** Execute a run again; with `wait`, end that wait of it first. Returns whether the server continues it. */
export async function resumeRun(id, wait = "") {
  return (await post(`${runPath(id)}/resume`, { id: wait })).continues;
}

/** Send a message to the run's agent: {text, interrupt}. */
export function sendMessage(id, message) {
  return post(`${runPath(id)}/messages`, message);
}

function post(path, body) {
  const token = document.querySelector("meta[name=closeout-token]")?.content ?? "";
  const headers = { "Content-Type": "application/json", "X-Closeout-Token": token };
  return fetchJson(path, {}, { method: "POST", headers, body: JSON.stringify(body) });
}

export function exportAddress(id) {
  return `api/${runPath(id)}/export`;
}

/** The text of a value that the server may have cut. */
export function textOf(value) {
  if (value && typeof value === "object" && "$cut" in value) return value.$cut;
  return typeof value === "string" ? value : value == null ? "" : JSON.stringify(value, null, 2);
}

/** The whole length of a text that was cut, else 0. */
export function cutLength(value) {
  return value && typeof value === "object" && "$cut" in value ? value.length : 0;
}
