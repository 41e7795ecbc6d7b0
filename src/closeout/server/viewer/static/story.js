// The story of a run: its events gathered into items (a turn, an eviction, an answer …), nested by agent.

import { listEvents, textOf } from "./source.js";

const AT_ONCE = 5000; // events in one request to the server

/**
 * Folds events into items. Call `add` with each event in order; `items()` are all items in reading order: those of a
 * sub-agent follow the turn whose call started it.
 *
 * An item has: kind, agent, depth, seq (of its first event), time, and what its kind needs. A turn has: request,
 * retries, reply, failure, calls, repairs, accepted, rolledBack, answers.
 */
export class Story {
  constructor() {
    this.agents = new Map(); // path → {items, current, requests}
    this.requests = []; // turns that asked the model, in the order of asking
    this.landmarks = { repair: [], rollback: [], failure: [], eviction: [], agent: [], decision: [] };
    this.started = null;
    this.ended = null; // the item of the run's end
    this.count = 0;
    this.lastTime = 0;
    this.version = 0;
  }

  add(event) {
    this.count = Math.max(this.count, event.seq + 1);
    this.lastTime = event.time;
    this.version += 1;
    const handler = HANDLERS[event.type] ?? addOther;
    handler(this, event, this.agent(event.agent ?? "main"));
  }

  agent(path) {
    let agent = this.agents.get(path);
    if (!agent) {
      agent = { path, items: [], current: null, since: [], calls: new Map(), turns: new Map() };
      this.agents.set(path, agent);
    }
    return agent;
  }

  item(agent, event, kind, rest = {}) {
    const depth = agent.path.split("/").length - 1;
    const item = { kind, agent: agent.path, depth, seq: event.seq, last: event.seq, time: event.time, event, ...rest };
    agent.items.push(item);
    return item;
  }

  note(name, item) {
    const list = this.landmarks[name];
    if (list.at(-1) !== item) list.push(item);
  }

  /** All items in reading order. */
  items() {
    const children = new Map(); // path → call handle → paths of the agents that the call started
    for (const path of this.agents.keys()) {
      const parent = path.slice(0, path.lastIndexOf("/"));
      if (!parent || !this.agents.has(parent)) continue;
      if (!children.has(parent)) children.set(parent, new Map());
      const byHandle = children.get(parent);
      if (!byHandle.has(handleOf(path))) byHandle.set(handleOf(path), []);
      byHandle.get(handleOf(path)).push(path);
    }
    const found = [];
    const walk = (path) => {
      const waiting = new Map(children.get(path) ?? []);
      for (const item of this.agents.get(path).items) {
        found.push(item);
        for (const call of item.calls ?? []) {
          const started = waiting.get(call.handle) ?? [];
          waiting.delete(call.handle);
          started.forEach(walk);
        }
      }
      for (const started of waiting.values()) started.forEach(walk);
    };
    const roots = [...this.agents.keys()].filter((path) => {
      const parent = path.slice(0, path.lastIndexOf("/"));
      return !parent || !this.agents.has(parent);
    });
    for (const root of roots) walk(root);
    const end = found.findIndex((item) => item.kind === "answer");
    if (end >= 0) found.push(...found.splice(end, 1)); // the answer is last, also beside agents that were cut off
    return found;
  }
}

function handleOf(path) {
  return path.slice(path.lastIndexOf("/") + 1).split(":")[0];
}

function newTurn(story, event, agent) {
  const turn = story.item(agent, event, "turn", {
    request: event.type === "ModelRequested" ? event : null,
    causes: agent.since,
    number: event.turn ?? 0,
    purpose: event.purpose ?? "act",
    retries: [],
    partial: "", // of a reply that is still written
    reply: null,
    failure: null,
    calls: [],
    repairs: [],
    accepted: null,
    rolledBack: null,
    answers: [],
    notes: [],
  });
  agent.since = [];
  const open = agent.current?.purpose === "act" && !agent.current.accepted ? agent.current : null;
  if (["reason", "weigh"].includes(turn.purpose)) turn.weighed = open; // it continues afterwards
  agent.current = turn;
  if (turn.request) story.requests.push(turn);
  return turn;
}

function currentTurn(story, event, agent) {
  return touch(agent.current ?? newTurn(story, event, agent), event);
}

function touch(item, event) {
  item.last = event.seq;
  item.changed = true;
  return item;
}

function callOf(turn, index, handle) {
  let call = handle ? turn.calls.find((each) => each.handle === handle) : undefined;
  call ??= turn.calls.find((each) => each.index === index && !each.handle);
  if (!call) {
    call = { index, handle: "", name: "", arguments: null, started: null, finished: null, shown: null, proposed: false };
    turn.calls.push(call);
  }
  if (handle) call.handle = handle;
  return call;
}

const HANDLERS = {
  RunStarted(story, event, agent) {
    story.started = event;
    story.item(agent, event, "task");
  },
  RunResumed(story, event, agent) {
    if (story.ended) Object.assign(story.ended, { kind: "stopped", changed: true }); // it was not the end
    story.ended = null;
    story.item(agent, event, "resumed");
  },
  AgentStarted(story, event, agent) {
    story.note("agent", story.item(agent, event, "agent"));
  },
  AgentEnded(story, event, agent) {
    story.item(agent, event, "report");
  },
  AttemptStarted(story, event, agent) {
    agent.current = null;
    agent.since.push(event);
    if (event.attempt > 0 || event.experiences.length) story.item(agent, event, "attempt");
  },
  AttemptEnded(story, event, agent) {
    if (event.experience || event.answer === null) story.item(agent, event, "attemptEnded");
  },
  ModelRequested(story, event, agent) {
    // The same request again: the run was resumed, or the transport lost it.
    const again = agent.current?.request?.call === event.call && !agent.current.reply;
    if (!again) newTurn(story, event, agent);
  },
  ModelRetried(story, event, agent) {
    currentTurn(story, event, agent).retries.push(event);
  },
  ServerAsked() {}, // the answer follows
  ServerTold(story, event, agent) {
    story.item(agent, event, "serverTold");
  },
  CheckpointReached(story, event, agent) {
    story.item(agent, event, "checkpoint");
  },
  ReplyStreamed(story, event, agent) {
    const turn = currentTurn(story, event, agent);
    turn.partial = (event.offset ? turn.partial : "") + textOf(event.text);
  },
  ModelReplied(story, event, agent) {
    const turn = currentTurn(story, event, agent);
    turn.reply = event;
    if (turn.weighed) agent.current = turn.weighed;
    event.tool_calls.forEach((each, index) => {
      const call = callOf(turn, index, "");
      Object.assign(call, { name: textOf(each.name), arguments: each.arguments, proposed: true });
    });
  },
  ModelFailed(story, event, agent) {
    const turn = currentTurn(story, event, agent);
    turn.failure = event;
    if (turn.weighed) agent.current = turn.weighed;
    story.note("failure", turn);
  },
  ToolStarted(story, event, agent) {
    const turn = currentTurn(story, event, agent);
    const call = callOf(turn, event.index, event.handle);
    Object.assign(call, { name: event.name, arguments: event.arguments, started: event });
    agent.calls.set(event.handle, [turn, call]);
  },
  ToolFinished(story, event, agent) {
    const [turn, call] = agent.calls.get(event.handle) ?? [];
    const found = turn ? call : callOf(currentTurn(story, event, agent), 0, event.handle);
    found.finished = event;
    found.name ||= event.name;
    const owner = touch(turn ?? agent.current, event);
    if (!event.ok) story.note("failure", owner);
  },
  Repaired(story, event, agent) {
    const turn = currentTurn(story, event, agent);
    turn.repairs.push(event);
    story.note("repair", turn);
  },
  TurnAccepted(story, event, agent) {
    const turn = currentTurn(story, event, agent);
    turn.accepted = event;
    for (const returned of event.returns) {
      const call = callOf(turn, returned.call, returned.handle);
      call.shown = returned;
      const made = event.calls[returned.call];
      if (made && !call.started) Object.assign(call, { name: textOf(made.name), arguments: made.arguments });
    }
    if (!story.started?.origin?.proxy) return;
    event.calls.forEach((made, index) => // the client runs them
      Object.assign(callOf(turn, index, ""), { name: textOf(made.name), arguments: made.arguments, passedOn: true }));
  },
  TurnRolledBack(story, event, agent) {
    const turn = currentTurn(story, event, agent);
    turn.rolledBack = event;
    agent.since.push(event);
    story.note("rollback", turn);
  },
  AnswerSeen(story, event, agent) {
    currentTurn(story, event, agent).answers.push(event);
  },
  Evicted(story, event, agent) {
    agent.since.push(event);
    story.note("eviction", story.item(agent, event, "evicted"));
  },
  Compacted(story, event, agent) {
    agent.since.push(event);
    story.note("eviction", story.item(agent, event, "compacted"));
  },
  ToolsChanged(story, event, agent) {
    agent.since.push(event);
    story.item(agent, event, "toolsChanged");
  },
  DecisionRequested(story, event, agent) {
    story.note("decision", story.item(agent, event, "decision"));
  },
  DecisionMade(story, event, agent) {
    story.item(agent, event, "decided");
  },
  Noted(story, event, agent) {
    if (event.name === "Dialect") agent.since.push(event);
    story.item(agent, event, "note");
  },
  RunEnded(story, event, agent) {
    story.ended = story.item(agent, event, event.status === "waiting" ? "stopped" : "answer");
  },
};

function addOther(story, event, agent) {
  story.item(agent, event, "other");
}

/** What a request used: tokens from the cache, new ones, written ones, and those written into the cache. */
export function usageOf(turn) {
  const usage = (turn.reply ?? turn.failure)?.usage ?? {};
  const input = usage.input_tokens ?? 0;
  const cached = Math.min(usage.cache_read_tokens ?? 0, input);
  return {
    input,
    cached,
    fresh: input - cached,
    written: usage.output_tokens ?? 0,
    stored: usage.cache_write_tokens ?? 0,
    cost: usage.cost_usd ?? null,
    ms: (turn.reply ?? turn.failure)?.ms ?? null,
  };
}

/** What the turns of a run add up to. */
export function totalsOf(story) {
  const totals = {
    turns: 0, requests: 0, input: 0, cached: 0, written: 0, cost: null, calls: 0, failedCalls: 0, repairs: 0, rollbacks: 0,
  };
  let priced = true;
  for (const agent of story.agents.values()) {
    for (const item of agent.items) {
      if (item.kind !== "turn") continue;
      const usage = usageOf(item);
      totals.requests += item.request ? 1 : 0;
      totals.turns += item.agent === "main" && item.purpose === "act" && !item.rolledBack && item.reply ? 1 : 0;
      totals.input += usage.input;
      totals.cached += usage.cached;
      totals.written += usage.written;
      if (usage.cost !== null) totals.cost = (totals.cost ?? 0) + usage.cost;
      else if (usage.input) priced = false;
      totals.calls += item.calls.filter((call) => call.started).length;
      totals.failedCalls += item.calls.filter((call) => call.finished && !call.finished.ok).length;
      totals.repairs += item.repairs.length;
      totals.rollbacks += item.rolledBack ? 1 : 0;
    }
  }
  if (!priced) totals.cost = null;
  return totals;
}

/** Load a whole run: {run, story}. Stops early when `isWanted` says so. */
export async function loadStory(id, isWanted = () => true) {
  const story = new Story();
  for (;;) {
    const { run, events } = await listEvents(id, story.count, AT_ONCE);
    for (const event of events) story.add(event);
    if (events.length < AT_ONCE || !isWanted()) return { run, story };
  }
}
