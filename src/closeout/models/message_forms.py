"""Conversations in the form that the strictest servers take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from closeout.messages import Message

__all__ = ["in_strict_form"]

EMPTY = "…"  # in place of a text that is empty
BRIDGE = "OK."  # of the assistant, between the result of a call and a message of the user


def in_strict_form(messages: Sequence[Message]) -> list[Message]:
    """Return messages with content, the user and the assistant in turn after one system message.

    Results have the names of their tools. Messages that have the form already stay the same objects.
    """
    found: list[Message] = []
    names: dict[Any, str] = {}
    for message in messages:
        last = found[-1] if found else None
        names |= {call.get("id"): (call.get("function") or {}).get("name") for call in message.get("tool_calls") or ()}
        if message.role in ("system", "developer") and last is not None and last.role != message.role:
            message = Message({**message, "role": "user"})
        if not (message.text.strip() or message.pictures):
            message = Message({**message, "content": EMPTY})
        if message.role == "tool" and (name := names.get(message.get("tool_call_id"))):
            message = Message({**message, "name": name})
        if message.role == "user" and last is not None and last.role == "tool":
            found.append(Message(role="assistant", content=BRIDGE))
        elif last is not None and message.role == last.role != "tool" and not last.get("tool_calls"):
            parts = [*_parts(found.pop()), {"type": "text", "text": "\n\n"}, *_parts(message)]
            texts = [part["text"] for part in parts if part.get("type") == "text"]
            message = Message({**message, "content": "".join(texts) if len(texts) == len(parts) else parts})
        found.append(message)
    return found


def _parts(message: Message) -> list[dict[str, Any]]:
    content = message.content
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
