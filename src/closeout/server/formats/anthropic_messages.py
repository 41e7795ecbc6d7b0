"""Anthropic's Messages as a request format of the proxy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from closeout.codec import encode_json
from closeout.messages import Message, ModelReply, ModelRequest, Repair, ToolSpec, Usage
from closeout.models.anthropic import AnthropicStream, read_message
from closeout.models.streaming import ReplyBuilder, StreamReader
from closeout.server.formats.client_history import repair_blocks
from closeout.server.formats.format import FormCheck, NativeFormat, RequestTools, Writer
from closeout.server.formats.shared_fields import (
    list_of_objects,
    new_id,
    offered_tools,
    plain_text,
    sampling,
    text_or_parts,
    tool_choice,
    tool_spec,
    untranslatable,
)
from closeout.server.governing import arguments_object, arguments_text
from closeout.server.sse import event_bytes

__all__ = ["AnthropicMessages"]

_STOPS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "context_full": "model_context_window_exceeded",
    "content_filter": "refusal",
}


class AnthropicMessages(NativeFormat):
    """Anthropic's Messages."""

    path = "messages"
    protocol = "anthropic"
    translated = frozenset({
        "model", "messages", "system", "tools", "tool_choice", "stop_sequences", "temperature", "top_p", "max_tokens",
        "stream",
    })  # fmt: skip

    def tools(self, body: Mapping[str, Any]) -> RequestTools:
        return offered_tools(body, _read_tool)

    def parallel(self, body: Mapping[str, Any]) -> bool:
        choice = body.get("tool_choice")
        return not (isinstance(choice, dict) and choice.get("disable_parallel_tool_use"))

    def mended(self, body: dict[str, Any]) -> tuple[dict[str, Any], list[Repair]]:
        messages, repairs = repair_blocks(list_of_objects(body.get("messages"), "messages"))
        return ({**body, "messages": messages}, repairs) if repairs else (body, [])

    def messages(self, body: Mapping[str, Any]) -> list[Message]:
        system = body.get("system")
        found = [Message(role="system", content=plain_text(system))] if system else []
        for message in list_of_objects(body.get("messages"), "messages"):
            found += _chat_messages(message)
        return found

    def _translated(self, body: Mapping[str, Any]) -> list[Message]:
        """Return the conversation if Chat Completions has all that it holds. Raises `ApiError` otherwise."""
        found = self.messages(body)
        parts = (part for each in found if isinstance(each.content, list) for part in each.content)
        for part in parts:
            if part["type"] not in _CHAT_PARTS:
                raise untranslatable(part["type"], "messages")
        return found

    def request(self, body: Mapping[str, Any], tools: RequestTools) -> ModelRequest:
        stop = body.get("stop_sequences")
        return ModelRequest(
            messages=self._translated(body),
            tools=tools.functions,
            tool_choice=tool_choice(body),
            stop=tuple(map(str, stop)) if isinstance(stop, list) else (),
            **sampling(body, "max_tokens"),
        )

    def read(self, value: Any) -> ModelReply | None:
        return read_message(value)

    def reader(self, builder: ReplyBuilder) -> StreamReader:
        return AnthropicStream(builder)

    def form_check(self) -> FormCheck:
        return _MessagesCheck()

    def repaired(self, value: dict[str, Any], reply: ModelReply) -> dict[str, Any]:
        blocks = [block for block in value["content"] if isinstance(block, dict)]
        kept = [block for block in blocks if block.get("type") not in ("text", "tool_use")]
        return {**value, "content": [*kept, *_blocks(reply)], "stop_reason": _stop_reason(reply)}

    def whole(self, body: Mapping[str, Any], reply: ModelReply) -> dict[str, Any]:
        return {
            "id": new_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": reply.model or str(body.get("model") or ""),
            "content": _blocks(reply),
            "stop_reason": _stop_reason(reply),
            "stop_sequence": None,
            "usage": _usage(reply.usage),
        }

    def writer(self, body: Mapping[str, Any]) -> _MessagesWriter:
        return _MessagesWriter(body)


def _read_tool(tool: Mapping[str, Any]) -> ToolSpec | str | None:
    name, schema = tool.get("name"), tool.get("input_schema")
    return tool_spec(name, tool.get("description"), schema) if schema else str(name or "")


class _MessagesCheck(FormCheck):
    def take(self, value: Mapping[str, Any]) -> None:
        begun = value.get("content_block")
        content = [begun] if isinstance(begun, dict) else value.get("content")
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict) and block.get("type") == "tool_use":
                self._take_id(len(self._ids), block.get("id"))
                if not isinstance(block.get("input", {}), dict):
                    self._note("input")


def _stop_reason(reply: ModelReply) -> str:
    """Return the stop reason. One that clients do not know stays, because such a reply is not finished."""
    if reply.tool_calls and reply.finish_reason == "stop":
        return "tool_use"
    return _STOPS.get(reply.finish_reason, reply.finish_reason)


def _blocks(reply: ModelReply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text.strip() else []
    calls = reply.tool_calls
    return blocks + [
        {"type": "tool_use", "id": c.id, "name": c.name, "input": dict(arguments_object(c))} for c in calls
    ]


def _chat_messages(message: Mapping[str, Any]) -> Iterator[Message]:
    """A message of the Messages API as messages of Chat Completions: results first, since they answer calls."""
    role, content = str(message.get("role") or "user"), message.get("content")
    if not isinstance(content, list):
        yield Message(role=role, content=plain_text(content))
        return
    blocks = [block for block in content if isinstance(block, dict)]
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            shown = block.get("content")
            yield Message(role="tool", tool_call_id=str(block.get("tool_use_id")), content=plain_text(shown))
            # The result of a tool is text in Chat Completions: its pictures follow in a message.
            within = shown if isinstance(shown, list) else []
            parts += [_chat_part(each) for each in within if isinstance(each, dict) and each.get("type") != "text"]
    calls = [
        {
            "id": str(block.get("id") or ""),
            "type": "function",
            "function": {
                "name": str(block.get("name") or ""),
                "arguments": encode_json(block.get("input") or {}).decode(),
            },
        }
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    parts += [_chat_part(block) for block in blocks if block.get("type") not in _NOT_CONTENT]
    text = text_or_parts(parts)
    if calls:
        yield Message(role=role, content=text or None, tool_calls=calls)
    elif text:
        yield Message(role=role, content=text)


_CHAT_PARTS = ("text", "image_url", "file")
_NOT_CONTENT = ("tool_use", "tool_result", "thinking", "redacted_thinking")


def _chat_part(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block of the Messages API as a part of a message of Chat Completions, or its type if there is no such part."""
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return {"type": "text", "text": str(block.get("text") or "")}
    if kind in ("image", "document") and isinstance(source, dict):
        if source.get("type") == "text":
            return {"type": "text", "text": str(source.get("data") or "")}
        data = f"data:{source.get('media_type')};base64,{source.get('data')}"
        if kind == "image":
            return {"type": "image_url", "image_url": {"url": source.get("url") or data}}
        if source.get("type") == "base64":
            return {"type": "file", "file": {"filename": str(block.get("title") or "document"), "file_data": data}}
    return {"type": str(kind)}


class _MessagesWriter(Writer):
    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body)
        self._next = 0  # the index of the next block
        self._open = False  # a text block is open

    def observe(self, event: Mapping[str, Any]) -> None:
        self.begun = True
        kind, index = event.get("type"), event.get("index")
        if kind == "content_block_start":
            self._next = (index if isinstance(index, int) else self._next) + 1
            self._open = True
        elif kind == "content_block_stop":
            self._open = False

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event_bytes({"type": kind, **fields}, name=kind)

    def begin(self) -> Iterator[bytes]:
        if self.begun:
            return
        self.begun = True
        message: dict[str, Any] = {
            "id": new_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        yield self._event("message_start", message=message)

    def _start(self, block: dict[str, Any]) -> Iterator[bytes]:
        yield from self._close()
        yield self._event("content_block_start", index=self._next, content_block=block)
        self._next += 1
        self._open = True

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._event("content_block_delta", index=self._next - 1, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open:
            self._open = False
            yield self._event("content_block_stop", index=self._next - 1)

    def text(self, piece: str) -> Iterator[bytes]:
        yield from self.begin()
        if not piece:
            return
        if not self._open:
            yield from self._start({"type": "text", "text": ""})
        yield self._delta({"type": "text_delta", "text": piece})

    def citation(self, citation: Mapping[str, Any]) -> bytes:
        """Return the event that adds a citation to the text."""
        return self._delta({"type": "citations_delta", "citation": dict(citation)})

    def finish(self, reply: ModelReply) -> Iterator[bytes]:
        yield from self.begin()
        for call in reply.tool_calls:
            yield from self._start({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": arguments_text(call)})
        yield from self._close()
        ending = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
        yield self._event("message_delta", delta=ending, usage=_usage(reply.usage))
        yield self._event("message_stop")


def _usage(usage: Usage) -> dict[str, int]:
    """Return the usage object of Anthropic Messages. Its input tokens exclude those of the prompt cache."""
    return {
        "input_tokens": max(usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens, 0),
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
    }
