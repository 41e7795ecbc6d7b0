"""Run a task again on the effects of a recorded run. Equal effects are taken from the record, in any order."""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from closeout.codec import value_or_text
from closeout.errors import JournalError
from closeout.journal.events import (
    AgentStarted,
    DecisionMade,
    DecisionRequested,
    Event,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    RunStarted,
    ServerAsked,
    ServerTold,
    ToolFinished,
    ToolStarted,
)
from closeout.journal.recorded import CANCELLED, REPLY_INTERRUPTED
from closeout.journal.run_journal import Journal
from closeout.journal.run_names import new_run_id
from closeout.lab.saved_lanes import SavedLane
from closeout.messages import ToolSpec, Usage
from closeout.run.agent_tool import SubAgentTool
from closeout.run.files_of_run import Load
from closeout.run.middleware.background import wait_tool
from closeout.run.plan import MAX_DEPTH, AgentPlan
from closeout.run.programs import program_tool
from closeout.run.subagents import read_result_tool
from closeout.tools.approval_rules import as_text
from closeout.tools.executor import renamed

__all__ = ["CostLimit", "KnownTools", "RecordedEffects", "WhatIfJournal", "shown"]


@dataclass
class CostLimit:
    """The most that the requests of many runs may cost together. Requests in flight may exceed it.

    Attributes:
        limit: Dollars; None for no limit.
        spent: Dollars so far.
        reached: Why no further request is sent; empty if it may be.
    """

    limit: float | None = None
    spent: float = 0.0
    reached: str = ""

    def charge(self, usage: Usage) -> None:
        """Add the cost of a request. An unknown price reaches the limit, which cannot be kept without it."""
        self.spent += usage.cost_usd or 0.0
        if self.limit is None:
            return
        if usage.cost_usd is None and usage.requests:
            self.reached = "limit_cost cannot be kept: the price of the model is unknown. State it as llm.prices."
        elif self.spent >= self.limit:
            self.reached = f"The cost limit of {self.limit:g} USD is reached."


class KnownTools:
    """The tools of an agent and of the agents below it, by name. Its servers must be running."""

    def __init__(self, plan: AgentPlan) -> None:
        self._specs: defaultdict[str, list[ToolSpec]] = defaultdict(list)
        self._inner: set[str] = {spec.name for spec in plan.manager.search_specs}
        self._outer: set[str] = set()
        self._add(plan, MAX_DEPTH)
        self._successors = {
            former: name
            for name, specs in self._specs.items()
            for spec in specs
            for former in spec.policy.replaces
            if former not in self._specs
        }

    def _add(self, plan: AgentPlan, depth: int) -> None:
        for spec in plan.manager.specs():
            self._specs[spec.name].append(spec)
        for tool in plan.manager.local_tools:
            is_inner = isinstance(tool, SubAgentTool) or tool in (read_result_tool, program_tool, wait_tool)
            (self._inner if is_inner else self._outer).add(tool.spec.name)
            if isinstance(tool, SubAgentTool) and depth:
                self._add(tool.plan_of(False), depth - 1)

    def is_inner(self, started: ToolStarted) -> bool:
        """True for agents, programs and the reading of results: their effects pass through the journal too."""
        return started.server_name is None and started.name in self._inner and started.name not in self._outer

    def only_reads(self, started: ToolStarted | DecisionRequested) -> bool:
        """True if every tool of this name is declared to have no effects. Unknown tools count as having effects."""
        specs = self._specs.get(started.name, [])
        if isinstance(started, ToolStarted):
            specs = [spec for spec in specs if spec.server_name == started.server_name]
        return bool(specs) and all(spec.policy.only_reads for spec in specs)

    def canonical(self, name: str, arguments: str) -> tuple[str, str]:
        """Return a call in the form for comparisons: with current names and defaults, and sorted keys."""
        name = self._successors.get(name, name)
        values = value_or_text(arguments)
        if isinstance(values, dict) and name in self._specs:
            values = renamed(values, self._specs[name][0].policy)
        return name, as_text(values)


class _Requests:
    """Rebuilds requests from events, which record only changes, and returns their digests."""

    def __init__(self, model: str) -> None:
        self._models = {"main": model}
        self._messages: dict[str, list[Any]] = {}
        self._prompts: dict[str, str] = {}
        self._tools: dict[str, str] = {}

    def note(self, event: Event) -> None:
        """Note the model of a new agent."""
        if isinstance(event, AgentStarted):
            self._models[event.agent] = event.model

    def digest(self, event: ModelRequested) -> str:
        """Return the digest of the model, the prompt, the tools, the settings and the purpose of a request."""
        agent = event.agent
        if event.tools:
            self._tools[agent] = event.tools
        if event.messages:
            self._messages[agent] = [*self._messages.get(agent, [])[: event.kept], *event.added]
            prompt: Any = self._messages[agent]
        else:
            text = "".join(str(each.get("prompt", "")) for each in event.added)
            self._prompts[agent] = prompt = self._prompts.get(agent, "")[: event.shared] + text
        model = self._models.get(agent, self._models["main"])
        request = as_text([model, prompt, self._tools.get(agent, ""), event.temperature, event.options, event.purpose])
        return hashlib.sha256(request.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class RecordedEffects:
    """The outcomes of a recorded run, by their requests and calls.

    Attributes:
        replies: The outcomes of requests by digest.
        results: The results of tool calls by canonical call.
        decisions: Decisions by kind and canonical call.
        told: The facts that servers stated about themselves.
        calls: The agent and the canonical call of each call, in order.
        lacks_prompts: True if the prompts were not recorded.
        model: The name of the main agent's model.
    """

    replies: dict[str, deque[ModelReplied | ModelFailed]] = field(default_factory=dict)
    results: dict[tuple[str, str], deque[ToolFinished]] = field(default_factory=dict)
    decisions: dict[tuple[str, str, str], deque[DecisionMade]] = field(default_factory=dict)
    told: dict[tuple[str, str], ServerTold] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    lacks_prompts: bool = False
    model: str = ""

    @classmethod
    def of(cls, events: Iterable[Event], tools: KnownTools) -> RecordedEffects:
        """Return the outcomes among the events of a run that has ended."""
        found = cls()
        requests = _Requests("")
        asked: dict[tuple[str, int], str] = {}
        called: dict[tuple[str, str], tuple[str, str]] = {}
        waited: dict[tuple[str, str], tuple[str, str, str]] = {}
        for event in events:
            requests.note(event)
            if isinstance(event, RunStarted):
                found.model = str(event.fingerprint.get("model", ""))
                requests = _Requests(found.model)
            elif isinstance(event, ModelRequested):
                found.lacks_prompts |= not event.added and event.kept < max(event.messages, 1)
                asked[event.agent, event.call] = requests.digest(event)
            elif isinstance(event, (ModelReplied, ModelFailed)):
                digest = asked.pop((event.agent, event.call), "")
                if not (isinstance(event, ModelFailed) and event.kind in (CANCELLED, REPLY_INTERRUPTED)):
                    found.replies.setdefault(digest, deque()).append(event)
            elif isinstance(event, ToolStarted):
                key = tools.canonical(event.name, event.arguments)
                if (event.agent, event.handle) not in called:
                    found.calls.append((event.agent, shown(key)))
                called[event.agent, event.handle] = key
            elif isinstance(event, ToolFinished):
                done = called.get((event.agent, event.handle))
                if done is not None:
                    found.results.setdefault(done, deque()).append(event)
            elif isinstance(event, DecisionRequested):
                waited[event.agent, event.request] = (event.kind, *tools.canonical(event.name, event.arguments))
            elif isinstance(event, DecisionMade):
                wanted = waited.get((event.agent, event.request))
                if wanted is not None:
                    found.decisions.setdefault(wanted, deque()).append(event)
            elif isinstance(event, ServerTold):
                found.told[event.agent, event.what] = event
        return found


def shown(key: Sequence[str]) -> str:
    """Return a canonical call as people see it."""
    return f"{key[0]}({key[1]})"


class WhatIfJournal(Journal):
    """The journal of a run in memory. Effects equal to recorded ones are taken from the record.

    A request that is not in the record is sent. A call that is not in it is made only if its tool only reads and that
    is allowed; otherwise the run ends, and `left` has the call. The lane keeps the events.

    Args:
        started: The first event.
        recorded: The recorded outcomes, which are consumed.
        tools: The tools of the agent.
        lane: Saves the run from its first paid request on.
        load: Returns the content of a recorded file by its SHA-256.
        allow_read_only: Run tools that only read for calls that are not in the record.
        cost: The cost limit of the requests.
        ask_from: The number of the first request that is always sent; None to send only requests that differ.

    Attributes:
        tools: The tools of the agent.
        left: The call that the run wanted to make and the record does not have.
        problem: Why the run was ended: it left the record, or the cost limit is reached.
        calls: The agent, name and arguments of each call in order, with the one that it wanted to make.
        requests_paid: The number of requests sent to the model.
        paid: Their usage.
        first_paid: The number of the first one in the run, None if none was sent.
    """

    def __init__(
        self,
        started: RunStarted,
        recorded: RecordedEffects,
        tools: KnownTools,
        lane: SavedLane,
        *,
        load: Load,
        allow_read_only: bool = False,
        cost: CostLimit | None = None,
        ask_from: int | None = None,
    ) -> None:
        super().__init__(new_run_id(), None, 0)
        self._record = recorded
        self.tools = tools
        self._lane = lane
        self._load = load
        self._allow_read_only = allow_read_only
        self._cost = cost or CostLimit()
        self._ask_from = ask_from
        self._model = str(started.fingerprint.get("model", ""))
        self._requests = _Requests(self._model)
        self._asked = 0
        self.left = ""
        self.problem = ""
        self.calls: list[tuple[str, str, str]] = []
        self.requests_paid = 0
        self.paid = Usage()
        self.first_paid: int | None = None
        self.append(started)
        self.started = self.subscribers.run.started = self._opening = started

    def _write(self, event: Event, *, durable: bool = False) -> None:
        self._requests.note(event)
        super()._write(event, durable=durable)
        self._lane.add(event)

    def _doing(self, started: Event, run: Callable[[], Awaitable[Event]]) -> Callable[[], Awaitable[Event]]:
        return partial(self._outcome, started, run)

    async def _outcome(self, started: Event, run: Callable[[], Awaitable[Event]]) -> Event:
        """Return the recorded outcome of an equal effect, or execute the effect if allowed.

        Raises:
            JournalError: The effect is not allowed: the run has left the record.
        """
        found = self._found(started)
        if found is not None:
            return found
        return await (self._ask(started, run) if isinstance(started, ModelRequested) else run())

    def _found(self, started: Event) -> Event | None:
        if isinstance(started, ModelRequested):
            digest, number = self._requests.digest(started), self._asked
            self._asked += 1
            due = self._record.replies.get(digest)
            if due and (self._ask_from is None or number < self._ask_from):
                return _of_request(due.popleft(), started)
            self.first_paid = number if self.first_paid is None else self.first_paid
        elif isinstance(started, ToolStarted):
            return self._result(started)
        elif isinstance(started, DecisionRequested):
            return self._decision(started)
        elif isinstance(started, ServerAsked) and self._model == self._record.model:
            return self._record.told.get((started.agent, started.what))
        return None

    async def _ask(self, started: ModelRequested, run: Callable[[], Awaitable[Event]]) -> Event:
        if self._cost.reached:
            self._stop(self._cost.reached)
        await self._lane.begin(self)
        outcome = await run()
        self._lane.note_paid(started)
        self.requests_paid += 1
        usage = Usage(**outcome.usage) if isinstance(outcome, (ModelReplied, ModelFailed)) else Usage()
        self.paid += usage
        self._cost.charge(usage)
        return outcome

    def _result(self, started: ToolStarted) -> Event | None:
        self.calls.append((started.agent, started.name, started.arguments))
        if self.tools.is_inner(started):
            return None
        key, only_reads = self.tools.canonical(started.name, started.arguments), self.tools.only_reads(started)
        if due := self._record.results.get(key):
            finished = due[0] if only_reads and len(due) == 1 else due.popleft()
            return replace(finished, agent=started.agent, handle=started.handle, name=started.name)
        if not (only_reads and self._allow_read_only):
            self._leave(started)
        return None

    def _decision(self, request: DecisionRequested) -> Event:
        key = self.tools.canonical(request.name, request.arguments)
        due = self._record.decisions.get((request.kind, *key))
        place: Mapping[str, Any] = {"agent": request.agent, "request": request.request, "digest": request.digest}
        if due:
            return replace(due.popleft(), idle=0.0, **place)
        allowed = self._allow_read_only and self.tools.only_reads(request)
        if request.kind != "approval" or not (self._record.results.get(key) or allowed):
            self.calls.append((request.agent, request.name, request.arguments))
            self._leave(request)
        return DecisionMade(verdict="approve", by="the record", **place)

    def _leave(self, wanted: ToolStarted | DecisionRequested) -> None:
        self.left = shown((wanted.name, as_text(value_or_text(wanted.arguments))))
        self._stop(f"The run left the record: it wants to call {self.left}.")

    def _stop(self, problem: str) -> None:
        """End the run. The journal fails from now on, so that no tool or sub-agent can swallow the error."""
        self.problem = problem
        self._failure = JournalError(problem)
        raise self._failure


def _of_request(outcome: ModelReplied | ModelFailed, started: ModelRequested) -> Event:
    if isinstance(outcome, ModelFailed):
        return replace(outcome, agent=started.agent, call=started.call)
    # Tokens are recorded relative to the previous request's, which may differ here.
    return replace(outcome, agent=started.agent, call=started.call, tokens="")
