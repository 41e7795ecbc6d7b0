"""The events of which a run consists. What happened is here; what it means to a reader is in the views.

Every event names the agent it belongs to by its path: "main", and for a sub-agent "main/r4:researcher", where r4 is the
call that started it. Events that are written once for each thing that happens carry a key; see `Event.key`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from closeout.journal.event import Event
from closeout.messages import ModelReply, Repair, ToolCall, ToolReturn, Usage
from closeout.records import record, shallow_dict

__all__ = [
    "EVENT_TYPES",
    "AgentEnded",
    "AgentStarted",
    "AnswerSeen",
    "AttemptEnded",
    "AttemptStarted",
    "Compacted",
    "Event",
    "Evicted",
    "ModelFailed",
    "ModelReplied",
    "ModelRequested",
    "ModelRetried",
    "Noted",
    "Repaired",
    "RunEnded",
    "RunResumed",
    "RunStarted",
    "ServerAsked",
    "ServerTold",
    "ToolFinished",
    "ToolStarted",
    "TurnAccepted",
    "TurnRolledBack",
    "Unknown",
    "event_from",
]


@record
class RunStarted(Event):
    """`question` is the task with its files' texts, where it has any; `earlier`, `images`, `texts` are JSON lists.

    `texts` holds what of the files is not in the question: `orchestrator.files.dump_texts`; `tools` the tools that
    servers offered: `orchestrator.recorded_tools.dump_specs`.
    """

    bodies = ("task", "question", "earlier", "images", "texts", "tools")
    task: str
    task_id: str = ""
    question: str = ""
    earlier: str = ""
    images: str = ""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)  # of the agent: a resume compares it
    settings: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)  # what started it, for whoever resumes it
    files: tuple[str, ...] = ()
    ground_truth: str | None = None
    texts: str = ""
    name: str = ""  # of the agent
    tools: str = ""


@record
class RunResumed(Event):
    """`idle` seconds lay between the last event and this one; they do not count against the run's wall clock."""

    momentary = True
    idle: float = 0.0
    differences: tuple[str, ...] = ()


@record
class RunEnded(Event):
    """`error_kind` is the name of the exception that `error` is the text of, where it was one."""

    momentary = True
    bodies = ("summary",)
    status: str
    stop_reason: str
    answer: str | None = None
    summary: str = ""
    error: str = ""
    error_kind: str = ""


@record
class AgentStarted(Event):
    """A sub-agent sets out."""

    bodies = ("task",)
    name: str
    task: str
    model: str = ""


@record
class AgentEnded(Event):
    bodies = ("report",)
    status: str
    report: str = ""


@record
class AttemptStarted(Event):
    attempt: int
    experiences: tuple[str, ...] = ()


@record
class AttemptEnded(Event):
    """`turns`: replies that were acted on, and the one that answered."""

    bodies = ("experience",)
    attempt: int
    reason: str
    answer: str | None = None
    experience: str = ""
    turns: int = 0


@record
class ModelRequested(Event):
    """Intent: a request goes out. `call` numbers the agent's requests from 0.

    `messages` is their number; `size` the characters of the prompt, `shared` how many of them stood in the same place
    in the request before (the part that a prefix cache can serve).
    """

    identity = "call"
    call: int
    attempt: int = 0
    turn: int = 0
    purpose: str = "act"  # act | close | experience | compact | probe
    messages: int = 0
    size: int = 0
    shared: int = 0
    temperature: float | None = None
    note: str = ""


@record
class ModelRetried(Event):
    """The transport asks again. `wait` in seconds."""

    momentary = True
    call: int
    reason: str
    wait: float = 0.0


@record
class ModelReplied(Event):
    """Outcome of a request. `usage` as of `Usage`, `ms` wall clock."""

    identity = "call"
    bodies = ("text", "reasoning")
    call: int
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str = "stop"
    usage: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    reasoning_details: Any = None
    ms: float = 0.0

    @classmethod
    def of(cls, agent: str, call: int, reply: ModelReply, ms: float) -> ModelReplied:
        calls = [
            {"id": c.id, "name": c.name, "arguments": c.text or c.arguments, "server_name": c.server_name}
            for c in reply.tool_calls
        ]
        return cls(
            agent, call, reply.text, reply.reasoning, tuple(calls), reply.finish_reason,
            usage_record(reply.usage), reply.model, reply.reasoning_details, ms,
        )  # fmt: skip

    def reply(self) -> ModelReply:
        calls = tuple(
            ToolCall(c["name"], c["arguments"], c["id"], c["server_name"], _text(c["arguments"]))
            for c in self.tool_calls
        )
        return ModelReply(
            self.text, self.reasoning, calls, self.finish_reason, Usage(**self.usage), self.model,
            self.reasoning_details,
        )  # fmt: skip


@record
class ModelFailed(Event):
    """Outcome of a request that brought no reply. `kind` is the name of the exception."""

    identity = "call"
    call: int
    kind: str
    error: str
    usage: Mapping[str, Any] = field(default_factory=dict)
    status: int | None = None
    ms: float = 0.0


@record
class ServerAsked(Event):
    """Intent: the model's server is asked for something beside replies. `what`: "context", the tokens it takes."""

    identity = "what"
    what: str


@record
class ServerTold(Event):
    """Outcome: what the server, or its client, knew; None: nothing."""

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
    arguments: str
    turn: int = 0
    call_id: str = ""
    server_name: str | None = None
    index: int = 0


@record
class ToolFinished(Event):
    """Outcome of a tool. `record` is the whole ToolOutput as JSON text, but for its tokens: see `TurnAccepted`."""

    identity = "handle"
    bodies = ("record",)
    handle: str
    name: str
    ok: bool
    record: str
    ms: float = 0.0
    note: str = ""


@record
class Repaired(Event):
    """A line of the repairs ledger."""

    turn: int
    kind: str
    where: str = ""
    before: str = ""
    after: str = ""

    @property
    def repair(self) -> Repair:
        return Repair(self.kind, self.where, self.before, self.after)


@record
class TurnAccepted(Event):
    """A turn enters the history, with what the model is shown of its calls: frozen from here on.

    `calls` hold id, name, arguments (an object), server_name, text; `returns` call (index), text, handle, ok, tokens.
    """

    bodies = ("text", "raw", "reasoning")
    attempt: int
    turn: int
    text: str = ""
    raw: str = ""
    reasoning: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    returns: tuple[Mapping[str, Any], ...] = ()

    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple([ToolCall(c["name"], c["arguments"], c["id"], c["server_name"], c["text"]) for c in self.calls])

    def tool_returns(self, calls: tuple[ToolCall, ...]) -> tuple[ToolReturn, ...]:
        returns = [
            ToolReturn(calls[r["call"]], r["text"], r["handle"], r["ok"], r["tokens"], tuple(r.get("images", ())))
            for r in self.returns
        ]
        return tuple(returns)


@record
class TurnRolledBack(Event):
    """A turn is taken back. `change` says what is different when the model is asked again."""

    attempt: int
    turn: int
    reason: str
    detail: str = ""
    change: str = ""
    tokens: int = 0


@record
class AnswerSeen(Event):
    """An answer in the form asked for, seen on the way: a candidate to fall back on."""

    bodies = ("text",)
    attempt: int
    turn: int
    answer: str
    text: str = ""


@record
class Evicted(Event):
    """The results of the turns before `before` become stubs. `tokens` is what that frees, as far as counted."""

    attempt: int
    before: int
    results: int = 0
    tokens: int = 0
    reason: str = ""


@record
class Compacted(Event):
    """The turns before `before` are replaced by a summary that the model wrote."""

    bodies = ("summary",)
    attempt: int
    before: int
    summary: str
    tokens: int = 0


@record
class Noted(Event):
    """A line for the log: a warning, a change of dialect, a server that did not start."""

    momentary = True
    level: str
    name: str
    message: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@record
class Unknown(Event):
    """An event of a later version of Closeout, or one that cannot be read any more."""

    momentary = True
    type: str
    body: Mapping[str, Any] = field(default_factory=dict)


def usage_record(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "requests": usage.requests,
        "cost_usd": usage.cost_usd,
    }


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else ""


def _register() -> dict[str, type[Event]]:
    types = {name: kind for name, kind in globals().items() if isinstance(kind, type) and issubclass(kind, Event)}
    for kind in types.values():
        kind.names, kind.values = tuple(f.name for f in fields(kind)), shallow_dict(kind)
    return types


EVENT_TYPES = _register()


def event_from(kind: str, body: Mapping[str, Any]) -> Event:
    """The event of a row; one that this version does not know becomes `Unknown`, never an error."""
    found = EVENT_TYPES.get(kind)
    try:
        if found is None:
            raise TypeError
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in body.items()}
        return found(**values)
    except TypeError:
        return Unknown(str(body.get("agent", "main")), kind, dict(body))
