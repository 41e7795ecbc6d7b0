"""The story of a run: its events as a tree of agents, turns, requests and calls, built one event at a time. No I/O.

A turn is what begins with a request to the model: its reply, what was repaired, the calls and their results, and how it
ended. A call that started a sub-agent has its story below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from closeout.journal.events import (
    AnswerSeen,
    AttemptStarted,
    Compacted,
    DecisionMade,
    DecisionRequested,
    Event,
    Evicted,
    FlowDecided,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    ModelRetried,
    Noted,
    Repaired,
    ReplyStreamed,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolFinished,
    ToolsChanged,
    ToolStarted,
    TurnAccepted,
    TurnRolledBack,
)
from closeout.messages import Usage
from closeout.records import record

__all__ = ["AgentStory", "AgentThought", "CallStory", "Change", "RequestStory", "Story", "TurnStory", "agent_thoughts"]

# Requests with these purposes have a turn of their own. Any other is an extra request of the turn that it is sent in.
PURPOSES = ("act", "close", "experience", "compact")


@dataclass(slots=True, eq=False)
class RequestStory:
    """A request to the model, and its outcome as far as it is known.

    Attributes:
        turn: The turn that it was sent in.
        intent: The request; None if the record lacks it.
        causes: The events since the agent's previous request that change what the prompt begins with.
        retries: How often the transport sent it again, and why.
        pieces: The text of a reply that is being written.
    """

    turn: TurnStory = field(repr=False)
    intent: ModelRequested | None = None
    causes: list[Event] = field(default_factory=list)
    retries: list[ModelRetried] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    reply: ModelReplied | None = None
    failure: ModelFailed | None = None

    @property
    def purpose(self) -> str:
        return "act" if self.intent is None else self.intent.purpose

    @property
    def is_extra(self) -> bool:
        """True if no turn is read from the reply."""
        return self.purpose not in PURPOSES


@dataclass(slots=True, eq=False)
class CallStory:
    """A call that a reply contains.

    Attributes:
        turn: The turn of the call.
        index: Its place in the reply.
        handle: Its name in its agent; empty until it starts or is refused.
        name: The tool, as it is called; until then as the model wrote it.
        arguments: The arguments, JSON text or a value, in the same way.
        decision: The decision of a person that it needs.
        decided: That decision, once it is made.
        flow: What the flow rules decided.
        shown: Its result as the model sees it, an item of `TurnAccepted.returns`.
        agents: The sub-agents that it started.
    """

    turn: TurnStory = field(repr=False)
    index: int
    handle: str = ""
    name: str = ""
    arguments: Any = None
    decision: DecisionRequested | None = None
    decided: DecisionMade | None = None
    flow: FlowDecided | None = None
    started: ToolStarted | None = None
    finished: ToolFinished | None = None
    shown: Mapping[str, Any] | None = None
    agents: list[AgentStory] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class TurnStory:
    """A turn: the request that it was read from, and what became of the reply.

    Attributes:
        number: The number of the turn in its attempt.
        request: The request whose reply the turn was read from; None if there was none.
        extras: The requests with other purposes that were sent during the turn.
        rolled_back: Set if the reply is withdrawn.
    """

    number: int = 0
    request: RequestStory | None = None
    extras: list[RequestStory] = field(default_factory=list)
    calls: list[CallStory] = field(default_factory=list)
    repairs: list[Repaired] = field(default_factory=list)
    answers: list[AnswerSeen] = field(default_factory=list)
    accepted: TurnAccepted | None = None
    rolled_back: TurnRolledBack | None = None
    handles: dict[str, CallStory] = field(default_factory=dict, repr=False)  # the calls by their handles
    proposed: dict[int, CallStory] = field(default_factory=dict, repr=False)  # those without one, by their places

    @property
    def purpose(self) -> str:
        return "act" if self.request is None else self.request.purpose

    @property
    def request_number(self) -> int:
        """The number of the request, or of the last extra one for a turn that has no request of its own."""
        requests = (self.request, *reversed(self.extras))
        return next((each.intent.call for each in requests if each is not None and each.intent is not None), 0)

    @property
    def reply(self) -> ModelReplied | None:
        """The reply that the turn was read from."""
        return None if self.request is None else self.request.reply

    @property
    def is_open(self) -> bool:
        """True until the turn is accepted or rolled back."""
        return self.accepted is None and self.rolled_back is None


Item: TypeAlias = TurnStory | Event


@dataclass(slots=True, eq=False)
class AgentStory:
    """The actions of an agent.

    Attributes:
        path: Its path, such as "main/r4:researcher".
        caller: The call that started it; None for the main agent, or if the record lacks the call.
        attempt: The number of its current attempt.
        turn: Its current turn.
        running: Its calls that have started and not finished, by their handles.
        items: Its turns, and the events that belong to no turn, in order.
    """

    path: str
    caller: CallStory | None = None
    attempt: int = 0
    turn: TurnStory | None = None
    running: dict[str, CallStory] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    requests: dict[int, RequestStory] = field(default_factory=dict)  # requests without a reply, keyed by number
    causes: list[Event] = field(default_factory=list)  # what changes the prompt of the next request


@record
class Change:
    """The place of an event in the story: the agent, and the turn, the request and the call if it belongs to one."""

    agent: AgentStory
    turn: TurnStory | None = None
    request: RequestStory | None = None
    call: CallStory | None = None


class Story:
    """Gathers the events of a run. Pass each to `feed`, in order.

    The nodes are the story's own: read them, but do not change them.

    Args:
        whole: Keep all items. Without it only what is current is kept, for those who read the story as it happens.

    Attributes:
        agents: The agents by their paths, in the order in which they appeared.
        started: The start of the run.
        ended: The end of the run, unless it was resumed since.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole
        self.agents: dict[str, AgentStory] = {}
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None

    def feed(self, event: Event) -> Change:
        """Add an event, and return its place. The cost does not depend on what came before."""
        agent = self.agent(event.agent)
        match event:
            case ModelRequested():
                return self._requested(agent, event)
            case ModelRetried() | ReplyStreamed() | ModelReplied() | ModelFailed():
                return self._answered(agent, event)
            case ToolStarted():
                return self._tool_started(agent, event)
            case ToolFinished():
                return self._tool_finished(agent, event)
            case Repaired():
                turn = self._current(agent)
                turn.repairs.append(event)
                return Change(agent, turn)
            case AnswerSeen():
                turn = self._current(agent)
                turn.answers.append(event)
                return Change(agent, turn)
            case TurnAccepted():
                return self._accepted(agent, event)
            case DecisionRequested() | DecisionMade() | FlowDecided():
                self._decision(agent, event)
            case TurnRolledBack():
                turn = self._current(agent, event.turn)
                turn.rolled_back = event
                agent.causes.append(event)
                return Change(agent, turn)
            case RunStarted():
                self.started = event
            case RunEnded() | RunResumed():
                self.ended = event if isinstance(event, RunEnded) else None
            case AttemptStarted():
                agent.attempt, agent.turn = event.attempt, None
                agent.causes.append(event)
            case Evicted() | Compacted() | ToolsChanged() | Noted(name="Dialect"):
                agent.causes.append(event)
        self._add(agent, event)
        return Change(agent)

    # ------------------------------------------------------------------------------------------ agents and turns

    def agent(self, path: str) -> AgentStory:
        """Return the agent with a path, which may be new."""
        return self.agents.get(path) or self._new_agent(path)

    def _new_agent(self, path: str) -> AgentStory:
        agent = self.agents[path] = AgentStory(path)
        above, _, name = path.rpartition("/")
        if above in self.agents:
            agent.caller = self.agents[above].running.get(name.partition(":")[0])
            if agent.caller is not None:
                agent.caller.agents.append(agent)
        return agent

    def _add(self, agent: AgentStory, item: Item) -> None:
        if self._whole:
            agent.items.append(item)

    def _new_turn(self, agent: AgentStory, number: int) -> TurnStory:
        turn = agent.turn = TurnStory(number)
        self._add(agent, turn)
        return turn

    def _current(self, agent: AgentStory, number: int = 0) -> TurnStory:
        return agent.turn or self._new_turn(agent, number)

    # ------------------------------------------------------------------------------------------ requests

    def _requested(self, agent: AgentStory, event: ModelRequested) -> Change:
        request = agent.requests.get(event.call)
        if request is not None:
            return Change(agent, request.turn, request)  # sent again: the run was resumed
        turn, is_extra = agent.turn, event.purpose not in PURPOSES
        # An extra request may come before the one that the turn is read from.
        if turn is None or not turn.is_open or turn.purpose != "act" or not (is_extra or turn.request is None):
            turn = self._new_turn(agent, event.turn)
        request = agent.requests[event.call] = RequestStory(turn, event, agent.causes)
        agent.causes = []
        if is_extra:
            turn.extras.append(request)
        else:
            turn.request = request
        return Change(agent, turn, request)

    def _answered(self, agent: AgentStory, event: ModelRetried | ReplyStreamed | ModelReplied | ModelFailed) -> Change:
        """Add what becomes of a request."""
        request = agent.requests.get(event.call)
        if request is None:
            turn = self._current(agent)
            request = turn.request = turn.request or RequestStory(turn)
        turn = request.turn
        match event:
            case ModelRetried():
                request.retries.append(event)
            case ReplyStreamed():
                if not event.offset:
                    request.pieces.clear()
                request.pieces.append(event.text)
            case ModelFailed():
                request.failure = event
            case ModelReplied():
                request.reply = event
                agent.requests.pop(event.call, None)
                for index, made in enumerate(event.tool_calls if request is turn.request else ()):
                    call = _call(turn, index)
                    call.name, call.arguments = str(made.get("name")), made.get("arguments")
        return Change(agent, turn, request)

    # ------------------------------------------------------------------------------------------ calls

    def _tool_started(self, agent: AgentStory, event: ToolStarted) -> Change:
        turn = self._current(agent, event.turn)
        call = agent.running[event.handle] = _call(turn, event.index, event.handle)
        call.name, call.arguments, call.started = event.name, event.arguments, event
        return Change(agent, turn, call=call)

    def _decision(self, agent: AgentStory, event: DecisionRequested | DecisionMade | FlowDecided) -> None:
        if agent.turn is None:
            return
        if isinstance(event, DecisionMade):
            for each in agent.turn.calls:
                if each.decision is not None and each.decision.request == event.request:
                    each.decided = event
            return
        # A call that needs approval has not started, so its place in the reply is not recorded.
        handle, field = (event.handle, "flow") if isinstance(event, FlowDecided) else (event.request, "decision")
        calls = agent.turn.proposed.values()
        alike = (call for call in calls if call.name == event.name and getattr(call, field) is None)
        call = agent.turn.handles.get(handle.partition(".")[0]) or next(alike, None)
        if call is not None:
            setattr(call, field, event)

    def _tool_finished(self, agent: AgentStory, event: ToolFinished) -> Change:
        call = agent.running.pop(event.handle, None) or _call(self._current(agent), 0, event.handle)
        call.finished = event
        call.name = call.name or event.name
        return Change(agent, call.turn, call=call)

    def _accepted(self, agent: AgentStory, event: TurnAccepted) -> Change:
        turn = self._current(agent, event.turn)
        turn.accepted = event
        shown = {returned["call"]: returned for returned in event.returns}
        for index in sorted({*shown, *range(len(event.calls))}):
            returned = shown.get(index)
            call = _call(turn, index, "" if returned is None else str(returned["handle"]))
            call.shown = returned
            if call.started is None and index < len(event.calls):
                call.name, call.arguments = str(event.calls[index]["name"]), event.calls[index]["arguments"]
        return Change(agent, turn)


def _call(turn: TurnStory, index: int, handle: str = "") -> CallStory:
    """Return the call of a turn with this handle, else the one in this place of the reply, which may be new."""
    call = turn.handles.get(handle) or turn.proposed.get(index)
    if call is None:
        call = CallStory(turn, index)
        turn.calls.append(call)
    if handle:
        turn.proposed.pop(index, None)
        call.handle = handle
        turn.handles[handle] = call
    else:
        turn.proposed[index] = call
    return call


# ------------------------------------------------------------------------------------------------ thoughts


@record(kw_only=True)
class AgentThought:
    """One step of an agent: its thought, its action and the observation.

    A turn with several calls has a step for each; its thought and its usage are those of the first.

    Attributes:
        position: The number of the step in the run, from 1.
        thought: What the model wrote before the action; for the last step its closing text.
        action: The name of the tool; empty for a step without a call.
        input: The arguments of the call.
        observation: The result as the model was shown it.
        answer: The answer, of the last step only.
        usage: The usage of the turn's requests.
    """

    position: int
    thought: str = ""
    action: str = ""
    input: Any = None
    observation: str = ""
    answer: str | None = None
    usage: Usage = field(default_factory=Usage)


def agent_thoughts(events: Iterable[Event]) -> tuple[AgentThought, ...]:
    """Return the steps of the main agent in all attempts, without the turns that were rolled back."""
    story = Story(whole=True)
    for event in events:
        story.feed(event)
    agent, found = story.agents.get("main", AgentStory("main")), list[AgentThought]()

    def add(turn: TurnStory | None, **fields: Any) -> None:
        found.append(AgentThought(position=len(found) + 1, usage=_usage_of(turn), **fields))

    turns = [item for item in agent.items if isinstance(item, TurnStory) and item.rolled_back is None]
    for turn in turns:
        if turn.accepted is None:
            continue
        thought, shown = turn.accepted.text, {each["call"]: each["text"] for each in turn.accepted.returns}
        if not turn.accepted.calls:
            add(turn, thought=thought)
        for index, call in enumerate(turn.accepted.calls):
            fields = {"action": call["name"], "input": call["arguments"], "observation": shown.get(index, "")}
            add(None if index else turn, thought="" if index else thought, **fields)
    if story.ended is not None and story.ended.answer is not None:
        last = turns[-1] if turns and turns[-1].accepted is None else None
        add(last, thought=story.ended.closing_text, answer=story.ended.answer)
    return tuple(found)


def _usage_of(turn: TurnStory | None) -> Usage:
    requests = () if turn is None else (turn.request, *turn.extras)
    replies = [each.reply for each in requests if each is not None and each.reply is not None]
    return sum((Usage(**reply.usage) for reply in replies if reply.usage), Usage())
