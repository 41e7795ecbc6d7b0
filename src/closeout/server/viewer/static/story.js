// The story of a run: its items (a turn, an eviction, an answer …) in reading order, as the server gathers them.

import { loadItems } from "./source.js";

const AT_ONCE = 5000; // events in the first request to the server
const GROWTH = 4; // the server reads a run from its beginning for each request
const KINDS = {
  RunStarted: "task", RunResumed: "resumed", RunEnded: "answer", AgentStarted: "agent", AgentEnded: "report",
  AttemptStarted: "attempt", AttemptEnded: "attemptEnded", ServerTold: "serverTold", CheckpointReached: "checkpoint",
  Evicted: "evicted", Compacted: "compacted", ToolsChanged: "toolsChanged", DecisionRequested: "decision",
  DecisionMade: "decided", FlowDecided: "flow", Noted: "note", MessageReceived: "message", HandedOver: "handedOver",
};

/**
 * The items that have arrived. An item has: kind, agent, depth, seq (of its first event), last, time, and its event. A turn
 * has instead: request, retries, reply, failure, partial, causes, extras (other requests, with the same fields), calls,
 * repairs, accepted, rolledBack, answers.
 */
export class Story {
  constructor() {
    this.items = [];
    this.bySeq = new Map();
    this.started = null; // the event
    this.ended = null; // the item of the run's end
    this.totals = null;
    this.count = 0;
    this.lastTime = 0;
  }

  /** Take what the server sent: items that are new or have changed. */
  add({ items, count, time, totals }) {
    for (const item of items) {
      item.kind ||= KINDS[item.event.type] ?? "other";
      item.depth = item.agent.split("/").length - 1;
      item.changed = true;
      const known = this.bySeq.get(item.seq);
      if (known) Object.assign(known, item);
      else this.bySeq.set(item.seq, item);
      if (item.kind === "task") this.started = item.event;
      if (item.event?.type === "RunEnded") this.ended = known ?? item;
    }
    if (items.length) this.items = [...this.bySeq.values()].sort(byPlace);
    Object.assign(this, { count, lastTime: time, totals });
  }
}

function byPlace({ place: a }, { place: b }) {
  for (let at = 0; at < a.length && at < b.length; at += 1) if (a[at] !== b[at]) return a[at] - b[at];
  return a.length - b.length;
}

/** The requests of a turn in the order in which they were sent: each has request, reply, failure, causes and so on. */
export function requestsOf(item) {
  if (item.kind !== "turn") return [];
  return [item, ...item.extras].filter((each) => each.request).sort((a, b) => a.request.seq - b.request.seq);
}

/** What a request used: tokens from the cache, new ones, written ones, and those written into the cache. */
export function usageOf({ reply, failure }) {
  const outcome = reply ?? failure;
  const usage = outcome?.usage ?? {};
  const input = usage.input_tokens ?? 0;
  const cached = Math.min(usage.cache_read_tokens ?? 0, input);
  return {
    input,
    cached,
    fresh: input - cached,
    written: usage.output_tokens ?? 0,
    stored: usage.cache_write_tokens ?? 0,
    cost: usage.cost_usd ?? null,
    ms: outcome?.ms ?? null,
  };
}

/** Load more of a story: `first` events, and ever more later. Returns {run, isMore}. */
export async function loadMore(id, story, first) {
  const limit = Math.max(first, GROWTH * story.count);
  const wanted = story.count + limit;
  const { run, ...found } = await loadItems(id, story.count, limit);
  story.add(found);
  return { run, isMore: story.count === wanted };
}

/** Load a whole run: {run, story}. Stops early when `isWanted` says so. */
export async function loadStory(id, isWanted = () => true) {
  const story = new Story();
  for (;;) {
    const { run, isMore } = await loadMore(id, story, AT_ONCE);
    if (!isMore || !isWanted()) return { run, story };
  }
}
