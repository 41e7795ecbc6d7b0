"""OpenAI's Chat Completions as a request format of the proxy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from closeout.messages import Message, ModelReply, ModelRequest, Repair, ToolSpec, Usage
from closeout.models.openai import OpenAIStream, read_completion
from closeout.models.streaming import ReplyBuilder, StreamReader
from closeout.server.formats.client_history import repair_chat
from closeout.server.formats.format import FormCheck, NativeFormat, RequestTools, Writer
from closeout.server.formats.shared_fields import (
    list_of_objects,
    new_id,
    offered_tools,
    sampling,
    tool_choice,
    tool_spec,
)
from closeout.server.governing import arguments_text
from closeout.server.sse import event_bytes

__all__ = ["ChatCompletions", "chat_usage"]


class ChatCompletions(NativeFormat):
    """OpenAI's Chat Completions."""

    path = "chat/completions"
    protocol = "openai"
    translated = frozenset({
        "model", "messages", "tools", "tool_choice", "stop", "temperature", "top_p", "max_tokens",
        "max_completion_tokens", "stream", "stream_options", "n",
    })  # fmt: skip

    def tools(self, body: Mapping[str, Any]) -> RequestTools:
        return offered_tools(body, _read_tool)

    def mended(self, body: dict[str, Any]) -> tuple[dict[str, Any], list[Repair]]:
        messages, repairs = repair_chat(list_of_objects(body.get("messages"), "messages"))
        return ({**body, "messages": messages}, repairs) if repairs else (body, [])

    def messages(self, body: Mapping[str, Any]) -> list[Message]:
        return [Message(message) for message in list_of_objects(body.get("messages"), "messages")]

    def request(self, body: Mapping[str, Any], tools: RequestTools) -> ModelRequest:
        limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
        stop = body.get("stop")
        return ModelRequest(
            messages=self.messages(body),
            tools=tools.functions,
            tool_choice=tool_choice(body),
            stop=tuple(stop) if isinstance(stop, list) else (stop,) if isinstance(stop, str) else (),
            **sampling(body, limit),
        )

    def read(self, value: Any) -> ModelReply | None:
        return read_completion(value)

    def reader(self, builder: ReplyBuilder) -> StreamReader:
        return OpenAIStream(builder, lambda _: None)

    def form_check(self) -> FormCheck:
        return _ChatCheck()

    def repaired(self, value: dict[str, Any], reply: ModelReply) -> dict[str, Any]:
        first, *rest = value["choices"]
        message = {**first["message"], "content": reply.text or None}
        for calls in ("function_call", "tool_calls"):
            message.pop(calls, None)
        if reply.tool_calls:
            message["tool_calls"] = _chat_calls(reply)
        choice = {**first, "message": message, "finish_reason": _finish(reply)}
        return {**value, "choices": [choice, *rest]}

    def whole(self, body: Mapping[str, Any], reply: ModelReply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["tool_calls"] = _chat_calls(reply)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}
        return {
            "id": new_id("chatcmpl-"),
            "object": "chat.completion",
            "created": int(time.time()),
            "model": reply.model or str(body.get("model") or ""),
            "choices": [choice],
            "usage": chat_usage(reply.usage),
        }

    def writer(self, body: Mapping[str, Any]) -> Writer:
        return _ChatWriter(body)


def _read_tool(tool: Mapping[str, Any]) -> ToolSpec | str | None:
    function, custom = tool.get("function"), tool.get("custom")
    if isinstance(function, dict):
        return tool_spec(function.get("name"), function.get("description"), function.get("parameters"))
    return str((custom if isinstance(custom, dict) else tool).get("name") or "")


class _ChatCheck(FormCheck):
    def take(self, value: Mapping[str, Any]) -> None:
        for choice in value.get("choices") or ():
            if not isinstance(choice, dict) or choice.get("index"):
                continue
            streamed = value.get("object") == "chat.completion.chunk"
            said = choice.get("delta" if streamed else "message")
            if isinstance(said, dict):
                self._take_message(said, streamed=streamed)

    def _take_message(self, said: Mapping[str, Any], *, streamed: bool) -> None:
        if said.get("refusal") and not said.get("content"):
            self._note("refusal")
        calls = said.get("tool_calls")
        if said.get("function_call") and not calls:
            self._note("function_call")
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict) and isinstance(call.get("function"), dict):
                self._take_call(call, call.get("index") if streamed else place, streamed=streamed)

    def _take_call(self, call: Mapping[str, Any], place: Any, *, streamed: bool) -> None:
        call_id, arguments = call.get("id"), call["function"].get("arguments")
        if not isinstance(arguments, str) and not (streamed and arguments is None):
            self._note("arguments")
        if not isinstance(place, int) or (place in self._ids and call_id not in (None, "", self._ids[place])):
            self._note("index")
        elif place not in self._ids:
            self._take_id(place, call_id)
            if call.get("type") != "function":
                self._note("type")


def _finish(reply: ModelReply) -> str:
    """Return the finish reason. One that clients do not know stays, because such a reply is not finished."""
    if reply.tool_calls and reply.finish_reason == "stop":
        return "tool_calls"
    return "length" if reply.finish_reason == "context_full" else reply.finish_reason


def _chat_calls(reply: ModelReply) -> list[dict[str, Any]]:
    """Return the calls, each with what the upstream server added to it and wants back."""
    added = reply.attached.get("calls", {})
    return [
        {
            **added.get(call.id, {}),
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for call in reply.tool_calls
    ]


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
        self.id = self.id or new_id("chatcmpl-")
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
        for index, call in enumerate(_chat_calls(reply)):
            yield self._chunk({"tool_calls": [{"index": index, **call}]})
        yield self._chunk({}, _finish(reply))
        options = self.body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            yield self._chunk({}, usage=chat_usage(reply.usage))
        yield b"data: [DONE]\n\n"


def chat_usage(usage: Usage) -> dict[str, Any]:
    """Return the usage object of Chat Completions."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    }
