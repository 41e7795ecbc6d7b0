"""The message-history methods that a client overrides, called for each request of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from closeout.messages import SHOULD_BREAK, Message, ModelReply, ModelRequest
from closeout.models.base import BaseClient, OnDelta, OnRetry, RunRequest, run_request
from closeout.models.connect import METHODS, CreateMessageClient, read_tool_call, unboxed
from closeout.overrides import is_overridden

__all__ = ["asks_by_methods", "complete_by_methods", "owner_of", "system_and_history", "updated_history"]

OPTIONS = tuple(field.name for field in fields(ModelRequest) if field.name not in ("messages", "prompt", "tools"))


def asks_by_methods(client: BaseClient) -> bool:
    """Return whether a run's requests go through the message-history methods: the client overrides or adapts one."""
    return isinstance(client, CreateMessageClient) or any(is_overridden(client, BaseClient, name) for name in METHODS)


async def complete_by_methods(
    client: BaseClient,
    request: ModelRequest,
    *,
    on_delta: OnDelta | None = None,
    on_retry: OnRetry | None = None,
    keep_tool_result: int,
    step_id: int,
    task_log: Any,
    agent_type: str,
) -> ModelReply:
    """Send a request through the message-history methods of a client.

    Args:
        client: Overrides or adapts one of these methods.
        request: What to send.
        on_delta: As for `BaseClient.complete`.
        on_retry: As for `BaseClient.complete`.
        keep_tool_result: The setting of the run.
        step_id: The number of the turn, from 1.
        task_log: The log of the run.
        agent_type: "main", or the name of a sub-agent.
    """
    run = RunRequest(
        {name: getattr(request, name) for name in OPTIONS},
        request.prompt is not None,
        on_delta,
        on_retry,
        keep_tool_result=keep_tool_result,
        step_id=step_id,
        task_log=task_log,
        agent_type=agent_type,
    )
    token = run_request.set(run)
    try:
        if isinstance(client, CreateMessageClient):
            return await client.complete(request, on_delta=on_delta, on_retry=on_retry)
        return await _complete(client, request, run)
    finally:
        run_request.reset(token)


def system_and_history(request: ModelRequest) -> tuple[str, list[Message]]:
    """Return the system prompt of a request, and its other messages."""
    history = [Message(message) for message in request.as_messages]
    return history.pop(0).text if history and history[0].role == "system" else "", history


async def _complete(client: BaseClient, request: ModelRequest, run: RunRequest) -> ModelReply:
    system, history = system_and_history(request)
    response, after = await client.create_message(
        system_prompt=system,
        message_history=history,
        tool_definitions=request.tools,
        keep_tool_result=run.keep_tool_result,
        step_id=run.step_id,
        task_log=run.task_log,
        agent_type=run.agent_type,
    )
    response, warnings = unboxed(response, client.name)
    reply = response if isinstance(response, ModelReply) else ModelReply("", model=client.name)
    text, should_break, _ = await _returned(client.process_llm_response(response, after, run.agent_type))
    infos = await _returned(client.extract_tool_calls_info(response, text))
    if text != reply.text:
        reply = replace(reply, text=text or "")
    if infos != BaseClient.extract_tool_calls_info(client, reply):
        reply = replace(reply, tool_calls=tuple(map(read_tool_call, infos or ())))
    if should_break and reply.finished:
        reply = replace(reply, finish_reason=SHOULD_BREAK)
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
