"""Import the traces of other tools as runs to look at: they are never resumed.

The shapes: OpenTelemetry's GenAI conventions as OTLP JSON (opentelemetry.io/docs/specs/semconv/gen-ai), exports of
Langfuse (traces with observations) and LangSmith (runs), OpenAI's chat messages, AgentDojo's logs, and ATIF of Harbor.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from itertools import takewhile
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, AliasPath, BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from closeout.codec import encode_json, value_or_text
from closeout.errors import JournalError, RunExists
from closeout.journal import events as ev
from closeout.journal.claims import IMPORTED
from closeout.journal.journal_database import SqlConnection
from closeout.journal.run_journal import Journal
from closeout.journal.store import NEW_NOTE, Store
from closeout.messages import Usage

__all__ = ["import_foreign"]

ORIGIN = "imported_from"
_TIME = TypeAdapter(datetime)
_AS_LONG_AGO = "UPDATE runs SET ended = started, counted = started WHERE run_id = ?"
_USAGE = (
    "metrics", "usage", "usage_metadata", "kwargs.usage_metadata", "usageDetails", "response.usage",
    "outputs.llm_output.token_usage",
)  # fmt: skip
_BEGAN = ("start_time", "startTime", "timestamp", "createdAt", "created", "response.created", "steps.0.timestamp")
_REQUESTS = ("", "llm", "generation", "chat", "text_completion", "generate_content")  # other kinds sum these up
_ROLES = {"human": "user", "ai": "assistant", "agent": "assistant", "function": "tool", "developer": "system"}


def _any_of(*places: str, default: Any = None) -> Any:
    """Return a field that is in the first of these places that a message has; a dot goes down."""
    split = [place.split(".") for place in places]
    paths = [AliasPath(first, *(int(each) if each.isdigit() else each for each in rest)) for first, *rest in split]
    return Field(default, validation_alias=AliasChoices(*paths))


def _number(value: Any) -> float:
    with suppress(TypeError, ValueError):
        if isfinite(float(value)):
            return max(float(value), 0.0)
    return 0.0


def _seconds(value: Any) -> float:
    """Return a time as seconds since the epoch, 0 if it cannot be read. Without a time zone it is UTC."""
    with suppress(ValidationError):  # OTLP has nanoseconds
        found = _TIME.validate_python(_number(value) / 1e9 if _number(value) > 1e17 else value)
        return found.replace(tzinfo=found.tzinfo or UTC).timestamp()
    return 0.0


def _tokens(*ways: str) -> Any:
    return _any_of(*(f"{place}.{way}" for place in _USAGE for way in ways), *ways[:2], default=0)


class _ForeignUsage(BaseModel):
    """The tokens and the cost of a message, or of the request that it answers."""

    input_tokens: Annotated[float, BeforeValidator(_number)] = _tokens("prompt_tokens", "input_tokens", "input")
    output_tokens: Annotated[float, BeforeValidator(_number)] = _tokens("completion_tokens", "output_tokens", "output")
    cost: Annotated[float, BeforeValidator(_number)] = _any_of(
        "costDetails.total", "calculatedTotalCost", "total_cost", "metrics.cost_usd", default=0
    )

    @property
    def usage(self) -> Usage:
        return Usage(int(self.input_tokens), int(self.output_tokens), requests=1, cost_usd=self.cost or None)


class _ForeignCall(BaseModel):
    id: Any = _any_of("id", "tool_call_id", default="")
    name: Any = _any_of("name", "function_name", "function.name", "function", default="")
    arguments: Any = _any_of("arguments", "args", "function.arguments", "input", default="")


class _ForeignMessage(_ForeignUsage):
    role: Any = _any_of("role", "source", "kwargs.type", "id.3", "type", default="")
    content: Any = _any_of("content", "message", "parts", "kwargs.content", "data.content")
    reasoning: Any = _any_of("reasoning_content", "reasoning", default="")
    tool_calls: list[_ForeignCall] | None = _any_of("tool_calls", "kwargs.tool_calls", "data.tool_calls")
    tool_call_id: Any = _any_of("tool_call_id", "kwargs.tool_call_id", "data.tool_call_id", default="")
    observed: Any = _any_of("observation.results")  # ATIF: a step has its results
    error: Any = _any_of("error", "is_error")


def _parsed(value: Any) -> Any:
    """Return a conversation that is written as JSON text; any other text as it is."""
    found = value_or_text(value)
    found = found.get("messages", [found]) if isinstance(found, dict) else found
    return found if isinstance(value, str) and isinstance(found, list) and _is_conversation(found) else value


class _ForeignTrace(_ForeignUsage):
    """A conversation: where its messages and its name are in each of the shapes."""

    kind: Any = _any_of("run_type", "type", "operation", default="")
    user: Any = _any_of("userId", "user_id", "extra.metadata.user_id", default="")
    began: Annotated[float, BeforeValidator(_seconds)] = _any_of(*_BEGAN, default=0)
    spent: dict[int, Usage] = {}  # by the number of the reply, where requests say it
    id: Any = _any_of("id", "session_id", "trace_id", "task_id", default="")
    model: Any = _any_of("model", "agent.model_name", "extra.metadata.ls_model_name", default="")
    system: Annotated[Any, BeforeValidator(value_or_text)] = None
    before: Annotated[list[Any] | dict[str, Any] | str | None, BeforeValidator(_parsed)] = _any_of(
        "messages", "steps", "request.messages", "inputs.messages", "input.messages", "input"
    )
    after: Annotated[Any, BeforeValidator(_parsed)] = _any_of(
        "response.choices.0.message",
        "outputs.generations.0.0.message",
        "outputs.choices.0.message",
        "outputs.messages",
        "outputs.output",
        "output.choices.0.message",
        "output",
    )


def import_foreign(file: Path, store: Store) -> int:
    """Add the conversations of a file to a journal, and return how many were new.

    Raises:
        JournalError: Nothing in the file can be read as a conversation.
    """
    found = [*_traces(_values(file.read_text("utf-8", "replace")))]
    if not found:
        raise JournalError(f"{file} has neither runs of Closeout nor conversations that can be read.")
    return sum(asyncio.run(_add(store, trace, file.name)) for trace in found)


def _values(text: str) -> Any:
    """Return a JSON document, or the objects of JSON lines."""
    value = value_or_text(text)
    return [value_or_text(line) for line in text.splitlines()] if isinstance(value, str) else value


def _is_conversation(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(each, dict) and "role" in each for each in value)


def _traces(values: Any) -> Iterator[_ForeignTrace]:
    """Yield the conversations of objects: of a trace with many requests the longest, which holds the others."""
    groups: dict[Any, list[_ForeignTrace]] = {}
    for number, (name, value) in enumerate(_requests(values)):
        with suppress(ValidationError):
            trace = _ForeignTrace.model_validate(value)
            trace.id = name or trace.id
            if _replies(trace):
                groups.setdefault(name or number, []).append(trace)
    for found in groups.values():
        longest = max(found, key=lambda each: (len(_conversation(each)), bool(each.model)))
        longest.user = next((each.user for each in found if each.user), "")
        longest.began = min((each.began for each in found if each.began), default=0.0)
        for each in found:
            if str(each.kind).lower() in _REQUESTS and each.usage.total_tokens:
                at = min(_replies(each), _replies(longest)) - 1
                longest.spent[at] = longest.spent.get(at, Usage()) + each.usage
        yield longest


def _replies(trace: _ForeignTrace) -> int:
    return sum(each.role == "assistant" for each in _conversation(trace))


def _requests(value: Any, trace: Any = None) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Yield the requests in an object, each with the name of its trace, if it has one."""
    if isinstance(value, list) and not _is_conversation(value):
        for each in value:
            yield from _requests(each, trace)
    elif isinstance(value, list):
        yield trace, {"messages": value}
    elif isinstance(value, Mapping):
        trace = trace or value.get("traceId") or value.get("trace_id")
        for key in [each for each in _NESTED if isinstance(value.get(each), list)]:
            for name, each in _requests(value[key], trace or value.get("id")):
                yield name, {**each, **{field: value[field] for field in ("userId", "timestamp") if value.get(field)}}
            trace = trace or value.get("id")
        if isinstance(value.get("attributes"), list):
            with suppress(AttributeError, KeyError, TypeError):
                found = {_SPAN.get(each["key"], ""): _of_otlp(each["value"]) for each in value["attributes"]}
                value = {**found, "start_time": value.get("startTimeUnixNano")}
        yield trace, value


_NESTED = ("resourceSpans", "scopeSpans", "spans", "observations", "child_runs", "data", "runs")
_SPAN = {
    "gen_ai.request.model": "model",
    "gen_ai.system_instructions": "system",
    "gen_ai.input.messages": "messages",
    "gen_ai.output.messages": "output",
    "gen_ai.operation.name": "operation",
    "gen_ai.usage.input_tokens": "prompt_tokens",
    "gen_ai.usage.output_tokens": "completion_tokens",
    "user.id": "user_id",
}


def _of_otlp(value: Mapping[str, Any]) -> Any:
    """Return the value of an attribute, which may hold others."""
    ((kind, held),) = value.items()
    if kind == "arrayValue":
        return [_of_otlp(each) for each in held.get("values", ())]
    return {each["key"]: _of_otlp(each["value"]) for each in held["values"]} if kind == "kvlistValue" else held


def _conversation(trace: _ForeignTrace) -> list[_ForeignMessage]:
    before, after = _messages(trace.before, "user"), _messages(trace.after, "assistant")
    if after[: len(before)] == before:  # the reply holds the whole conversation
        before = []
    return _messages(trace.system and {"content": trace.system}, "system") + before + after


def _messages(place: Any, role: str) -> list[_ForeignMessage]:
    found: list[_ForeignMessage] = []
    items = place if isinstance(place, list) else [] if place is None else [place]
    for item in items[0] if len(items) == 1 and isinstance(items[0], list) else items:
        raw = {"role": role, "content": item} if isinstance(item, str) else item
        try:
            message = _ForeignMessage.model_validate(raw)
        except ValidationError:
            continue
        name = str(message.role or role).removesuffix("Message").removesuffix("MessageChunk").lower()
        message.role = _ROLES.get(name, name)
        found += _with_parts(message)
    return found


def _with_parts(message: _ForeignMessage) -> list[_ForeignMessage]:
    """Return a message with its parts as a text and calls, followed by the results that it holds."""
    results: list[Any] = [*(message.observed or ())] if isinstance(message.observed, list) else []
    if isinstance(message.content, list):
        parts = [each if isinstance(each, dict) else {"type": "text", "text": each} for each in message.content]
        calls = [each for each in parts if each.get("type") in ("tool_call", "tool_use")]
        results += [each for each in parts if each.get("type") in ("tool_call_response", "tool_result")]
        texts = (each.get("text", each.get("content")) for each in parts if each.get("type") == "text")
        message.content = "\n".join(str(each) for each in texts if each)
        if calls:
            message.tool_calls = [_ForeignCall.model_validate(each) for each in calls]
    found = [message] if message.content or message.tool_calls else []
    for each in results:
        place = each.get("source_call_id") or each.get("id") or each.get("tool_use_id") or ""
        content = each.get("content", each.get("response"))
        found.append(_ForeignMessage.model_validate({"role": "tool", "content": content, "tool_call_id": place}))
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


async def _add(store: Store, trace: _ForeignTrace, source: str) -> bool:
    """Write a conversation as a run, and return False if it is there already."""
    messages, model, user = _conversation(trace), _text(trace.model), _text(trace.user)
    digest = sha256(encode_json([each.model_dump() for each in messages])).hexdigest()[:16]
    task = next((_text(each.content) for each in messages if each.role == "user"), "")
    system = "\n\n".join(_text(each.content) for each in messages if each.role == "system")
    started = ev.RunStarted(
        "main", task, _text(trace.id), origin={ORIGIN: source}, instructions=system, name=model or source, user=user
    )
    try:
        journal = Journal.start(store, started, model, run_id=f"trace-{digest}", began=trace.began)
    except RunExists:
        return False
    turn, handles, last = 0, 0, ""
    for at, message in enumerate(messages):
        if message.role == "user" and turn:
            name = f"{journal.run_id}-{at}"
            journal.append(ev.MessageReceived("main", name, turn, text=_text(message.content), by="user"))
        if message.role != "assistant":
            continue
        following = [*takewhile(lambda each: each.role == "tool", messages[at + 1 :])]
        last = _text(message.content)
        handles += _write_turn(journal, turn, message, following, handles, usage=trace.spent.get(turn, message.usage))
        turn += 1
    await journal.end(ev.RunEnded("main", "answered", "answered", answer=last, closing_text=last))

    def mark(db: SqlConnection) -> None:
        db.execute(NEW_NOTE, (f"{IMPORTED}{journal.run_id}", ""))
        db.execute(_AS_LONG_AGO, (journal.run_id,))

    store.database.transact(mark)
    return True


def _write_turn(
    journal: Journal, turn: int, reply: _ForeignMessage, results: list[_ForeignMessage], handles: int, *, usage: Usage
) -> int:
    """Write a reply with its calls and their results, and return the number of calls."""
    text, reasoning, calls = _text(reply.content), _text(reply.reasoning), list[dict[str, Any]]()
    for call in reply.tool_calls or ():
        name, arguments = _text(call.name), _text(call.arguments)
        calls.append({"id": _text(call.id), "name": name, "arguments": arguments, "server_name": None})
    journal.append(ev.ModelRequested("main", turn, turn=turn))
    journal.append(
        ev.ModelReplied("main", turn, text, reasoning=reasoning, tool_calls=tuple(calls), usage=asdict(usage))
    )
    shown: list[dict[str, Any]] = []
    for index, each in enumerate(calls):
        named = [result for result in results if each["id"] and _text(result.tool_call_id) == each["id"]]
        result = named[0] if named else results[index] if index < len(results) else None
        handle, output = f"r{handles + index + 1}", "" if result is None else _text(result.content)
        ok, record = result is None or not result.error, encode_json({"success": True, "result": output}).decode()
        begun = ev.ToolStarted("main", handle, each["name"], arguments=each["arguments"], turn=turn, index=index)
        journal.append(begun)
        journal.append(ev.ToolFinished("main", handle, each["name"], ok=ok, record=record, note="" if ok else output))
        shown.append({"call": index, "text": output, "handle": handle, "ok": ok, "tokens": 0})
    made_calls = tuple({**each, "arguments": _object(each["arguments"]), "text": ""} for each in calls)
    about: dict[str, Any] = {"text": text, "reasoning": reasoning, "calls": made_calls, "returns": tuple(shown)}
    journal.append(ev.TurnAccepted("main", 0, turn, **about))
    return len(calls)


def _object(text: Any) -> dict[str, Any]:
    value = value_or_text(text)
    return value if isinstance(value, dict) else {"arguments": value}
