"""The events that a run consists of, and how they are read back from a row of the journal.

Every event names the agent it belongs to by its path: "main", and for a sub-agent "main/r4:researcher", where r4 is the
call that started it. The successor of an agent that handed the conversation over is "main/handoff:billing".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, field, fields
from typing import Any, ClassVar, TypeAlias

from closeout.codec import decode_json, encode_json
from closeout.errors import Failure
from closeout.messages import ModelReply, Repair, Step, ToolCall, ToolReturn, Usage
from closeout.records import record, shallow_dict

__all__ = [
    "EVENT_TYPES", "HANDOFF", "REFUSED_CALL", "REPLIED", "AgentEnded", "AgentStarted", "AnswerGiven", "AnswerSeen",
    "AttemptEnded", "AttemptStarted", "CallDecided", "CallRepeated", "CheckFinished", "CheckStarted",
    "CheckpointReached", "Compacted", "DecisionMade", "DecisionRequested", "Event", "Evicted", "FlowDecided",
    "HandedOver", "InstructionsWritten", "MessageReceived", "ModelFailed", "ModelReplied", "ModelRequested",
    "ModelRetried", "Noted", "Repaired", "ReplyStreamed", "RunEnded", "RunResumed", "RunStarted", "ServerAsked",
    "ServerTold", "TaskCreated", "ToolFinished", "ToolStarted", "ToolsChanged", "TurnAccepted", "TurnRolledBack",
    "Unknown", "attached_text", "event_from", "has_conversation", "is_unreadable", "read_event", "unreadable",
    "usage_record",
]  # fmt: skip


@record
class Event:
    """Something that happened. Field values are JSON values, so that every event can be stored as a row and read back.

    Attributes:
        bodies: fields that may be large. Long ones are stored once, by content hash.
        momentary: True for events that describe the process rather than the run (a note, a retry). They are written
            again when a resumed run reaches the same place.
        identity: the field that distinguishes this event from the agent's other events of the type. Empty if events
            of the type are numbered instead.
        names: the names of the fields.
        empty: the fields that are empty by default.
        values: returns the fields by name, as they are stored.
    """

    bodies: ClassVar[tuple[str, ...]] = ()
    momentary: ClassVar[bool] = False
    identity: ClassVar[str] = ""
    names: ClassVar[tuple[str, ...]] = ("agent",)
    empty: ClassVar[Mapping[str, Any]] = {}
    values: ClassVar[Callable[[Any], dict[str, Any]]]

    agent: str

    @property
    def key(self) -> str:
        """The identity of the event among its agent's events of the type; empty if they are numbered."""
        return str(getattr(self, self.identity)) if self.identity else ""


@record
class RunStarted(Event):
    """The run begins.

    Attributes:
        question: the task preceded by the texts of its files; empty if that is the task itself.
        earlier: the conversation before the task, a JSON list of messages.
        images: a JSON list of image parts.
        texts: the file texts that are not in the question, as `run.task.dump_texts` writes them.
        fingerprint: what identifies the agent. A resume compares it.
        origin: notes of the caller, for a later resume.
        name: the agent's name.
        tools: the tools that servers offered, as `run.lifecycle` writes them.
        forked: for a fork, the `run_id` of the run that it was made of and how many of its `events` it began with.
        notes: hints for the model, each with its `text` and the number of the first `request` that shows it.
        overrides: settings of this run only, as they were passed to `Agent.run`.
        state: the state that the run begins with.
        user: the person for whom it runs; empty if nobody is named.
        kept_files: the files that the run begins with, as `File.to_dict` describes them: those of the task, and in a
            session those that earlier messages left. Their content is stored by its SHA-256.
        handed: the agents that the conversation was handed over to before, one after the other.
        own_tools: a JSON list of the agent's own tools, each `[name, description, parameters]`.
        instructions: the agent's instructions, if they are a text.
        version: the agent's version, as its author calls it.
        labels: the labels of what the run begins with, "trusted" or "untrusted" first; empty without flow rules.
        start_at: when the run is to begin, in seconds since the epoch.
        announced: by what is announced ("ended", "waiting"), the agent whose processes do so.
    """

    bodies = ("task", "question", "earlier", "images", "texts", "tools", "own_tools", "instructions")
    task: str
    task_id: str = ""
    _: KW_ONLY
    question: str = ""
    earlier: str = ""
    images: str = ""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    ground_truth: str | None = None
    texts: str = ""
    name: str = ""
    tools: str = ""
    forked: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Mapping[str, Any], ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    user: str = ""
    kept_files: tuple[Mapping[str, Any], ...] = ()
    handed: tuple[str, ...] = ()
    own_tools: str = ""
    instructions: str = ""
    version: str = ""
    labels: tuple[str, ...] = ()
    start_at: float | None = None
    announced: Mapping[str, str] = field(default_factory=dict)


@record
class HandedOver(Event):
    """The agent hands the conversation over to another one, which continues it under the path `to`."""

    identity = "to"
    name: str
    to: str


@record
class InstructionsWritten(Event):
    """A function wrote the instructions of an agent. A resumed run keeps them."""

    identity = "agent"
    bodies = ("text",)
    text: str


@record
class MessageReceived(Event):
    """A message that the user sent to the running agent joins its conversation.

    Attributes:
        id: the name of the message, unique everywhere.
        request: the number of the agent's first request that has the message.
        sent: when it was sent, in seconds since the epoch.
        by: who sent it, as far as that is known.
        interrupts: whether it cancelled the reply that was being written.
    """

    identity = "id"
    bodies = ("text",)
    id: str
    request: int
    _: KW_ONLY
    text: str
    sent: float = 0.0
    by: str = ""
    interrupts: bool = False


@record
class RunResumed(Event):
    """A process resumes the run.

    Attributes:
        idle: seconds between the last event and this one, by the wall clock. They do not count against `max_seconds`.
            Negative if the clock was set back in between.
        differences: how the agent differs from the one that made the record.
        on_change: what the run does about them: "keep" or "take"; empty if there are none.
        fingerprint: as of `RunStarted`, if the run continues with something that it did not begin with. So are
            `instructions` and `own_tools`.
        overrides: the settings of this run alone, as of `RunStarted`, if they have changed.
    """

    momentary = True
    bodies = ("instructions", "own_tools")
    idle: float = 0.0
    differences: tuple[str, ...] = ()
    on_change: str = ""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    instructions: str = ""
    own_tools: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)


@record
class RunEnded(Event):
    """The run is over.

    Attributes:
        summary: the summary for people, in three sections.
        error: what went wrong, if anything did: the message of an `errors.Failure`, as `error_kind` and `permanent`.
        error_kind: the name of the exception that `error` is the text of.
        permanent: whether the same run would fail again.
        closing_text: the model's own closing text.
        candidates: other answers that appeared, best first, each with its share of the vote.
    """

    momentary = True
    bodies = ("answer", "summary", "closing_text")
    status: str
    stop_reason: str
    _: KW_ONLY
    answer: str | None = None
    summary: str = ""
    error: str = ""
    error_kind: str = ""
    permanent: bool = False
    closing_text: str = ""
    candidates: tuple[Any, ...] = ()


@record
class AgentStarted(Event):
    """A sub-agent begins. `budget` has the keys that its requests are charged to beside those of its caller."""

    bodies = ("task",)
    name: str
    task: str
    _: KW_ONLY
    model: str = ""
    budget: tuple[str, ...] = ()


@record
class AgentEnded(Event):
    """A sub-agent is done. `report` is what its caller receives."""

    bodies = ("report",)
    status: str
    report: str = ""


@record
class AttemptStarted(Event):
    """An attempt begins. `experiences` are what earlier attempts learned."""

    attempt: int
    experiences: tuple[str, ...] = ()


@record
class AttemptEnded(Event):
    """An attempt is over. `turns` counts the replies that were acted on and the one that answered."""

    bodies = ("experience",)
    attempt: int
    reason: str
    _: KW_ONLY
    answer: str | None = None
    experience: str = ""
    turns: int = 0


@record
class ModelRequested(Event):
    """Intent: a request is about to be sent.

    Attributes:
        call: the agent's requests are numbered from 0.
        messages: the number of messages in the request.
        size: characters of the prompt.
        shared: characters at the start of the prompt that the previous request had too, which a prefix cache can serve.
        note: the hint that the prompt ends with, if any.
        kept: the number of messages at the start that are those of the agent's previous request.
        added: the messages after those, in the OpenAI chat shape. Of a text prompt, `{"prompt": …}` with what follows
            the `shared` characters.
        tools: the tools as a JSON list, if they differ from the previous request's: name, description, parameters.
        options: `top_p`, `max_tokens` and `extra_body`, as far as the request sets them.
    """

    identity = "call"
    bodies = ("tools",)
    call: int
    attempt: int = 0
    _: KW_ONLY
    turn: int = 0
    purpose: str = "act"  # act | close | experience | compact | probe, or the word that a strategy uses
    messages: int = 0
    size: int = 0
    shared: int = 0
    temperature: float | None = None
    note: str = ""
    kept: int = 0
    added: tuple[Mapping[str, Any], ...] = ()
    tools: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@record
class ModelRetried(Event):
    """The transport repeats a request, after `wait` seconds."""

    momentary = True
    call: int
    reason: str
    _: KW_ONLY
    wait: float = 0.0


@record
class ReplyStreamed(Event):
    """A piece of the text of a reply that the model is writing, recorded before clients of `closeout serve` get it.

    Attributes:
        call: the number of the request.
        offset: where in the text the piece begins, in characters. 0 replaces what was streamed before.
    """

    momentary = True
    call: int
    offset: int
    text: str


@record
class ModelReplied(Event):
    """Outcome of a request.

    Attributes:
        usage: the fields of `Usage`.
        ms: wall clock.
        tokens: the reply's tokens as `dump_tokens` writes them.
        attached: `ModelReply.attached` as JSON.
        reasoning_details: what journals of earlier versions hold instead; not used.
    """

    identity = "call"
    bodies = ("text", "reasoning", "tokens", "attached")
    call: int
    text: str = ""
    _: KW_ONLY
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str = "stop"
    usage: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    reasoning_details: Any = None
    ms: float = 0.0
    tokens: str = ""
    attached: str = ""

    @classmethod
    def of(cls, agent: str, call: int, reply: ModelReply, ms: float, tokens: str = "") -> ModelReplied:
        calls = [
            {"id": c.id, "name": c.name, "arguments": c.text or c.arguments, "server_name": c.server_name}
            for c in reply.tool_calls
        ]
        return cls(
            agent,
            call,
            reply.text,
            reasoning=reply.reasoning,
            tool_calls=tuple(calls),
            finish_reason=reply.finish_reason,
            usage=usage_record(reply.usage),
            model=reply.model,
            ms=ms,
            tokens=tokens,
            attached=attached_text(reply.attached),
        )

    def reply(self) -> ModelReply:
        calls = tuple(
            ToolCall(c["name"], c["arguments"], c["id"], server_name=c["server_name"], text=_text(c["arguments"]))
            for c in self.tool_calls
        )
        return ModelReply(
            self.text,
            self.reasoning,
            calls,
            finish_reason=self.finish_reason,
            usage=Usage(**self.usage),
            model=self.model,
            attached=_attached(self.attached),
        )


@record
class ModelFailed(Event):
    """Outcome of a request that failed. The fields are those of `errors.Failure`."""

    identity = "call"
    call: int
    kind: str
    _: KW_ONLY
    error: str
    usage: Mapping[str, Any] = field(default_factory=dict)
    status: int | None = None
    ms: float = 0.0
    permanent: bool = False

    @classmethod
    def of(cls, agent: str, call: int, failure: Failure, *, usage: Usage | None, ms: float) -> ModelFailed:
        return cls(
            agent,
            call,
            failure.kind,
            error=failure.message,
            usage=usage_record(usage),
            status=failure.status,
            ms=ms,
            permanent=failure.permanent,
        )

    def failure(self) -> Failure:
        return Failure(self.kind, self.error, self.status, permanent=self.permanent)


@record
class ServerAsked(Event):
    """Intent: the model's server is asked about itself. `what` is "context": how many tokens its context has."""

    identity = "what"
    what: str


@record
class ServerTold(Event):
    """Outcome of `ServerAsked`. `value` is None if the server does not know."""

    identity = "what"
    what: str
    value: Any = None


@record
class ToolStarted(Event):
    """Intent: a tool is about to run. `handle` ("r7") names the call in its agent, `index` (from 0) in its reply."""

    identity = "handle"
    bodies = ("arguments",)
    handle: str
    name: str
    _: KW_ONLY
    arguments: str
    turn: int = 0
    call_id: str = ""
    server_name: str | None = None
    index: int = 0


@record
class ToolFinished(Event):
    """Outcome of a tool call.

    Attributes:
        record: the ToolOutput as JSON text, without its token counts: see `TurnAccepted`.
        files: the files that the call left, as `File.to_dict` describes them, and `{"name": …, "removed": true}` for
            those that it removed. Their content is stored by its SHA-256.
        labels: the labels of the result, "trusted" or "untrusted" first; empty without flow rules.
    """

    identity = "handle"
    bodies = ("record",)
    handle: str
    name: str
    _: KW_ONLY
    ok: bool
    record: str
    ms: float = 0.0
    note: str = ""
    files: tuple[Mapping[str, Any], ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def result(self) -> Any:
        """What the tool returned, as JSON data; what went wrong is in `note`."""
        return json.loads(self.record).get("result")


@record
class FlowDecided(Event):
    """The decision of the flow rules on a call that depends on untrusted or labelled text.

    Attributes:
        decision: "ask" a person, "refuse" or "allow".
        reason: what speaks against the call, in one sentence.
        labels: those of what the call depends on.
        arguments: the arguments of the call, as JSON. The decision holds for these alone.
    """

    identity = "handle"
    bodies = ("arguments", "reason")
    handle: str
    name: str
    _: KW_ONLY
    decision: str
    reason: str
    arguments: str
    labels: tuple[str, ...] = ()


@record
class CallDecided(Event):
    """The decision of a user's middleware on a call.

    Attributes:
        request: what the decision is called in its agent: the handle of the call and `by`.
        by: the class of the middleware.
        name: the tool.
        decision: "ask" a person, "refuse" or "allow".
        reason: what speaks against the call.
        arguments: the arguments of the call, as JSON. The decision holds for these alone.
    """

    identity = "request"
    bodies = ("arguments", "reason")
    request: str
    _: KW_ONLY
    by: str
    name: str
    decision: str
    reason: str
    arguments: str


@record
class DecisionRequested(Event):
    """Intent: the run needs a decision of a person, a time, a signal or a login, and is suspended until that is there.

    Attributes:
        request: what the decision is called in its agent: the handle of the call that needs it.
        kind: "approval" of a call, "question", "timer", "signal", or "login" to an MCP server.
        name: the tool, or the server.
        arguments: the arguments of the call, as JSON; for a signal its name or names; for a login the server's address.
        digest: SHA-256 of the tool, its definition and the arguments. A decision holds for these alone.
        reason: why a decision is needed.
        default: the answer if nobody has decided by then, or None to wait for ever.
        expires: when the default counts or the waiting ends, in seconds since the epoch.
    """

    identity = "request"
    bodies = ("arguments", "reason")
    request: str
    kind: str
    _: KW_ONLY
    name: str
    arguments: str
    digest: str
    reason: str = ""
    default: str | None = None
    expires: float | None = None


@record
class DecisionMade(Event):
    """Outcome of `DecisionRequested`.

    Attributes:
        verdict: "approve", "deny" or "answer"; "time" if a timer ended, "signal", or "timeout" without the signal;
            "login" if a server accepted the run again.
        digest: that of the request.
        arguments: the arguments to use instead, as JSON; None to keep them.
        text: the answer, why the call was denied, or the payload of the signal as JSON; `[name, payload]` if it was the
            first of several.
        by: who decided, as far as that is known; "default" if nobody did in time.
        idle: seconds between the event before and this one during which no process executed the run.
        signal: the id of the signal, which the run receives only once.
    """

    identity = "request"
    bodies = ("arguments", "text")
    request: str
    verdict: str
    _: KW_ONLY
    digest: str
    arguments: str | None = None
    text: str = ""
    by: str = ""
    idle: float = 0.0
    signal: str = ""


@record
class AnswerGiven(Event):
    """Intent: an MCP server is about to get the answer to its question `request`, or its call again after a login.

    What the call then does counts.
    """

    identity = "request"
    request: str


@record
class CallRepeated(Event):
    """A person has approved that a call which a crash cut off is made again. `request` is that of the decision."""

    identity = "request"
    request: str


@record
class TaskCreated(Event):
    """An MCP server works on a call as a task. A resumed run asks for its result instead of making the call again."""

    identity = "handle"
    handle: str
    task: str


@record
class ToolsChanged(Event):
    """The agent is offered other tools from request number `request` on: an MCP server has changed its list.

    `tools` is JSON: all tools of servers, with their schemas and policies.
    """

    bodies = ("tools",)
    identity = "request"
    request: int
    _: KW_ONLY
    tools: str = ""


@record
class Repaired(Event):
    """A repair that was made to a reply or a call."""

    turn: int
    kind: str
    _: KW_ONLY
    where: str = ""
    before: str = ""
    after: str = ""

    @property
    def repair(self) -> Repair:
        return Repair(self.kind, self.where, self.before, after=self.after)


@record
class TurnAccepted(Event):
    """A turn enters the history, with the results as the model sees them. It does not change any more.

    Attributes:
        calls: id, name, arguments (an object), server_name and text of each call.
        returns: call (an index into `calls`), text, handle, ok, tokens and images of each result; `compressed` if the
            text is shorter than the result.
        attached: `ModelReply.attached` as JSON.
    """

    bodies = ("text", "raw", "reasoning", "attached")
    attempt: int
    turn: int
    _: KW_ONLY
    text: str = ""
    raw: str = ""
    reasoning: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    returns: tuple[Mapping[str, Any], ...] = ()
    attached: str = ""

    def step(self) -> Step:
        calls = self.tool_calls()
        return Step(
            self.turn,
            self.text,
            calls,
            returns=self.tool_returns(calls),
            reasoning=self.reasoning,
            raw=self.raw,
            attached=_attached(self.attached),
        )

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            [
                ToolCall(c["name"], c["arguments"], c["id"], server_name=c["server_name"], text=c["text"])
                for c in self.calls
            ]
        )

    def tool_returns(self, calls: tuple[ToolCall, ...]) -> tuple[ToolReturn, ...]:
        returns = [
            ToolReturn(
                calls[r["call"]],
                r["text"],
                r["handle"],
                ok=r["ok"],
                tokens=r["tokens"],
                images=tuple(r.get("images", ())),
            )
            for r in self.returns
        ]
        return tuple(returns)


@record
class TurnRolledBack(Event):
    """A turn is rolled back.

    `change` says what is different when the model is asked again; `draft` is the reply if the next request shows it.
    """

    bodies = ("draft",)
    attempt: int
    turn: int
    _: KW_ONLY
    reason: str
    detail: str = ""
    change: str = ""
    tokens: int = 0
    draft: str = ""


@record
class AnswerSeen(Event):
    """An answer that satisfies the contract appeared before the end: a candidate to fall back on."""

    bodies = ("text",)
    attempt: int
    turn: int
    _: KW_ONLY
    answer: str
    text: str = ""


@record
class CheckStarted(Event):
    """Intent: a check of the user's judges an answer. `number` counts the checks of an attempt: "0.1", "0.2"."""

    identity = "number"
    bodies = ("answer",)
    number: str
    _: KW_ONLY
    name: str
    answer: str


@record
class CheckFinished(Event):
    """The verdict of a check on an answer. `problem` is empty if it passed."""

    identity = "number"
    bodies = ("problem",)
    number: str
    _: KW_ONLY
    problem: str = ""
    ms: float = 0.0


@record
class CheckpointReached(Event):
    """A tool named the point that the turn before this event ended at. `handle` is the tool's call."""

    attempt: int
    turn: int
    _: KW_ONLY
    name: str
    handle: str = ""


@record
class Evicted(Event):
    """The results of the turns before `before` are replaced by stubs. `tokens` is how many that frees, as counted."""

    attempt: int
    before: int
    _: KW_ONLY
    results: int = 0
    tokens: int = 0
    reason: str = ""


@record
class Compacted(Event):
    """The turns before `before` are replaced by a summary that the model wrote; empty: they are left out without."""

    bodies = ("summary",)
    attempt: int
    before: int
    _: KW_ONLY
    summary: str
    tokens: int = 0


HANDOFF = "handoff"  # Replaces a call in the path of an agent that was handed the conversation.
_LEADERS = re.compile(rf"main(/{HANDOFF}:[^/]*)*")
REFUSED_CALL = "Refused call"  # the name of the note of a call that was not made; its turn shows it, too
REPLIED = ("answered", "unanswered")  # the status of runs that ended with a reply, and are not continued


@record
class Noted(Event):
    """A line for the log: a warning, a change of dialect, a server that did not start."""

    momentary = True
    level: str
    name: str
    _: KW_ONLY
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_warning(self) -> bool:
        """True if the run warns of something. What tools log is theirs to judge."""
        return self.level == "warning" and not self.name.startswith("Tool ")


@record
class Unknown(Event):
    """An event of a later version of Closeout, or one that cannot be read."""

    momentary = True
    type: str
    body: Mapping[str, Any] = field(default_factory=dict)


def has_conversation(path: str) -> bool:
    """Return whether an agent is the main one, or a successor to whom the conversation was handed over."""
    return path == "main" or _LEADERS.fullmatch(path) is not None


def attached_text(attached: Mapping[str, Any]) -> str:
    """Return what a server attached to a reply as an event stores it; empty if there is nothing."""
    return encode_json(dict(attached)).decode() if attached else ""


def _attached(text: str) -> dict[str, Any]:
    try:
        value = decode_json(text) if text else {}
    except ValueError:  # a journal is a file that others can edit
        return {}
    return value if isinstance(value, dict) else {}


def usage_record(usage: Usage | None) -> dict[str, Any]:
    """Return the fields of a `Usage` as an event stores them; empty for None."""
    return {} if usage is None else _fields_of_usage(usage)


_fields_of_usage = shallow_dict(Usage)


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else ""


def _register() -> dict[str, type[Event]]:
    types = {name: kind for name, kind in globals().items() if isinstance(kind, type) and issubclass(kind, Event)}
    for kind in types.values():
        kind.names, kind.values = tuple(f.name for f in fields(kind)), shallow_dict(kind)
        # A row leaves these out. What they default to must never change.
        kind.empty = {
            each.name: default
            for each in fields(kind)
            if not (default := each.default_factory() if callable(each.default_factory) else each.default)
        }
    return types


EVENT_TYPES = _register()

# ------------------------------------------------------------------------------------------------ reading

UNREADABLE = "this row of the journal cannot be read"
_NUMBERS = (int, float)
_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": _NUMBERS,
    "bool": (bool,),
    "Mapping": (Mapping,),
    "tuple": (tuple,),
    "None": (type(None),),
}
_FieldTypes: TypeAlias = tuple[tuple[str, tuple[type, ...], tuple[type, ...], bool], ...]
_USAGE = frozenset(each.name for each in fields(Usage))


def event_from(kind: str, body: Mapping[str, Any]) -> Event:
    """Return the event of a type with these field values.

    A type or a field that this version does not know gives `Unknown`, never an exception.
    """
    found = EVENT_TYPES.get(kind)
    try:
        if found is None:
            raise TypeError
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in body.items()}
        return found(**values)
    except TypeError:
        return Unknown(str(body.get("agent", "main")), kind, dict(body))


def read_event(kind: str, values: Mapping[str, Any]) -> Event:
    """Return the event stored in a row, after checking that every value has its field's type.

    A journal is a file that others can edit. An event with impossible values becomes `Unknown`, so that code that shows
    or counts events need not check each value.
    """
    event = event_from(kind, values)
    for name, allowed, items, is_usage in _FIELD_TYPES.get(type(event), ()):
        if not _fits(getattr(event, name), allowed, items, is_usage):
            return unreadable(kind)
    return event


def unreadable(kind: str) -> Unknown:
    """Return the event that takes the place of one that cannot be read."""
    return Unknown("main", kind, {"problem": UNREADABLE})


def is_unreadable(event: Event) -> bool:
    """True if the event takes the place of one that cannot be read. Events of later versions are not meant."""
    return isinstance(event, Unknown) and event.body.get("problem") == UNREADABLE


def _field_types(kind: type[Event]) -> _FieldTypes:
    """For each field: its name, the types it may have, the types of its items, and whether it is a usage record."""
    found = []
    for each in fields(kind):
        outer, _, rest = str(each.type).partition("[")
        alternatives = [part.strip() for part in outer.split("|")]
        if all(part in _TYPES for part in alternatives):
            allowed = tuple(kind for part in alternatives for kind in _TYPES[part])
            items = _TYPES.get(rest.split("[")[0].split(",")[0], ()) if outer == "tuple" else ()
            found.append((each.name, allowed, items, each.name == "usage"))
    return tuple(found)


def _fits(value: Any, allowed: tuple[type, ...], items: tuple[type, ...], is_usage: bool) -> bool:
    if not isinstance(value, allowed):
        return False
    inner: Any = value
    if is_usage:
        return inner.keys() <= _USAGE and all(count is None or isinstance(count, _NUMBERS) for count in inner.values())
    return not items or all(isinstance(item, items) for item in inner)


_FIELD_TYPES: Mapping[type, _FieldTypes] = {kind: _field_types(kind) for kind in EVENT_TYPES.values()}
