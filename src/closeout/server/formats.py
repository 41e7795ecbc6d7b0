"""The three request formats of the proxy: Chat Completions, Responses, Anthropic Messages. No I/O.

A format reads a request as messages and tools, reads a reply, and writes one: whole, or piece by piece.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from closeout.codec import decode_json, encode_json
from closeout.messages import Message, ModelReply, ModelRequest, ToolCall, ToolSpec
from closeout.models.anthropic import AnthropicStream, read_message
from closeout.models.openai import OpenAIStream, read_completion
from closeout.models.streaming import ReplyBuilder, StreamReader
from closeout.server.api_errors import ApiError
from closeout.server.governing import arguments_object, arguments_text
from closeout.server.sse import event_bytes
from closeout.server.upstream import UpstreamKind
from closeout.server.usage import chat_usage, messages_usage, responses_usage

__all__ = [
    "FORMATS",
    "AnthropicMessages",
    "ChatCompletions",
    "Format",
    "NativeFormat",
    "OfferedTools",
    "Responses",
    "Writer",
]


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of a request: functions with their schemas, and the names of tools of other kinds."""

    functions: tuple[ToolSpec, ...] = ()
    others: tuple[str, ...] = ()


class Writer(ABC):
    """Writes a streamed reply, event by event.

    It can begin in the middle of a stream: show it the events that a client got already with `observe`.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = body
        self.model = str(body.get("model") or "")
        self.id = ""
        self.begun = False

    def observe(self, event: Mapping[str, Any]) -> None:  # noqa: B027  Responses are never passed through
        """Take note of an event of the upstream server that the client got."""

    @abstractmethod
    def begin(self) -> Iterator[bytes]:
        """Begin the reply, unless it has begun."""

    @abstractmethod
    def text(self, piece: str) -> Iterator[bytes]:
        """Write a piece of the text."""

    @abstractmethod
    def finish(self, reply: ModelReply) -> Iterator[bytes]:
        """Write the calls and the end of a reply, whose text has been written."""


class Format(ABC):
    """One of the request formats.

    Attributes:
        path: Where such requests are sent, after the version.
    """

    path: ClassVar[str]

    @abstractmethod
    def tools(self, body: Mapping[str, Any]) -> OfferedTools:
        """Return the tools of a request."""

    @abstractmethod
    def messages(self, body: Mapping[str, Any]) -> list[Message]:
        """Return the conversation of a request in the form of Chat Completions."""

    @abstractmethod
    def request(self, body: Mapping[str, Any], tools: OfferedTools) -> ModelRequest:
        """Return a request for a server that speaks another format."""

    @abstractmethod
    def whole(self, body: Mapping[str, Any], reply: ModelReply) -> dict[str, Any]:
        """Return the body of a response."""

    @abstractmethod
    def writer(self, body: Mapping[str, Any]) -> Writer:
        """Return a writer for a streamed response to a request."""

    def parallel(self, body: Mapping[str, Any]) -> bool:
        """Return whether a reply may hold several calls."""
        return body.get("parallel_tool_calls") is not False


class NativeFormat(Format):
    """A format that an upstream server may speak itself: requests and valid replies are passed on as they are.

    Attributes:
        protocol: The kind of server that speaks it.
    """

    protocol: ClassVar[UpstreamKind]

    @abstractmethod
    def read(self, value: Any) -> ModelReply | None:
        """Return the reply in the body of a response; None if it is not one."""

    @abstractmethod
    def reader(self, builder: ReplyBuilder) -> StreamReader:
        """Return a reader of a streamed response."""

    @abstractmethod
    def repaired(self, value: dict[str, Any], reply: ModelReply) -> dict[str, Any]:
        """Return a server's response with another text and other calls."""

    def asked_again(self, body: Mapping[str, Any], hint: str) -> dict[str, Any]:
        """Return the request with the reason why the reply to it was of no use."""
        return {**body, "messages": with_hint(body["messages"], hint)}


def _sampling(body: Mapping[str, Any], limit: str) -> dict[str, Any]:
    """The options that all formats share."""
    found: dict[str, Any] = {name: body.get(name) for name in ("temperature", "top_p")}
    found["max_tokens"] = body.get(limit)
    kinds: dict[str, Any] = {"temperature": int | float, "top_p": int | float, "max_tokens": int}
    return {name: value for name, value in found.items() if isinstance(value, kinds[name])}


def _choice(body: Mapping[str, Any]) -> Any:
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    named = {"any": "required", "tool": "required", "function": "required"}
    found = named.get(str(kind), kind)
    return found if found in ("auto", "none", "required") else None


def _dicts(value: Any, name: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ApiError(400, f"{name} must be a list of objects.", param=name)
    return value


def _spec(name: Any, description: Any, parameters: Any) -> ToolSpec | None:
    if not isinstance(name, str) or not name:
        return None
    schema = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    return ToolSpec(name, description if isinstance(description, str) else "", schema)


def _offered(pairs: Iterator[tuple[ToolSpec | None, str]]) -> OfferedTools:
    functions: list[ToolSpec] = []
    others: list[str] = []
    for spec, name in pairs:
        if spec is not None:
            functions.append(spec)
        elif name:
            others.append(name)
    return OfferedTools(tuple(functions), tuple(others))


# ------------------------------------------------------------------------------------------------ Chat Completions


class ChatCompletions(NativeFormat):
    """OpenAI's Chat Completions."""

    path = "chat/completions"
    protocol = "openai"

    def tools(self, body: Mapping[str, Any]) -> OfferedTools:
        def each() -> Iterator[tuple[ToolSpec | None, str]]:
            for tool in _dicts(body.get("tools"), "tools"):
                function = tool.get("function")
                if isinstance(function, dict):
                    yield _spec(function.get("name"), function.get("description"), function.get("parameters")), ""
                else:
                    custom = tool.get("custom")
                    yield None, str((custom if isinstance(custom, dict) else tool).get("name") or "")

        return _offered(each())

    def messages(self, body: Mapping[str, Any]) -> list[Message]:
        return [Message(message) for message in _dicts(body.get("messages"), "messages")]

    def request(self, body: Mapping[str, Any], tools: OfferedTools) -> ModelRequest:
        limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
        stop = body.get("stop")
        return ModelRequest(
            messages=self.messages(body),
            tools=tools.functions,
            tool_choice=_choice(body),
            stop=tuple(stop) if isinstance(stop, list) else (stop,) if isinstance(stop, str) else (),
            **_sampling(body, limit),
        )

    def read(self, value: Any) -> ModelReply | None:
        return read_completion(value)

    def reader(self, builder: ReplyBuilder) -> StreamReader:
        return OpenAIStream(builder, lambda _: None)

    def repaired(self, value: dict[str, Any], reply: ModelReply) -> dict[str, Any]:
        first, *rest = value["choices"]
        message = {**first["message"], "content": reply.text or None}
        message.pop("function_call", None)
        if reply.tool_calls:
            message["tool_calls"] = [_chat_call(call) for call in reply.tool_calls]
        choice = {**first, "message": message, "finish_reason": reply.finish_reason}
        return {**value, "choices": [choice, *rest]}

    def whole(self, body: Mapping[str, Any], reply: ModelReply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = [_chat_call(call) for call in reply.tool_calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish_reason}
        return {
            "id": _new_id("chatcmpl-"),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": reply.model or str(body.get("model") or ""),
            "choices": [choice],
            "usage": chat_usage(reply.usage),
        }

    def writer(self, body: Mapping[str, Any]) -> Writer:
        return _ChatWriter(body)


def with_hint(messages: Sequence[Mapping[str, Any]], hint: str) -> list[Any]:
    """Return a conversation that ends with a hint. The reply that it is about is not shown: it would be repeated."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if last.get("role") != "user" or not isinstance(content, str | list):
        return [*messages, {"role": "user", "content": hint}]
    # Roles must alternate for many models.
    more: Any = f"{content}\n\n{hint}" if isinstance(content, str) else [*content, {"type": "text", "text": hint}]
    return [*messages[:-1], {**last, "content": more}]


def _chat_call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments_text(call)},
    }


class _ChatWriter(Writer):
    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body)
        self._created = int(time.time())

    def observe(self, event: Mapping[str, Any]) -> None:
        self.begun = True
        self.id = self.id or str(event.get("id") or "")
        self.model = str(event.get("model") or self.model)
        created = event.get("created")
        self._created = created if isinstance(created, int) else self._created

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choices = [] if "usage" in more else [{"index": 0, "delta": delta, "finish_reason": finish}]
        self.id = self.id or _new_id("chatcmpl-")
        head = {"id": self.id, "object": "chat.completion.chunk", "created": self._created, "model": self.model}
        return event_bytes({**head, "choices": choices, **more})

    def begin(self) -> Iterator[bytes]:
        if not self.begun:
            self.begun = True
            yield self._chunk({"role": "assistant", "content": ""})

    def text(self, piece: str) -> Iterator[bytes]:
        yield from self.begin()
        if piece:
            yield self._chunk({"content": piece})

    def finish(self, reply: ModelReply) -> Iterator[bytes]:
        yield from self.begin()
        for index, call in enumerate(reply.tool_calls):
            yield self._chunk({"tool_calls": [{"index": index, **_chat_call(call)}]})
        yield self._chunk({}, reply.finish_reason)
        options = self.body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            yield self._chunk({}, usage=chat_usage(reply.usage))
        yield b"data: [DONE]\n\n"


# ------------------------------------------------------------------------------------------------ Anthropic Messages

_STOPS = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


class AnthropicMessages(NativeFormat):
    """Anthropic's Messages."""

    path = "messages"
    protocol = "anthropic"

    def tools(self, body: Mapping[str, Any]) -> OfferedTools:
        def each() -> Iterator[tuple[ToolSpec | None, str]]:
            for tool in _dicts(body.get("tools"), "tools"):
                name, schema = tool.get("name"), tool.get("input_schema")
                yield (_spec(name, tool.get("description"), schema), "") if schema else (None, str(name or ""))

        return _offered(each())

    def parallel(self, body: Mapping[str, Any]) -> bool:
        choice = body.get("tool_choice")
        return not (isinstance(choice, dict) and choice.get("disable_parallel_tool_use"))

    def messages(self, body: Mapping[str, Any]) -> list[Message]:
        system = body.get("system")
        found = [Message(role="system", content=_plain(system))] if system else []
        for message in _dicts(body.get("messages"), "messages"):
            found += _chat_messages(message)
        return found

    def request(self, body: Mapping[str, Any], tools: OfferedTools) -> ModelRequest:
        stop = body.get("stop_sequences")
        return ModelRequest(
            messages=self.messages(body),
            tools=tools.functions,
            tool_choice=_choice(body),
            stop=tuple(map(str, stop)) if isinstance(stop, list) else (),
            **_sampling(body, "max_tokens"),
        )

    def read(self, value: Any) -> ModelReply | None:
        return read_message(value)

    def reader(self, builder: ReplyBuilder) -> StreamReader:
        return AnthropicStream(builder)

    def repaired(self, value: dict[str, Any], reply: ModelReply) -> dict[str, Any]:
        kept = [block for block in value["content"] if block.get("type") not in ("text", "tool_use")]
        return {**value, "content": [*kept, *_blocks(reply)], "stop_reason": _stop_reason(reply)}

    def whole(self, body: Mapping[str, Any], reply: ModelReply) -> dict[str, Any]:
        return {
            "id": _new_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": reply.model or str(body.get("model") or ""),
            "content": _blocks(reply),
            "stop_reason": _stop_reason(reply),
            "stop_sequence": None,
            "usage": messages_usage(reply.usage),
        }

    def writer(self, body: Mapping[str, Any]) -> Writer:
        return _MessagesWriter(body)


def _stop_reason(reply: ModelReply) -> str:
    return _STOPS.get(reply.finish_reason, "end_turn")


def _blocks(reply: ModelReply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text.strip() else []
    calls = reply.tool_calls
    return blocks + [
        {"type": "tool_use", "id": c.id, "name": c.name, "input": dict(arguments_object(c))} for c in calls
    ]


def _plain(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def _chat_messages(message: Mapping[str, Any]) -> Iterator[Message]:
    """A message of the Messages API as messages of Chat Completions: results first, since they answer calls."""
    role, content = str(message.get("role") or "user"), message.get("content")
    if not isinstance(content, list):
        yield Message(role=role, content=_plain(content))
        return
    blocks = [block for block in content if isinstance(block, dict)]
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            shown = block.get("content")
            yield Message(role="tool", tool_call_id=str(block.get("tool_use_id")), content=_plain(shown))
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
    text = _text_or_parts(parts)
    if calls:
        yield Message(role=role, content=text or None, tool_calls=calls)
    elif text:
        yield Message(role=role, content=text)


_NOT_CONTENT = ("tool_use", "tool_result", "thinking", "redacted_thinking")


def _text_or_parts(parts: list[dict[str, Any]]) -> Any:
    """Return parts as one text if they are nothing else, because not every server takes parts."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _chat_part(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block of the Messages API as a part of a message of Chat Completions."""
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
    raise _untranslatable(kind, "messages")


def _untranslatable(kind: Any, param: str) -> ApiError:
    text = f"The proxy cannot translate content of the type {kind!r:.80} for the upstream server."
    return ApiError(400, text, param=param)


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
            "id": _new_id("msg_"),
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

    def finish(self, reply: ModelReply) -> Iterator[bytes]:
        yield from self.begin()
        for call in reply.tool_calls:
            yield from self._start({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": arguments_text(call)})
        yield from self._close()
        ending = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
        yield self._event("message_delta", delta=ending, usage=messages_usage(reply.usage))
        yield self._event("message_stop")


# ------------------------------------------------------------------------------------------------ Responses


class Responses(Format):
    """OpenAI's Responses. The proxy keeps no responses: `previous_response_id` and `background` are refused."""

    path = "responses"

    def tools(self, body: Mapping[str, Any]) -> OfferedTools:
        def each() -> Iterator[tuple[ToolSpec | None, str]]:
            for tool in _dicts(body.get("tools"), "tools"):
                if tool.get("type") == "function":
                    yield _spec(tool.get("name"), tool.get("description"), tool.get("parameters")), ""
                else:
                    kind = tool.get("type")
                    raise ApiError(400, f"The proxy takes function tools, not {kind!r:.80}.", param="tools")

        return _offered(each())

    def messages(self, body: Mapping[str, Any]) -> list[Message]:
        for name in ("previous_response_id", "background", "conversation"):
            if body.get(name):
                raise ApiError(
                    400, f"The proxy keeps no responses: send the whole conversation, no {name}.", param=name
                )
        instructions = body.get("instructions")
        found = [Message(role="system", content=instructions)] if isinstance(instructions, str) else []
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else _dicts(given, "input")
        for item in items:
            _add_item(found, item)
        return found

    def request(self, body: Mapping[str, Any], tools: OfferedTools) -> ModelRequest:
        return ModelRequest(
            messages=self.messages(body),
            tools=tools.functions,
            tool_choice=_choice(body),
            **_sampling(body, "max_output_tokens"),
        )

    def whole(self, body: Mapping[str, Any], reply: ModelReply) -> dict[str, Any]:
        writer = _ResponsesWriter(body)
        for _ in (*writer.text(reply.text), *writer.finish(reply)):
            pass
        return writer.response

    def writer(self, body: Mapping[str, Any]) -> Writer:
        return _ResponsesWriter(body)


def _add_item(messages: list[Message], item: Mapping[str, Any]) -> None:
    """Add an input item to a conversation. Calls in a row belong to one message."""
    match item.get("type", "message"):
        case "function_call":
            function = {"name": str(item.get("name")), "arguments": str(item.get("arguments") or "{}")}
            call = {"id": str(item.get("call_id")), "type": "function", "function": function}
            last = messages[-1] if messages else None
            if last is not None and last.role == "assistant":
                messages[-1] = Message({**last, "tool_calls": [*(last.get("tool_calls") or ()), call]})
            else:
                messages.append(Message(role="assistant", content=None, tool_calls=[call]))
        case "function_call_output":
            output = item.get("output")
            text = output if isinstance(output, str) else _plain(output)
            messages.append(Message(role="tool", tool_call_id=str(item.get("call_id")), content=text))
            within = output if isinstance(output, list) else []
            if parts := [_input_part(part) for part in within if part.get("type") != "input_text"]:
                messages.append(Message(role="user", content=parts))
        case "message":
            messages.append(Message(role=str(item.get("role") or "user"), content=_response_content(item)))
        case "reasoning" | "item_reference":
            return
        case kind:
            raise ApiError(400, f"The proxy cannot take input items of the type {kind!r:.80}.", param="input")


def _response_content(item: Mapping[str, Any]) -> Any:
    content = item.get("content")
    if not isinstance(content, list) or item.get("role") == "assistant":
        return _plain(content)
    return _text_or_parts([_input_part(part) for part in _dicts(content, "input")])


def _input_part(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a message of the Responses API as one of Chat Completions."""
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": str(part.get("text") or "")}
    if kind == "input_image" and part.get("image_url"):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": str(part["image_url"]), **detail}}
    if kind == "input_file" and not part.get("file_url"):
        names = ("filename", "file_data", "file_id")
        return {"type": "file", "file": {name: part[name] for name in names if part.get(name)}}
    if kind == "input_audio":
        return dict(part)
    raise _untranslatable(kind, "input")


class _ResponsesWriter(Writer):
    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body)
        self._number = 0
        self._text: list[str] = []
        self._output: list[dict[str, Any]] = []
        self._message: int | None = None
        self.response: dict[str, Any] = {
            "id": _new_id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata") or {},
            "model": self.model,
            "output": [],
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "temperature": body.get("temperature"),
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p"),
            "usage": None,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, **fields, "sequence_number": self._number}
        self._number += 1
        return event_bytes(event, name=kind)

    def begin(self) -> Iterator[bytes]:
        if not self.begun:
            self.begun = True
            yield self._event("response.created", response=self.response)
            yield self._event("response.in_progress", response=self.response)

    def _add(self, item: dict[str, Any]) -> bytes:
        self._output.append(item)
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def text(self, piece: str) -> Iterator[bytes]:
        yield from self.begin()
        if not piece:
            return
        if self._message is None:
            self._message = len(self._output)
            item = {"id": _new_id("msg_"), "type": "message", "role": "assistant", "status": "in_progress"}
            yield self._add({**item, "content": []})
            yield self._event("response.content_part.added", **self._place(), part=_part(""))
        self._text.append(piece)
        yield self._event("response.output_text.delta", **self._place(), delta=piece, logprobs=[])

    def _place(self) -> dict[str, Any]:
        assert self._message is not None
        return {"item_id": self._output[self._message]["id"], "output_index": self._message, "content_index": 0}

    def finish(self, reply: ModelReply) -> Iterator[bytes]:
        yield from self.begin()
        if self._message is not None:
            text = "".join(self._text)
            yield self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
            yield self._event("response.content_part.done", **self._place(), part=_part(text))
            yield self._done(self._message, content=[_part(text)])
        for call in reply.tool_calls:
            yield from self._call(call)
        cut = reply.finish_reason in ("length", "content_filter")
        reason = "content_filter" if reply.finish_reason == "content_filter" else "max_output_tokens"
        self.response |= {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": reason} if cut else None,
            "model": reply.model or self.model,
            "output": self._output,
            "usage": responses_usage(reply.usage),
        }
        yield self._event("response.incomplete" if cut else "response.completed", response=self.response)

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        item = {"id": _new_id("fc_"), "type": "function_call", "call_id": call.id, "name": call.name}
        yield self._add({**item, "arguments": "", "status": "in_progress"})
        index, text = len(self._output) - 1, arguments_text(call)
        place = {"item_id": item["id"], "output_index": index}
        yield self._event("response.function_call_arguments.delta", **place, delta=text)
        yield self._event("response.function_call_arguments.done", **place, arguments=text, name=call.name)
        yield self._done(index, arguments=text)

    def _done(self, index: int, **changes: Any) -> bytes:
        item = self._output[index] = {**self._output[index], **changes, "status": "completed"}
        return self._event("response.output_item.done", output_index=index, item=item)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _new_id(prefix: str) -> str:
    import secrets

    return prefix + secrets.token_hex(12)


FORMATS: Sequence[Format] = (ChatCompletions(), Responses(), AnthropicMessages())
"""The formats of the proxy."""


def decoded(frame: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return the JSON objects in the data of events; what is not one is left out."""
    found = []
    for data in frame:
        try:
            value = decode_json(data, keep_surrogates=True)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
