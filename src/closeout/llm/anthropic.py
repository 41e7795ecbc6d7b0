"""The client for Anthropic's messages API and servers that speak it. How requests are written: `anthropic_wire`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from closeout.codec import encode_json
from closeout.llm import transport
from closeout.llm.anthropic_wire import conversation, tools_json, uses_tools
from closeout.llm.building import MOST_COUNTED, ReplyBuilder
from closeout.llm.contexts import known_context
from closeout.llm.http import HTTPClient, StreamReader
from closeout.llm.pricing import Price
from closeout.llm.retry import RetryPolicy
from closeout.messages import Capabilities, Message, ModelReply, ModelRequest, ToolCall, ToolSpec, Usage

__all__ = ["ANTHROPIC_URL", "AnthropicClient"]

ANTHROPIC_URL = "https://api.anthropic.com"
# The version that the API asks for in a header; the only one since 2023.
VERSION = "2023-06-01"
# The API wants a limit. Models of 2024 allow fewer tokens; their refusal names how many, and is learned from.
DEFAULT_MAX_TOKENS = 16_384
_OPTIONAL = frozenset({"temperature", "top_p", "stop_sequences", "tool_choice", "output_config"})
_LIMIT = re.compile(r"max_tokens: \d+ > (\d+)")
_FINISHES: Mapping[str, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_CHOICES: Mapping[str, dict[str, str]] = {
    "auto": {"type": "auto"},
    "required": {"type": "any"},
    "none": {"type": "none"},
}


class AnthropicClient(HTTPClient):
    """A model behind Anthropic's messages API.

    `base_url` without `/v1`; default: Anthropic's own. `cache`: whether to set cache marks, at the request's
    `breakpoints` or, where it has none, after the system prompt and the last message. `extra_body`: options that go
    into every request (`{"thinking": {"type": "adaptive"}}`), a request's own before them. `temperature`, `top_p` and
    `max_tokens` hold where a request does not say. Thinking goes back as it came, with its signature. Raises
    ConfigError for a bad address.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        extra_body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        retry: RetryPolicy | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        cache: bool = True,
        prices: Mapping[str, Price | Sequence[float]] | None = None,
        capabilities: Capabilities | None = None,
    ) -> None:
        base = (base_url or ANTHROPIC_URL).strip().rstrip("/").removesuffix("/v1")
        own_host = base == ANTHROPIC_URL
        super().__init__(
            "anthropic", model, base, own_host=own_host, extra_body=extra_body, timeout=timeout, retry=retry,
            sampling=(temperature, top_p), max_tokens=max_tokens, prices=prices,
        )  # fmt: skip
        self.capabilities = capabilities or Capabilities(
            json_schema=own_host, images=True, known=True, max_context=known_context(model) if own_host else None
        )
        sent = {"anthropic-version": VERSION, **({"x-api-key": api_key} if api_key else {})}
        self._messages = transport.Endpoint(f"{base}/v1/messages", {**sent, **(headers or {})})
        self._most_tokens: int | None = None  # what the model allows, once it has said so
        self._cache = cache

    # -------------------------------------------------------------------------------- requests

    def _endpoint(self, request: ModelRequest) -> transport.Endpoint:
        return self._messages

    def _body(self, request: ModelRequest, *, stream: bool) -> bytes:
        messages = request.messages
        if request.prompt is not None:
            messages = (Message(role="user", content=request.prompt),)
        system, turns = conversation(messages, self._marks(request, messages))
        body = encode_json(self._options(request, stream))[:-1]
        tools = self._tools_json(request, messages)
        if tools:
            body += b',"tools":%b' % tools
        if system:
            body += b',"system":%b' % system
        return b'%b,"messages":%b}' % (body, turns)

    def _marks(self, request: ModelRequest, messages: Sequence[Message]) -> Sequence[int]:
        if not self._cache:
            return ()
        if request.breakpoints:
            return request.breakpoints
        systems = [index for index, message in enumerate(messages) if message.role == "system"]
        return (*systems[-1:], len(messages) - 1)

    def _tools_json(self, request: ModelRequest, messages: Sequence[Message]) -> bytes:
        if not request.tools:
            used = uses_tools(messages)
            return tools_json([ToolSpec(name) for name in used]) if used else b""
        return self._tools_text(request.tools, tools_json)

    def _options(self, request: ModelRequest, stream: bool) -> dict[str, Any]:
        asked = {name: value for name, value in self._asked(request).items() if name not in self._dropped}
        limit = request.max_tokens or self._max_tokens or DEFAULT_MAX_TOKENS
        limit = limit if self._most_tokens is None else min(limit, self._most_tokens)
        options = {"model": self.model, "max_tokens": limit, **asked, **self._extra, **request.extra_body}
        return {**options, "stream": True} if stream else options

    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        choice: Any = _CHOICES[request.tool_choice] if request.tool_choice is not None else None
        if not request.tools:
            choice = {"type": "none"} if uses_tools(request.messages) else None
        options: dict[str, Any] = {
            **self._sampling_of(request),
            "stop_sequences": list(request.stop) or None,
            "tool_choice": choice,
        }
        if request.constraint is not None and request.constraint.kind == "json_schema":
            options["output_config"] = {"format": {"type": "json_schema", "schema": request.constraint.value}}
        return {name: value for name, value in options.items() if value is not None}

    def _droppable(self, request: ModelRequest) -> set[str]:
        return set(self._asked(request)) & _OPTIONAL

    def _adapt(self, request: ModelRequest, param: str, reason: str) -> bool:
        limit = _LIMIT.search(reason)
        if limit is not None and self._most_tokens is None:
            self._most_tokens = max(int(limit[1]), 1)
            return True
        return super()._adapt(request, param, reason)

    # -------------------------------------------------------------------------------- replies

    def _read(self, value: Any) -> ModelReply | None:
        if not isinstance(value, dict) or not isinstance(value.get("content"), list) or value.get("type") == "error":
            return None
        blocks = [block for block in value["content"] if isinstance(block, dict)]
        texts = [str(block.get("text") or "") for block in blocks if block.get("type") == "text"]
        thinking = [block for block in blocks if block.get("type") in {"thinking", "redacted_thinking"}]
        calls = tuple(_call(block) for block in blocks if block.get("type") == "tool_use")
        return ModelReply(
            "".join(texts),
            "\n\n".join(str(block["thinking"]) for block in thinking if block.get("thinking")),
            calls,
            _finish(value.get("stop_reason")),
            _usage(value.get("usage"), Usage(requests=1)),
            str(value.get("model") or ""),
            thinking or None,
        )

    def _stream_reader(self, builder: ReplyBuilder) -> StreamReader:
        return _AnthropicStream(builder)


def _call(block: Mapping[str, Any]) -> ToolCall:
    text = encode_json(block.get("input") or {}).decode()
    return ToolCall(str(block.get("name") or ""), text, str(block.get("id") or ""), text=text)


def _finish(given: Any) -> str:
    return _FINISHES.get(given, "stop") if isinstance(given, str) else "stop"


def _usage(given: Any, before: Usage) -> Usage:
    """The usage with the counts of an event in place of earlier ones: they are totals, not increments.

    The API counts input without what was read from or written to the cache; ours is the whole prompt.
    """
    if not isinstance(given, dict):
        return before
    fresh_before = before.input_tokens - before.cache_read_tokens - before.cache_write_tokens
    read = _count(given.get("cache_read_input_tokens"), before.cache_read_tokens)
    write = _count(given.get("cache_creation_input_tokens"), before.cache_write_tokens)
    fresh = _count(given.get("input_tokens"), fresh_before)
    return Usage(fresh + read + write, _count(given.get("output_tokens"), before.output_tokens), read, write, 1)


def _count(given: Any, before: int) -> int:
    return given if isinstance(given, int) and 0 <= given <= MOST_COUNTED else before


class _AnthropicStream(StreamReader):
    """Events of a streamed message: blocks that start, grow and stop, in order."""

    __slots__ = ("_blocks",)

    def __init__(self, builder: ReplyBuilder) -> None:
        super().__init__(builder)
        self._blocks: dict[int, dict[str, Any]] = {}

    @property
    def details(self) -> Any:
        kept = [block for block in self._blocks.values() if block.get("type") in {"thinking", "redacted_thinking"}]
        return kept or None

    def take(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "content_block_delta":
            self._grow(_index(event), event.get("delta") or {})
        elif kind == "content_block_start":
            self._start(_index(event), event.get("content_block") or {})
        elif kind == "message_start":
            message = event.get("message") or {}
            self.builder.model = str(message.get("model") or "")
            self.builder.usage = _usage(message.get("usage"), Usage(requests=1))
        elif kind == "message_delta":
            self.builder.usage = _usage(event.get("usage"), self.builder.usage or Usage(requests=1))
            delta = event.get("delta") or {}
            if delta.get("stop_reason"):
                self.builder.finish_reason = _finish(delta["stop_reason"])
        elif kind == "message_stop":
            self.done = True

    def _start(self, index: int, block: Mapping[str, Any]) -> None:
        self._blocks[index] = dict(block)
        if block.get("type") == "tool_use":
            # `input` is {} here and comes in pieces; a server that sends it whole does it here.
            given = block.get("input")
            text = encode_json(given).decode() if given else ""
            self.builder.add_call(
                index, call_id=str(block.get("id") or ""), name=str(block.get("name") or ""), arguments=text
            )
        elif block.get("type") == "text":
            self.builder.add_text(str(block.get("text") or ""))
        elif block.get("type") == "thinking":
            self.builder.add_reasoning(str(block.get("thinking") or ""))

    def _grow(self, index: int, delta: Mapping[str, Any]) -> None:
        kind = delta.get("type")
        if kind == "text_delta":
            self.builder.add_text(str(delta.get("text") or ""))
        elif kind == "input_json_delta":
            self.builder.add_call(index, arguments=str(delta.get("partial_json") or ""))
        elif kind == "thinking_delta":
            piece = str(delta.get("thinking") or "")
            block = self._blocks.setdefault(index, {"type": "thinking", "thinking": ""})
            block["thinking"] = str(block.get("thinking") or "") + piece
            self.builder.add_reasoning(piece)
        elif kind == "signature_delta":
            block = self._blocks.setdefault(index, {"type": "thinking", "thinking": ""})
            block["signature"] = str(block.get("signature") or "") + str(delta.get("signature") or "")


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0
