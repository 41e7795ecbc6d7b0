"""The message-history methods that a client overrides, called for each request of a run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from closeout.messages import Message, ModelReply, ModelRequest
from closeout.models.base import BaseClient, OnDelta, OnRetry, RunRequest, run_request
from closeout.models.connect import CreateMessageClient, read_tool_call, unboxed
from closeout.overrides import is_overridden

__all__ = ["completer", "owner_of", "updated_history"]

METHODS = ("create_message", "process_llm_response", "extract_tool_calls_info")
OPTIONS = tuple(field.name for field in fields(ModelRequest) if field.name not in ("messages", "prompt", "tools"))


def completer(client: BaseClient) -> Callable[..., Awaitable[ModelReply]]:
    """Return what sends a run's requests: `complete`, or the methods around it if the client overrides any."""
    if not any(is_overridden(client, BaseClient, name) for name in METHODS):
        return client.complete
    return partial(_complete, client)


async def _complete(
    client: BaseClient, request: ModelRequest, *, on_delta: OnDelta | None = None, on_retry: OnRetry | None = None
) -> ModelReply:
    history = [Message(message) for message in request.messages]
    if request.prompt is not None:
        history = [Message(role="user", content=request.prompt)]
    system = history.pop(0).text if history and history[0].role == "system" else ""
    options = {name: getattr(request, name) for name in OPTIONS}
    token = run_request.set(RunRequest(options, request.prompt is not None, on_delta, on_retry))
    try:
        response, after = await client.create_message(
            system_prompt=system,
            message_history=history,
            tool_definitions=request.tools,
            keep_tool_result=-1,
            step_id=0,
            task_log=None,
            agent_type="main",
        )
    finally:
        run_request.reset(token)
    response, warnings = unboxed(response, client.name)
    reply = response if isinstance(response, ModelReply) else ModelReply("", model=client.name)
    text, _, _ = await _returned(client.process_llm_response(response, after, "main"))
    infos = await _returned(client.extract_tool_calls_info(response, text))
    if text != reply.text:
        reply = replace(reply, text=text or "")
    if infos != BaseClient.extract_tool_calls_info(client, reply):
        reply = replace(reply, tool_calls=tuple(map(read_tool_call, infos or ())))
    return replace(reply, warnings=(*reply.warnings, *warnings)) if warnings else reply


async def _returned(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def owner_of(client: BaseClient, name: str) -> Any:
    """Return the object whose method of this name runs call: the client or the one that it adapts; None if neither."""
    if isinstance(client, CreateMessageClient):
        return client.client if callable(getattr(client.client, name, None)) else None
    return client if is_overridden(client, BaseClient, name) else None


def updated_history(owner: Any, messages: Sequence[Message], is_result: Callable[[Message], bool]) -> list[Message]:
    """Return a conversation in which `update_message_history` has added each turn's tool results.

    Args:
        owner: The object whose method is called, once for each turn.
        messages: The conversation as the dialect wrote it.
        is_result: Tells the messages that hold results.
    """
    history: list[Message] = []
    results: list[tuple[str, Mapping[str, Any]]] = []
    for message in messages:
        if is_result(message):
            results.append((str(message.get("tool_call_id") or ""), {"type": "text", "text": message.text}))
            continue
        if results:
            history, results = [*map(Message.of, owner.update_message_history(history, results))], []
        history.append(message)
    return [*map(Message.of, owner.update_message_history(history, results))] if results else history
