"""Messages, tools and cache marks as Anthropic's messages API takes them. What comes back: `anthropic`.

Each message becomes the bytes of its content blocks, once; a request joins them, neighbours of one role together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from closeout.codec import decode_json, encode_json
from closeout.messages import Message, ToolSpec

__all__ = ["conversation", "tools_json", "uses_tools"]

PROTOCOL = "anthropic"
# The API takes at most four cache marks in a request.
MAX_MARKS = 4
_MARK = b',"cache_control":{"type":"ephemeral"}}'
_BAD_ID = re.compile(r"[^a-zA-Z0-9_-]")
_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,(.*)", re.DOTALL)
_THINKING = frozenset({"thinking", "redacted_thinking"})


def conversation(messages: Sequence[Message], marks: Iterable[int]) -> tuple[bytes, bytes]:
    """The `system` and the `messages` list, cache marks set at the messages of these indexes.

    System messages at the head become `system`; later ones are said by the user. A tool's result is the user's.
    """
    chosen = set(sorted({index for index in marks if 0 <= index < len(messages)})[-MAX_MARKS:])
    head = next((i for i, message in enumerate(messages) if message.role not in {"system", "developer"}), len(messages))
    system: list[bytes] = []
    turns: list[tuple[str, list[bytes]]] = []
    for index, message in enumerate(messages):
        blocks = message.wire(PROTOCOL, _encode)
        if not blocks:
            continue
        if index in chosen and _takes_mark(message):
            blocks = blocks[:-1] + _MARK
        role = "assistant" if message.role == "assistant" else "user"
        if index < head:
            system.append(blocks)
        elif turns and turns[-1][0] == role:
            turns[-1][1].append(blocks)
        else:
            turns.append((role, [blocks]))
    rendered = [b'{"role":"%b","content":[%b]}' % (role.encode(), b",".join(blocks)) for role, blocks in turns]
    return b"[%b]" % b",".join(system) if system else b"", b"[%b]" % b",".join(rendered)


def _takes_mark(message: Message) -> bool:
    """Whether the message's last block can carry a cache mark: thinking cannot."""
    return message.role != "assistant" or bool(message.text.strip() or message.get("tool_calls"))


def _encode(message: Message) -> bytes:
    blocks = _result(message) if message.role == "tool" else [*_thinking(message), *_content(message), *_calls(message)]
    return b",".join(encode_json(block) for block in blocks)


def _result(message: Message) -> list[dict[str, Any]]:
    content = message.get("content")
    shown: Any = list(_content(message)) if isinstance(content, list) else message.text
    return [{"type": "tool_result", "tool_use_id": _id(message.get("tool_call_id")), "content": shown}]


def _thinking(message: Message) -> list[dict[str, Any]]:
    """Signed thinking, as it came: the API wants it before the tool calls that it led to."""
    details = message.get("reasoning_details")
    if message.role != "assistant" or not isinstance(details, list):
        return []
    return [block for block in details if isinstance(block, dict) and block.get("type") in _THINKING]


def _content(message: Message) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        # The API refuses empty text.
        return [{"type": "text", "text": content}] if content.strip() else []
    if not isinstance(content, list):
        return []
    return [block for part in content if isinstance(part, dict) and (block := _block(part)) is not None]


def _block(part: Mapping[str, Any]) -> dict[str, Any] | None:
    if part.get("type") == "text":
        text = part.get("text") or ""
        return {"type": "text", "text": text} if text.strip() else None
    if part.get("type") != "image_url":
        return dict(part)
    address = part.get("image_url")
    url = str(address.get("url", "") if isinstance(address, dict) else address)
    data = _DATA_URL.fullmatch(url)
    source = (
        {"type": "base64", "media_type": data[1], "data": data[2]} if data is not None else {"type": "url", "url": url}
    )
    return {"type": "image", "source": source}


def _calls(message: Message) -> list[dict[str, Any]]:
    blocks = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        text = function.get("arguments")
        try:
            given = decode_json(text) if isinstance(text, str) and text.strip() else text or {}
        except ValueError:
            given = {"arguments": text}
        name, call_id = str(function.get("name") or ""), _id(call.get("id"))
        arguments = given if isinstance(given, dict) else {"arguments": given}
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
    return blocks


def _id(given: Any) -> str:
    """Ids may hold letters, digits, `_` and `-` only; other servers' may hold anything."""
    return _BAD_ID.sub("_", str(given or "")) or "call"


def tools_json(tools: Sequence[ToolSpec]) -> bytes:
    """The `tools` list."""
    return encode_json(
        [{"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)} for tool in tools]
    )


def uses_tools(messages: Sequence[Message]) -> list[str]:
    """The names of the tools that a conversation calls: the API wants them declared even where none is offered."""
    names = {
        str((call.get("function") or {}).get("name") or "")
        for message in messages
        for call in message.get("tool_calls") or ()
    }
    return sorted(names - {""})
