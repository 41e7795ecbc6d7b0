"""The client for Anthropic's messages API and servers that speak it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from closeout.codec import decode_json, encode_json, join_surrogates
from closeout.messages import Capabilities, Constraint, Message, ModelReply, ModelRequest, ToolCall, ToolSpec, Usage
from closeout.models import transport
from closeout.models.catalog import Price, known_context
from closeout.models.cited_pages import cited_by_anthropic, with_citations
from closeout.models.http import HTTPClient
from closeout.models.http_errors import json_or_none
from closeout.models.message_changes import form_change, reasoning_changes
from closeout.models.message_forms import in_strict_form
from closeout.models.openai_messages import MessageEncoder
from closeout.models.refusals import RequestChange, ServerRefusal
from closeout.models.retry import RetryPolicy
from closeout.models.sent_names import safe_name
from closeout.models.server_rules import ServerRules
from closeout.models.streaming import MOST_COUNTED, ReplyBuilder, StreamReader
from closeout.parsing.numbers import written_json

__all__ = ["AnthropicClient", "AnthropicStream", "conversation", "read_message", "tool_definitions"]

ANTHROPIC_URL = "https://api.anthropic.com"
_LONGEST_REASON = 80  # characters of a stop reason that is not ours
VERSION = "2023-06-01"  # a header that the API requires; there has been no other version since
LEAST_BUDGET = 1024  # tokens of thinking that the API takes at least
# The API requires a limit. Models of 2024 allow fewer tokens: their refusal says how many, and the client remembers it.
DEFAULT_MAX_TOKENS = 16_384
_FINISHES: Mapping[str, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "context_full",
    "refusal": "content_filter",
}
_THINKING = ("thinking", "redacted_thinking")
# The fields of blocks whose content the history holds anyway.
_PLAIN: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "text"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
}
_CHOICES: Mapping[str, dict[str, str]] = {
    "auto": {"type": "auto"},
    "required": {"type": "any"},
    "none": {"type": "none"},
}


class AnthropicClient(HTTPClient):
    """A model behind Anthropic's messages API.

    Thinking with its signature, redacted thinking, and calls that the server makes itself are sent back unchanged, in
    the order in which they came.

    Args:
        model: The model's name on the server.
        base_url: The server's address without `/v1`. By default Anthropic's.
        api_key: Sent as `x-api-key`, if set.
        extra_body: Options for every request (`{"thinking": {"type": "adaptive"}}`). A request's own options take
            precedence.
        headers: Additional HTTP headers.
        timeout: Seconds for one attempt.
        retry: Which errors are retried, and when.
        temperature: For requests without their own; so are `top_p` and `max_tokens`.
        top_p: See `temperature`.
        max_tokens: See `temperature`.
        cache: Whether to set cache marks, at the request's `breakpoints` or else after the system prompt and the last
            message.
        prices: See `catalog.find_price`. Known prices apply only to Anthropic's own server.
        capabilities: Instead of what is known about the server.

    Raises:
        ConfigError: The address is invalid.
    """

    _needs_limit = True
    _OPTIONAL = frozenset({"temperature", "top_p", "stop_sequences", "tool_choice", "output_config", "stream"})

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
        key = {"x-api-key": api_key} if api_key else {}
        sent = {"anthropic-version": VERSION, **key, **(headers or {})}
        super().__init__(
            "anthropic",
            model,
            base,
            own_host=own_host,
            headers=sent,
            extra_body=extra_body,
            timeout=timeout,
            retry=retry,
            sampling=(temperature, top_p),
            max_tokens=max_tokens,
            prices=prices,
        )
        self.capabilities = capabilities or Capabilities(
            json_schema=own_host, images=True, known=True, max_context=known_context(model) if own_host else None
        )
        self._messages = transport.Endpoint(f"{base}/v1/messages", sent)
        self.max_reply = max_tokens or DEFAULT_MAX_TOKENS
        self._cache = cache

    # -------------------------------------------------------------------------------- requests

    def _endpoint(self, request: ModelRequest) -> transport.Endpoint:
        return self._messages

    def _body(self, request: ModelRequest, *, stream: bool) -> bytes:
        messages = in_strict_form(request.messages) if self.rules.strict else request.messages
        if request.prompt is not None:
            messages = (Message(role="user", content=request.prompt),)
        encode = replace(self.rules.encode, server=self._server)
        system, turns = conversation(messages, self._marks(request, messages), encode)
        body = encode_json(self._options(request, stream))[:-1]
        tools = self._tools_json(request, messages)
        if tools:
            body += b',"tools":%b' % tools
        if system:
            body += b',"system":%b' % system
        return b'%b,"messages":%b}' % (body, turns)

    def _marks(self, request: ModelRequest, messages: Sequence[Message]) -> Sequence[int]:
        if not self._cache or "cache_control" in self.rules.dropped:
            return ()
        if request.breakpoints:
            return request.breakpoints
        systems = [index for index, message in enumerate(messages) if message.role == "system"]
        return (*systems[-1:], len(messages) - 1)

    def _tools_json(self, request: ModelRequest, messages: Sequence[Message]) -> bytes:
        if not request.tools:
            used = uses_tools(messages)
            return encode_json(tool_definitions([ToolSpec(name) for name in used])) if used else b""
        return self._tools_of(request.tools)[0]

    def _options(self, request: ModelRequest, stream: bool) -> dict[str, Any]:
        asked = {name: value for name, value in self._asked(request).items() if name not in self.rules.dropped}
        limit = {"max_tokens": self._limit_of(request)}
        options = {"model": self.model, **limit, **asked, **self._extras_of(request)}
        if stream:
            options["stream"] = True
        return options | self._with_room(options, is_set=bool(request.max_tokens or self._max_tokens))

    def _with_room(self, options: Mapping[str, Any], *, is_set: bool) -> dict[str, Any]:
        """Return limits with a budget of thinking below `max_tokens`, as the API wants: half of a limit that is set."""
        thinking, limit = options.get("thinking"), options["max_tokens"]
        budget = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
        if not (isinstance(thinking, Mapping) and isinstance(budget, int) and budget >= limit):
            return {}
        if is_set or self.rules.most_tokens is not None:
            limit = max(limit, 2 * LEAST_BUDGET)
            return {"max_tokens": limit, "thinking": {**thinking, "budget_tokens": limit // 2}}
        return {"max_tokens": limit + budget}

    def _asked(self, request: ModelRequest) -> dict[str, Any]:
        choice: Any = _CHOICES[request.tool_choice] if request.tool_choice is not None else None
        if not request.tools:
            choice = {"type": "none"} if uses_tools(request.messages) else None
        options: dict[str, Any] = {
            **self._sampling_of(request),
            "stop_sequences": list(request.stop) or None,
            "tool_choice": choice,
        }
        if request.constraint is not None:
            options |= self._constraint_options(request.constraint)
        return {name: value for name, value in options.items() if value is not None}

    def _constraint_options(self, constraint: Constraint) -> dict[str, Any]:
        if constraint.kind != "json_schema":
            return {}
        return {"output_config": {"format": {"type": "json_schema", "schema": constraint.value}}}

    def _definitions(self, tools: Sequence[ToolSpec]) -> Any:
        return tool_definitions(tools)

    def _changes(self, request: ModelRequest, rules: ServerRules, refusal: ServerRefusal) -> list[RequestChange]:
        return [
            form_change(refusal),
            *reasoning_changes(_THINKING[:1], rules.encode, refusal, "signature"),
            *super()._changes(request, rules, refusal),
        ]

    # -------------------------------------------------------------------------------- replies

    def _read_reply(self, value: Any) -> ModelReply | None:
        return read_message(value)

    def _stream_reader(self, builder: ReplyBuilder) -> StreamReader:
        return AnthropicStream(builder)


def read_message(value: Any) -> ModelReply | None:
    """Return the reply in the body of a message; None if it is not one."""
    if not isinstance(value, dict) or not isinstance(value.get("content"), list) or value.get("type") == "error":
        return None
    blocks = [block for block in value["content"] if isinstance(block, dict)]
    texts = [str(block.get("text") or "") for block in blocks if block.get("type") == "text"]
    thinking = [block for block in blocks if block.get("type") in _THINKING]
    calls = tuple(_call(block) for block in blocks if block.get("type") == "tool_use")
    return ModelReply(
        "".join(texts),
        "\n\n".join(str(block["thinking"]) for block in thinking if block.get("thinking")),
        calls,
        finish_reason=_finish(value.get("stop_reason")),
        usage=_usage(value.get("usage"), Usage(requests=1)),
        model=str(value.get("model") or ""),
        attached=_attached(blocks),
    )


def _attached(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the blocks to send back, in their order, if there are others than plain texts and calls.

    Of the calls only the places are kept: what a call says is in the history, repaired where that was necessary.
    """
    if all(block.keys() <= _PLAIN.get(str(block.get("type")), frozenset()) for block in blocks):
        return {}
    content = [_without(block, "name", "input") if _is(block, "tool_use") else dict(block) for block in blocks]
    return with_citations({"content": content}, cited_by_anthropic(blocks))


def _is(block: Mapping[str, Any], kind: str) -> bool:
    return block.get("type") == kind


def _without(block: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name not in names}


def _call(block: Mapping[str, Any]) -> ToolCall:
    text = written_json(block.get("input") or {})
    return ToolCall(str(block.get("name") or ""), text, str(block.get("id") or ""), text=text)


def _finish(value: Any) -> str:
    """Return a stop reason as one of ours, or as it is if it is unknown: such a reply is not finished."""
    return _FINISHES.get(value, value[:_LONGEST_REASON]) if isinstance(value, str) and value else "missing"


def _usage(value: Any, before: Usage) -> Usage:
    """Return the usage with an event's counts, which are totals, not increments.

    The API's input tokens leave out what the cache served and stored; ours are those of the whole prompt.
    """
    if not isinstance(value, dict):
        return before
    fresh_before = before.input_tokens - before.cache_read_tokens - before.cache_write_tokens
    read = _count(value.get("cache_read_input_tokens"), before.cache_read_tokens)
    write = _count(value.get("cache_creation_input_tokens"), before.cache_write_tokens)
    fresh = _count(value.get("input_tokens"), fresh_before)
    return Usage(
        fresh + read + write,
        _count(value.get("output_tokens"), before.output_tokens),
        cache_read_tokens=read,
        cache_write_tokens=write,
        requests=1,
    )


def _count(value: Any, before: int) -> int:
    return value if isinstance(value, int) and 0 <= value <= MOST_COUNTED else before


class AnthropicStream(StreamReader):
    """Reads the events of a streamed message: each block starts, grows and stops."""

    __slots__ = ("_blocks", "_grown", "_places")

    def __init__(self, builder: ReplyBuilder) -> None:
        super().__init__(builder)
        self._blocks: dict[int, dict[str, Any]] = {}
        self._grown: dict[tuple[int, str], list[str]] = {}  # the pieces of a block's field
        self._places: dict[int, int] = {}  # the server's index of a block → ours: some servers number all blocks 0

    @property
    def attached(self) -> dict[str, Any]:
        blocks = {index: dict(block) for index, block in self._blocks.items()}
        for (index, name), pieces in self._grown.items():
            blocks[index][name] = join_surrogates("".join(pieces))
        for block in blocks.values():
            if isinstance(written := block.get("input"), str):  # the server makes such a call itself
                with suppress(ValueError):
                    block["input"] = decode_json(written)
        return _attached([blocks[index] for index in sorted(blocks)])

    def take(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "content_block_delta":
            index = _index(event)
            self._grow(self._places.get(index, index), _object(event, "delta"))
        elif kind == "content_block_start":
            self._start(_index(event), _object(event, "content_block"))
        elif kind == "message_start":
            message = _object(event, "message")
            self.builder.model = str(message.get("model") or "")
            self.builder.usage = _usage(message.get("usage"), Usage(requests=1))
        elif kind == "message_delta":
            self.builder.usage = _usage(event.get("usage"), self.builder.usage or Usage(requests=1))
            if reason := _object(event, "delta").get("stop_reason"):
                self.builder.finish_reason = _finish(reason)
            self._add_whole_inputs()
        elif kind == "message_stop":
            self.done = True

    def _add_whole_inputs(self) -> None:
        """Add the inputs that came with the start of their block: usually that is {}, and deltas follow."""
        for index, block in self._blocks.items():
            if not (_is(block, "tool_use") and block.get("input")):
                continue
            written = self.builder.arguments(index)
            if not written:
                self.builder.add_call(index, arguments=written_json(block["input"]))
            elif json_or_none(written) != block["input"]:
                self.builder.lost = True

    def _start(self, at: int, block: Mapping[str, Any]) -> None:
        index = at if at not in self._blocks else max(self._blocks) + 1
        if index != at:
            before = self._places.get(at, at)
            self.builder.renumbered = True
            # Their deltas cannot be told apart if both grow.
            earlier = self._blocks[before]
            growing = _is(earlier, "tool_use") and not (earlier.get("input") or self.builder.is_whole(before))
            self.builder.lost = self.builder.lost or (growing and _is(block, "tool_use"))
        self._places[at] = index
        self._blocks[index] = dict(block)
        if _is(block, "tool_use"):
            self.builder.add_call(index, call_id=str(block.get("id") or ""), name=str(block.get("name") or ""))
        elif _is(block, "text"):
            self.builder.add_text(str(block.get("text") or ""))
        elif _is(block, "thinking"):
            self.builder.add_reasoning(str(block.get("thinking") or ""))

    def _grow(self, index: int, delta: Mapping[str, Any]) -> None:
        kind = delta.get("type")
        if kind == "text_delta":
            self.builder.add_text(self._add(index, "text", str(delta.get("text") or "")))
        elif kind == "input_json_delta":
            piece = str(delta.get("partial_json") or "")
            # `server_tool_use` has such deltas too, but the server makes that call itself.
            if _is(self._blocks.get(index, {}), "tool_use"):
                self.builder.add_call(index, arguments=piece)
            elif piece and index in self._blocks:
                self._add(index, "input", piece)
        elif kind == "thinking_delta":
            self.builder.add_reasoning(self._add(index, "thinking", str(delta.get("thinking") or "")))
        elif kind == "signature_delta":
            self._add(index, "signature", str(delta.get("signature") or ""))
        elif kind == "citations_delta":
            block = self._blocks.setdefault(index, {"type": "text"})
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]

    def _add(self, index: int, name: str, piece: str) -> str:
        """Add a piece to a block's field and return it."""
        pieces = self._grown.get((index, name))
        if pieces is None:
            block = self._blocks.setdefault(index, {"type": "text" if name == "text" else "thinking"})
            start = block.get(name)
            pieces = self._grown[index, name] = [start] if isinstance(start, str) else []
        pieces.append(piece)
        return piece


def _object(event: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field that should be an object; empty if it is not."""
    value = event.get(name)
    return value if isinstance(value, dict) else {}


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    return index if isinstance(index, int) else 0


# ------------------------------------------------------------------------------------------------ requests


PROTOCOL = "anthropic"
# The API takes at most four cache marks in a request.
MAX_MARKS = 4
_MARK = b',"cache_control":{"type":"ephemeral"}}'
_BAD_ID = re.compile(r"[^a-zA-Z0-9_-]")
_DATA_URL = re.compile(r"data:([\w.+/-]+);base64,(.*)", re.DOTALL)


def conversation(messages: Sequence[Message], marks: Iterable[int], rules: MessageEncoder) -> tuple[bytes, bytes]:
    """Return `system` and `messages` as JSON, with cache marks at the messages of these indexes.

    System messages at the start become `system`; later ones and tool results become user messages. The server gets its
    own blocks back, without thinking if it refuses that; with `always`, every reply begins with thinking.
    """
    protocol, encode = f"{PROTOCOL} {rules}", partial(_encode, rules=rules)
    chosen = set(sorted({index for index in marks if 0 <= index < len(messages)})[-MAX_MARKS:])
    head = next((i for i, message in enumerate(messages) if message.role not in {"system", "developer"}), len(messages))
    system: list[bytes] = []
    turns: list[tuple[str, list[bytes]]] = []
    for index, message in enumerate(messages):
        blocks = message.wire(protocol, encode)
        if not blocks:
            continue
        if index in chosen and _blocks(message, rules)[-1].get("type") not in _THINKING:  # it cannot carry a mark
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


def _encode(message: Message, rules: MessageEncoder) -> bytes:
    return b",".join(encode_json(block) for block in _blocks(message, rules))


def _blocks(message: Message, rules: MessageEncoder) -> list[dict[str, Any]]:
    if message.role == "tool":
        return _result(message)
    texts, calls = _content(message), _calls(message)
    attached = message.get("attached")
    blocks = [*texts, *calls]
    if isinstance(attached, Mapping) and attached.get("server") == rules.server:
        blocks = _in_order(attached, message.text, texts, calls)
    if "thinking" in rules.refused:
        blocks = [block for block in blocks if block.get("type") not in _THINKING]
    if rules.always and message.role == "assistant" and not any(_is(block, "thinking") for block in blocks):
        blocks = [{"type": "thinking", "thinking": "", "signature": ""}, *blocks]
    return blocks


def _in_order(
    attached: Mapping[str, Any], text: str, texts: list[dict[str, Any]], calls: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the blocks of a reply in the order in which they came: the API checks that of thinking and calls.

    A reply whose text was read differently, because it held a call, has its text in the place of the first one.
    """
    came, given = attached.get("content"), attached.get("ids") or {}
    blocks = [block for block in came if isinstance(block, dict)] if isinstance(came, list) else []
    unchanged = text == "".join(str(block.get("text") or "") for block in blocks if _is(block, "text"))
    waiting = {_id(given.get(block["id"], block["id"])): block for block in calls}
    result: list[dict[str, Any]] = []
    for block in blocks:
        if _is(block, "tool_use"):
            call = waiting.pop(_id(block.get("id")), None)
            result += [] if call is None else [{**block, **call}]
        elif not _is(block, "text"):
            result.append(block)
        elif unchanged:
            result += [block] if str(block.get("text") or "").strip() else []
        else:
            result, texts = [*result, *texts], []
    return [*result, *([] if unchanged else texts), *waiting.values()]


def _result(message: Message) -> list[dict[str, Any]]:
    content = message.get("content")
    shown: Any = list(_content(message)) if isinstance(content, list) else message.text
    return [{"type": "tool_result", "tool_use_id": _id(message.get("tool_call_id")), "content": shown}]


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
            value = decode_json(text) if isinstance(text, str) and text.strip() else text or {}
        except ValueError:
            value = {"arguments": text}
        name, call_id = safe_name(str(function.get("name") or "")), _id(call.get("id"))
        arguments = value if isinstance(value, dict) else {"arguments": value}
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
    return blocks


def _id(value: Any) -> str:
    """Return an id that the API accepts: letters, digits, `_` and `-`. Ids of other servers may hold anything."""
    return _BAD_ID.sub("_", str(value or "")) or "call"


def tool_definitions(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return the `tools` list of a request."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)} for tool in tools
    ]


def uses_tools(messages: Sequence[Message]) -> list[str]:
    """Return the names of the tools that a conversation calls. The API requires their definitions in any case."""
    names = {
        safe_name(str((call.get("function") or {}).get("name") or ""))
        for message in messages
        for call in message.get("tool_calls") or ()
    }
    return sorted(names)
