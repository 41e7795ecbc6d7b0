"""The message-history methods that a client overrides, called for each request of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from closeout.codec import shared_items
from closeout.errors import CloseoutError, UsageError
from closeout.messages import Message, ModelReply, ModelRequest, Step
from closeout.models.base import BaseClient, OnDelta, OnRetry, RunRequest, run_request
from closeout.models.connect import METHODS, CreateMessageClient, reply_by_methods, system_and_history, unboxed
from closeout.overrides import is_overridden, method_of

__all__ = ["UpdatedHistory", "as_reply", "asks_by_methods", "complete_by_methods", "name_method", "owner_of"]

OPTIONS = tuple(field.name for field in fields(ModelRequest) if field.name not in ("messages", "prompt", "tools"))


def asks_by_methods(client: BaseClient) -> bool:
    """Return whether a run's requests go through the message-history methods: the client overrides or adapts one."""
    return isinstance(client, CreateMessageClient) or any(is_overridden(client, BaseClient, name) for name in METHODS)


def as_reply(client: BaseClient, returned: Any) -> ModelReply:
    """Return the reply that a client's `complete` returned, which may be in a box.

    Raises:
        ModelError: The client returned an ErrorBox or nothing.
        UsageError: It returned something that is not a reply.
    """
    if isinstance(returned, ModelReply):
        return returned
    reply, warnings = unboxed(returned, client.name)
    if not isinstance(reply, ModelReply):
        raise UsageError(f"{type(client).__name__}.complete must return a ModelReply, got {reply!r:.80}.")
    return replace(reply, warnings=(*reply.warnings, *warnings))


async def complete_by_methods(
    client: BaseClient,
    request: ModelRequest,
    *,
    on_delta: OnDelta | None = None,
    on_retry: OnRetry | None = None,
    step_id: int,
    run: RunRequest,
) -> ModelReply:
    """Send a request through the message-history methods of a client.

    Args:
        client: Overrides or adapts one of these methods.
        request: What to send.
        on_delta: As for `BaseClient.complete`.
        on_retry: As for `BaseClient.complete`.
        step_id: The number of the turn, from 1.
        run: What is the same for all requests of the run.
    """
    options, is_text = {name: getattr(request, name) for name in OPTIONS}, request.prompt is not None
    run = replace(run, options=options, is_text=is_text, on_delta=on_delta, on_retry=on_retry, step_id=step_id)
    token = run_request.set(run)
    try:
        if isinstance(client, CreateMessageClient):
            return await client.complete(request, on_delta=on_delta, on_retry=on_retry)
        system, history = system_and_history(request)
        return await reply_by_methods(client, client.name, run, system=system, history=history, tools=request.tools)
    finally:
        run_request.reset(token)


def name_method(client: BaseClient, error: Exception) -> None:
    """Note on an error that is not one of ours which method of a client raised it, unless it was noted before."""
    if not isinstance(error, CloseoutError) and not hasattr(error, "__notes__"):
        owner = client.client if isinstance(client, CreateMessageClient) else client
        usual = "create_message" if asks_by_methods(client) else "complete"
        error.add_note(f"{method_of(owner, usual, error)} raised it.")


def owner_of(client: BaseClient, name: str) -> Any:
    """Return the object whose method of this name runs call: the client or the one that it adapts; None if neither."""
    if isinstance(client, CreateMessageClient):
        return client.client if callable(getattr(client.client, name, None)) else None
    return client if is_overridden(client, BaseClient, name) else None


@dataclass(frozen=True, slots=True)
class _Updated:
    """The conversation up to the end of a turn's results, as a client has it.

    Attributes:
        history: What `update_message_history` returned.
        messages: How many messages of the dialect it holds.
        steps: How many steps the run had.
    """

    history: Sequence[Message] = ()
    messages: int = 0
    steps: int = 0


class UpdatedHistory:
    """A conversation in which a client's `update_message_history` adds each turn's tool results, once for each turn.

    Args:
        owner: The object whose method is called.
    """

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self._written: Sequence[Message] = ()
        self._turns: deque[_Updated] = deque(maxlen=3)  # the last ones: a hint may change the last result for a request

    def write(self, messages: Sequence[Message], steps: Sequence[Step]) -> list[Message]:
        """Return the conversation that the dialect wrote as the client has it.

        Args:
            messages: The conversation as the dialect wrote it.
            steps: The steps that it holds.
        """
        same = shared_items(self._written, messages)
        self._written = messages
        while self._turns and self._turns[-1].messages > same:
            self._turns.pop()
        done = self._turns[-1] if self._turns else _Updated()
        shown = [
            returned.text for step in steps[max(done.steps - 1, 0) :] for returned in step.returns if returned.text
        ]
        history = list(done.history)
        results: list[tuple[str, Mapping[str, Any]]] = []
        for number, message in enumerate(messages[done.messages :], done.messages):
            if message.role == "tool" or (message.role == "user" and any(text in message.text for text in shown)):
                results.append((str(message.get("tool_call_id") or ""), {"type": "text", "text": message.text}))
                continue
            if results:
                history, results = self._with(history, results, number, len(steps)), []
            history.append(message)
        return self._with(history, results, len(messages), len(steps)) if results else history

    def _with(self, history: list[Message], results: Any, messages: int, steps: int) -> list[Message]:
        added = Message.all_of(self.owner.update_message_history(history, results))
        self._turns.append(_Updated(added, messages, steps))
        return [*added]
