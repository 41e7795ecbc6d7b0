"""Complete and correct replies in forms that servers send, although their documentation lacks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from closeout.codec import decode_json
from closeout.run.sse_stream import event_bytes

__all__ = ["ODD_FORMS", "OddForm"]

Message = dict[str, Any]


def _unchanged(message: Message) -> Message:
    return message


@dataclass(frozen=True, slots=True, kw_only=True)
class OddForm:
    """The form of a reply. A protocol without a counterpart of the form leaves its replies unchanged.

    Attributes:
        source: Where it is described.
        chat: Returns the message of a chat completion in this form.
        content: Returns the message of Anthropic's Messages in this form.
        finish: The finish reason of a chat completion; None: its own.
        on: Which turns can have it: with calls, with text only, or any.
        framing: "json" answers a request for a stream with a whole body, "events" the other way round, "comments" sends
            comments between the events, "empty_finish" sends events with an empty finish reason before the last.
    """

    source: str
    chat: Callable[[Message], Message] = _unchanged
    content: Callable[[Message], Message] = _unchanged
    finish: str | None = None
    on: Literal["calls", "text", "any"] = "calls"
    framing: Literal["", "json", "events", "comments", "empty_finish"] = ""

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a whole reply in this form."""
        if not body.get("choices"):
            return self.content(body)
        (choice,) = body["choices"]
        if "message" not in choice:
            return body
        message = self.chat(dict(choice["message"]))
        finish = self.finish if self.finish and message.get("tool_calls") else choice["finish_reason"]
        return {**body, "choices": [{**choice, "message": message, "finish_reason": finish}]}

    def streams(self, *, wanted: bool) -> bool:
        """Return whether a reply is streamed, given whether the request asks for it."""
        return self.framing == "events" or (wanted and self.framing != "json")

    def chunks(self, whole: dict[str, Any], *, with_usage: bool) -> Iterator[bytes]:
        """Yield a chat completion in this form as a stream: each call in one piece, as most such servers do."""
        (choice,) = whole["choices"]
        head = {**whole, "object": "chat.completion.chunk"}
        usage = head.pop("usage", None)
        message = dict(choice["message"])
        if isinstance(message.get("tool_calls"), list):
            message["tool_calls"] = [_with_index(place, call) for place, call in enumerate(message["tool_calls"])]
        empty = "" if self.framing == "empty_finish" else None
        for delta, finish in (({"role": "assistant", "content": ""}, empty), (message, empty), ({}, None)):
            reason = finish if delta else choice["finish_reason"]
            yield event_bytes({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
        if with_usage:
            yield event_bytes({**head, "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


def _with_index(place: int, call: Message) -> Message:
    """Return a call of a stream. One whose form has no index says so with None."""
    if "index" in call:
        return {name: value for name, value in call.items() if name != "index"}
    return {"index": place, **call}


def _calls(change: Callable[[Message], Message]) -> Callable[[Message], Message]:
    """Return a change of a message that changes each of its calls."""

    def changed(message: Message) -> Message:
        if not message.get("tool_calls"):
            return message
        return {**message, "tool_calls": [change(call) for call in message["tool_calls"]]}

    return changed


def _object_arguments(call: Message) -> Message:
    return {**call, "function": {**call["function"], "arguments": decode_json(call["function"]["arguments"])}}


def _function_call(message: Message) -> Message:
    calls = message.pop("tool_calls", None)
    return {**message, "function_call": calls[0]["function"]} if calls else message


def _content_parts(message: Message) -> Message:
    if not message.get("content"):
        return message
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "I think about it."}]}
    return {**message, "content": [thought, {"type": "text", "text": message["content"]}]}


def _refusal(message: Message) -> Message:
    return {**message, "content": None, "refusal": message["content"]} if message.get("content") else message


def _blocks(change: Callable[[Message], Message]) -> Callable[[Message], Message]:
    """Return a change of a message of Anthropic's that changes each of its calls."""

    def changed(message: Message) -> Message:
        blocks = [change(block) if block["type"] == "tool_use" else block for block in message["content"]]
        return {**message, "content": blocks}

    return changed


ODD_FORMS: Mapping[str, OddForm] = {
    "null_id": OddForm(
        source="https://github.com/ggml-org/llama.cpp/issues/11992",
        chat=_calls(lambda call: {**call, "id": None}),
        content=_blocks(lambda block: {**block, "id": None}),
    ),
    "no_type": OddForm(
        source="https://github.com/iOfficeAI/aionrs/pull/99",
        chat=_calls(lambda call: {name: value for name, value in call.items() if name != "type"}),
    ),
    "no_index": OddForm(
        source="https://github.com/ollama/ollama/issues/7881",
        chat=_calls(lambda call: {**call, "index": None}),
    ),
    "object_arguments": OddForm(
        source="https://github.com/ggml-org/llama.cpp/issues/20198", chat=_calls(_object_arguments)
    ),
    "function_call": OddForm(
        source="https://platform.openai.com/docs/api-reference/chat/object", chat=_function_call, finish="function_call"
    ),
    "finish_stop": OddForm(source="https://github.com/sgl-project/sglang/issues/2877", finish="stop"),
    "content_parts": OddForm(source="https://docs.mistral.ai/capabilities/reasoning", chat=_content_parts, on="text"),
    "refusal_field": OddForm(
        source="https://platform.openai.com/docs/guides/structured-outputs", chat=_refusal, on="text"
    ),
    "unstreamed": OddForm(source="https://github.com/sgl-project/sglang/issues/2810", framing="json", on="any"),
    "always_streamed": OddForm(source="https://github.com/QuantumNous/new-api/issues/5230", framing="events", on="any"),
    "comments": OddForm(source="https://github.com/openai/openai-go/issues/227", framing="comments", on="any"),
    "empty_finish": OddForm(
        source="https://github.com/adolfousier/opencrabs/pull/1499", framing="empty_finish", on="any"
    ),
}
"""The forms by the name of the fault."""
