"""Translate journal events into attributes of the GenAI semantic conventions, and `closeout.*` beside them.

Pure functions: event in, attributes out. Nothing that a person, a model or a tool wrote is in them unless `content`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from closeout.journal.events import (
    AnswerSeen,
    AttemptEnded,
    AttemptStarted,
    Compacted,
    Event,
    Evicted,
    MessageReceived,
    ModelReplied,
    ModelRequested,
    ModelRetried,
    Noted,
    Repaired,
    RunEnded,
    RunResumed,
    ToolFinished,
    ToolsChanged,
    ToolStarted,
    TurnRolledBack,
)
from closeout.journal.run_names import session_of
from closeout.journal.subscribers import RunInfo

__all__ = ["FAILURES", "AgentIdentity", "with_openinference"]

Attributes = dict[str, Any]

# The names that OpenInference has for attributes of the conventions.
_OPENINFERENCE = {
    "gen_ai.input.messages": "input.value",
    "gen_ai.output.messages": "output.value",
    "gen_ai.tool.call.arguments": "input.value",
    "gen_ai.tool.call.result": "output.value",
    "gen_ai.request.model": "llm.model_name",
    "gen_ai.usage.input_tokens": "llm.token_count.prompt",
    "gen_ai.usage.output_tokens": "llm.token_count.completion",
    "gen_ai.usage.cache_read.input_tokens": "llm.token_count.prompt_details.cache_read",
    "closeout.usage.cost_usd": "llm.cost.total",
    "gen_ai.tool.name": "tool.name",
    "gen_ai.agent.name": "agent.name",
}
_SPAN_KINDS = {"chat": "LLM", "text_completion": "LLM", "invoke_agent": "AGENT", "execute_tool": "TOOL"}
# Stop reasons that are errors, not outcomes.
FAILURES = frozenset({"failed", "model_failed", "journal_failed", "context_overflow"})
_USAGE = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "requests": "closeout.usage.requests",
    "cost_usd": "closeout.usage.cost_usd",
}


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """An agent's name, and its model as the provider knows it."""

    name: str
    provider: str
    model: str

    @classmethod
    def from_client(cls, name: str, client_name: str) -> Self:
        """Read a client's name: "openai:gpt-5" is the model gpt-5 of openai, "local" is both."""
        provider, colon, model = client_name.partition(":")
        return cls(name, provider or "unknown", model if colon else provider)

    def agent_labels(self) -> Attributes:
        return {"gen_ai.agent.name": self.name, "gen_ai.request.model": self.model}

    def request_labels(self, operation: str) -> Attributes:
        return {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": self.provider,
            "gen_ai.request.model": self.model,
        }

    def of(self, operation: str) -> Attributes:
        """Return the attributes of a span of this agent."""
        return {**self.request_labels(operation), "gen_ai.agent.name": self.name}


def of_run(run: RunInfo, content: bool) -> Attributes:
    started = run.started
    found: Attributes = {}
    if started is None:
        return found
    if run.resumed:
        found["closeout.resumed"] = True
    if started.task_id:
        found["closeout.task_id"] = clean(started.task_id)
    if content:
        found["gen_ai.input.messages"] = user_message(started.question or started.task)
        session = session_of(run.run_id)
        found |= {"session.id": session} if session else {}
        found |= {"user.id": clean(started.user)} if started.user else {}
    return found


def of_run_end(event: RunEnded, content: bool) -> Attributes:
    found: Attributes = {"closeout.status": event.status, "closeout.stop_reason": event.stop_reason}
    if content and (event.closing_text or event.answer):
        found["gen_ai.output.messages"] = assistant_message(event.closing_text or event.answer or "")
    return found


def of_request(event: ModelRequested, run_id: str, content: bool) -> Attributes:
    found: Attributes = {
        "gen_ai.conversation.id": run_id,
        "closeout.purpose": event.purpose,
        "closeout.attempt": event.attempt,
        "closeout.turn": event.turn,
        "closeout.prompt.characters": event.size,
        "closeout.prompt.shared_characters": event.shared,
    }
    if event.temperature is not None:
        found["gen_ai.request.temperature"] = event.temperature
    if content and event.added:
        found["gen_ai.input.messages"] = json.dumps([_input_message(each) for each in event.added], default=str)
    return found


def of_reply(event: ModelReplied, content: bool) -> Attributes:
    found = {"gen_ai.response.finish_reasons": (event.finish_reason,), **of_usage(event.usage)}
    if event.model:
        found["gen_ai.response.model"] = clean(event.model)
    if content:
        found["gen_ai.output.messages"] = _reply_message(event)
    return found


def with_openinference(found: Mapping[str, Any]) -> Attributes:
    """Return the attributes, also under the names that OpenInference has for them."""
    more = {_OPENINFERENCE[name]: value for name, value in found.items() if name in _OPENINFERENCE}
    if "gen_ai.operation.name" in found:
        more["openinference.span.kind"] = _SPAN_KINDS[found["gen_ai.operation.name"]]
    for side in ("input", "output"):
        if f"{side}.value" in more:
            more[f"{side}.mime_type"] = "application/json"
    return {**found, **more}


def of_usage(usage: Mapping[str, Any]) -> Attributes:
    """Return the known counts; those of a cache only if they are not zero."""
    found = {_USAGE[name]: value for name, value in usage.items() if name in _USAGE and value is not None}
    return {name: value for name, value in found.items() if value or ".cache_" not in name}


def of_retry(event: ModelRetried, content: bool) -> Attributes:
    found: Attributes = {"closeout.wait_seconds": event.wait}
    return {**found, "closeout.reason": clean(event.reason)} if content else found


def of_call(event: ToolStarted, content: bool) -> Attributes:
    found: Attributes = {
        "gen_ai.tool.call.id": clean(event.call_id or event.handle),
        "closeout.handle": event.handle,
        "closeout.turn": event.turn,
    }
    if event.server_name:
        found["closeout.mcp_server"] = event.server_name
    if content:
        found["gen_ai.tool.call.arguments"] = clean(event.arguments)
    return found


def of_result(event: ToolFinished, content: bool) -> Attributes:
    found: Attributes = {"gen_ai.tool.call.result": clean(event.record)} if content else {}
    if event.labels:
        found["closeout.labels"] = event.labels
    return found


def error_code_of(event: ToolFinished) -> str:
    """The short name of a tool's failure, from its telemetry; the conventions' `_OTHER` where it has none."""
    try:
        code = json.loads(event.record)["telemetry"]["error_code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        code = None
    return str(code) if code else "_OTHER"


def of_note(event: Event, content: bool) -> tuple[str, Attributes] | None:
    """Name and attributes of the span event for what happened on the way; None for what spans show already."""
    match event:
        case AttemptStarted():
            return "closeout.attempt", {"closeout.attempt": event.attempt}
        case AttemptEnded():
            return "closeout.attempt_end", {"closeout.attempt": event.attempt, "closeout.stop_reason": event.reason}
        case MessageReceived():
            said = {"closeout.message": clean(event.text)} if content else {}
            return "closeout.message", {"closeout.request": event.request, **said}
        case TurnRolledBack():
            found = {"closeout.turn": event.turn, "closeout.reason": event.reason, "closeout.tokens": event.tokens}
            said = {"closeout.change": clean(event.change), "closeout.detail": clean(event.detail)}
            return "closeout.rollback", {**found, **(said if content else {})}
        case Repaired():
            found = {"closeout.turn": event.turn, "closeout.kind": event.kind, "closeout.where": clean(event.where)}
            said = {"closeout.before": clean(event.before), "closeout.after": clean(event.after)}
            return "closeout.repair", {**found, **(said if content else {})}
        case Evicted():
            found = {"closeout.results": event.results, "closeout.tokens": event.tokens}
            return "closeout.eviction", {**found, "closeout.reason": event.reason}
        case Compacted():
            return "closeout.compaction", {"closeout.before_turn": event.before, "closeout.tokens": event.tokens}
        case ToolsChanged():
            return "closeout.tools_changed", {"closeout.request": event.request}
        case AnswerSeen():
            return "closeout.answer_seen", {"closeout.turn": event.turn}
        case Noted():
            said = {"closeout.message": clean(event.message)} if content else {}
            return "closeout.note", {"closeout.level": event.level, "closeout.name": clean(event.name), **said}
        case RunResumed():
            return "closeout.resume", {"closeout.idle_seconds": event.idle}
    return None


# ------------------------------------------------------------------------------------------------ content


def user_message(text: str) -> str:
    return _messages("user", [{"type": "text", "content": text}])


def assistant_message(text: str) -> str:
    return _messages("assistant", [{"type": "text", "content": text}], finish_reason="stop")


def _input_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of a request in the conventions' form. Pictures are left out."""
    if "prompt" in message:
        return {"role": "user", "parts": [{"type": "text", "content": message["prompt"]}]}
    said = message.get("content") or ()
    texts = [said] if isinstance(said, str) else [part["text"] for part in said if isinstance(part.get("text"), str)]
    parts: list[dict[str, Any]] = [{"type": "text", "content": text} for text in texts]
    if message.get("role") == "tool":
        parts = [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": "".join(texts)}]
    for made in message.get("tool_calls") or ():
        called = made.get("function", made)
        about = {"name": called.get("name"), "arguments": called.get("arguments")}
        parts.append({"type": "tool_call", "id": made.get("id"), **about})
    return {"role": message.get("role", "user"), "parts": parts}


def _reply_message(event: ModelReplied) -> str:
    parts = [{"type": "reasoning", "content": event.reasoning}] if event.reasoning else []
    parts += [{"type": "text", "content": event.text}] if event.text else []
    parts += [
        {"type": "tool_call", "id": call["id"], "name": call["name"], "arguments": call["arguments"]}
        for call in event.tool_calls
    ]
    return _messages("assistant", parts, finish_reason=event.finish_reason)


def _messages(role: str, parts: list[Any], **more: str) -> str:
    """Messages as the conventions' JSON; ASCII, so that lone surrogates cannot break an exporter."""
    return json.dumps([{"role": role, "parts": parts, **more}], default=str)


def clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
