"""A conversation that a client had through the proxy, written as a run that can be run again with another model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from closeout.codec import encode_json
from closeout.journal.events import (
    Event,
    ModelFailed,
    ModelReplied,
    ModelRequested,
    RunStarted,
    ToolFinished,
    ToolStarted,
    TurnAccepted,
)
from closeout.lab.client_conversation import CONVERSATION
from closeout.messages import Message, ModelReply, ToolCall, ToolSpec
from closeout.results.tool_output import ToolOutput
from closeout.run.offered_tools import dump_definitions
from closeout.server.governing import arguments_object, arguments_text

__all__ = ["accepted", "with_conversation"]

_SYSTEM = ("system", "developer")


def with_conversation(
    started: RunStarted, events: Sequence[Event], messages: Sequence[Message], tools: Sequence[ToolSpec], model: str
) -> tuple[RunStarted, list[Event]] | None:
    """Return the record of a request with the whole conversation that it ends.

    The calls since the last message of the user are in it as those of an agent, with the results that the client sent.

    Args:
        started: The first event of the record.
        events: The events of the request.
        messages: The messages of the request.
        tools: The tools of the request.
        model: The model that the client asked for.

    Returns:
        The first event and the others, or None if the conversation is not one of messages, calls and results.
    """
    head = next((at for at, each in enumerate(messages) if each.role not in _SYSTEM), len(messages))
    last = max((at for at, each in enumerate(messages) if each.role == "user"), default=-1)
    rounds = _rounds(messages[last + 1 :])
    if last < head or rounds is None:
        return None
    content = messages[last].get("content")
    images = [part for part in content if part.get("type") == "image_url"] if isinstance(content, list) else []
    started = replace(
        started,
        name=CONVERSATION,
        task=messages[last].text,
        earlier=json.dumps(messages[head:last]) if last > head else "",
        images=json.dumps(images) if images else "",
        instructions="\n\n".join(message.text for message in messages[:head]),
        own_tools=dump_definitions(tools),
        fingerprint={"model": model},
    )
    offered = [{"name": each.name, "description": each.description, "parameters": each.parameters} for each in tools]
    written = encode_json(offered).decode() if offered else ""
    asked = next((each for each in events if isinstance(each, ModelRequested)), ModelRequested("main", 0))
    found: list[Event] = []
    handles, kept = count(1), 0

    def ask(turn: int, end: int) -> ModelRequested:
        nonlocal kept
        added = tuple(map(dict, messages[kept:end]))
        tools = "" if kept else written
        request = replace(asked, call=turn, turn=turn, messages=end, kept=kept, added=added, tools=tools)
        kept = end
        return request

    end = last + 1
    for turn, (said, results) in enumerate(rounds):
        found.append(ask(turn, end))
        found += _turn(turn, said, results, [f"r{next(handles)}" for _ in results])
        end += 1 + len(results)
    first = ask(len(rounds), end)
    for event in events:
        if isinstance(event, ModelRequested):
            event = replace(first, call=first.call + event.call) if event.call == 0 else _later(event, first)
        elif isinstance(event, TurnAccepted):
            event = replace(event, turn=first.turn)
        elif isinstance(event, (ModelReplied, ModelFailed)):
            event = replace(event, call=first.call + event.call)
        found.append(event)
    return started, found


def _later(event: ModelRequested, first: ModelRequested) -> ModelRequested:
    """Return the request that asks again: what it adds is the hint, which the rollback before it has."""
    return replace(event, call=first.call + event.call, turn=first.turn, kept=first.messages)


def _rounds(messages: Sequence[Message]) -> list[tuple[Message, list[str]]] | None:
    """Return the replies with calls, each with the results of its calls, or None if there is anything else."""
    found: list[tuple[Message, list[str]]] = []
    rest = list(messages)
    while rest:
        said = rest.pop(0)
        calls = said.get("tool_calls") or []
        results = {str(each.get("tool_call_id")): each.text for each in rest[: len(calls)] if each.role == "tool"}
        del rest[: len(calls)]
        if said.role != "assistant" or not calls or {str(call.get("id")) for call in calls} != results.keys():
            return None
        found.append((said, [results[str(call.get("id"))] for call in calls]))
    return found


def _turn(turn: int, said: Message, results: Sequence[str], handles: Sequence[str]) -> list[Event]:
    reply = ModelReply(said.text, tool_calls=tuple(map(_call, said["tool_calls"])), finish_reason="tool_calls")
    events: list[Event] = [replace(ModelReplied.of("main", turn, reply, 0.0), usage={})]
    for index, (call, result, handle) in enumerate(zip(reply.tool_calls, results, handles, strict=True)):
        record = encode_json(ToolOutput(result=result).lean_record()).decode()
        events += [
            ToolStarted("main", handle, call.name, arguments=call.text, turn=turn, call_id=call.id, index=index),
            ToolFinished("main", handle, call.name, ok=True, record=record),
        ]
    returns = tuple(
        {"call": index, "text": result, "handle": handle, "ok": True, "tokens": 0, "images": []}
        for index, (result, handle) in enumerate(zip(results, handles, strict=True))
    )
    return [*events, replace(accepted(reply), turn=turn, returns=returns)]


def _call(written: Mapping[str, Any]) -> ToolCall:
    function = written.get("function") or {}
    text = str(function.get("arguments") or "{}")
    return ToolCall(str(function.get("name")), text, str(written.get("id")), text=text)


def accepted(reply: ModelReply) -> TurnAccepted:
    """Return the first turn of a run whose reply the client got."""
    calls = [
        {
            "id": call.id,
            "name": call.name,
            "arguments": dict(arguments_object(call)),
            "server_name": None,
            "text": arguments_text(call),
        }
        for call in reply.tool_calls
    ]
    return TurnAccepted("main", 0, 0, text=reply.text, reasoning=reply.reasoning, calls=tuple(calls))
