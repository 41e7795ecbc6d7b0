"""The scripted model's three wire protocols: requests read, replies written whole or as events. No HTTP, no script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from closeout.codec import decode_json, encode_json
from closeout.messages import ModelReply
from closeout.testing.script import RequestView
from closeout.testing.writing import as_deltas, pieces

__all__ = ["PROTOCOLS", "Protocol"]

Events = Callable[[ModelReply, Mapping[str, Any], Sequence[int]], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class Protocol:
    """How one endpoint reads a request and writes a reply: as a whole body, or as server-sent events."""

    read: Callable[[Mapping[str, Any]], RequestView]
    body: Callable[[ModelReply, Mapping[str, Any]], dict[str, Any]]
    events: Events


def _event(value: Mapping[str, Any], name: str = "") -> bytes:
    return (b"event: %b\n" % name.encode() if name else b"") + b"data: %b\n\n" % encode_json(dict(value))


# ------------------------------------------------------------------------------------------------ OpenAI


def _openai_request(body: Mapping[str, Any]) -> RequestView:
    stop = body.get("stop") or ()
    prompt = body.get("prompt")
    messages = body.get("messages") or ()
    if not all(isinstance(message, dict) for message in messages):
        raise TypeError("messages is no list of objects")
    return RequestView(
        messages=messages,
        prompt=prompt if isinstance(prompt, str) else None,
        tools=tuple(str(tool.get("function", {}).get("name")) for tool in body.get("tools") or ()),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        body=body,
    )


def _openai_usage(reply: ModelReply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    }


def _envelope(kind: str, request: Mapping[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "scripted", "object": kind, "created": 0, "model": request.get("model"), "choices": choices}


def _chat_body(reply: ModelReply, request: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or (None if reply.tool_calls else "")}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
            for call in reply.tool_calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
    return {**_envelope("chat.completion", request, [choice]), "usage": _openai_usage(reply)}


def _completion_body(reply: ModelReply, request: Mapping[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "text": reply.text, "finish_reason": reply.finish_reason}
    return {**_envelope("text_completion", request, [choice]), "usage": _openai_usage(reply)}


def _chat_events(reply: ModelReply, request: Mapping[str, Any], sizes: Sequence[int]) -> Iterator[bytes]:
    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event(_envelope("chat.completion.chunk", request, [choice]))

    yield chunk({"role": "assistant", "content": ""})
    for delta in as_deltas(reply, sizes):
        if delta.kind in {"text", "reasoning"}:
            yield chunk({"content" if delta.kind == "text" else "reasoning_content": delta.text})
        elif delta.kind == "tool_name":
            call = reply.tool_calls[delta.index]
            function: dict[str, Any] = {"name": call.name, "arguments": ""}
            yield chunk(
                {"tool_calls": [{"index": delta.index, "id": call.id, "type": "function", "function": function}]}
            )
        else:
            yield chunk({"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]})
    yield chunk({}, reply.finish_reason)
    yield from _openai_end("chat.completion.chunk", reply, request)


def _completion_events(reply: ModelReply, request: Mapping[str, Any], sizes: Sequence[int]) -> Iterator[bytes]:
    for delta in as_deltas(reply, sizes):
        choice = {"index": 0, "text": delta.text, "finish_reason": None}
        yield _event(_envelope("text_completion", request, [choice]))
    last = {"index": 0, "text": "", "finish_reason": reply.finish_reason}
    yield _event(_envelope("text_completion", request, [last]))
    yield from _openai_end("text_completion", reply, request)


def _openai_end(kind: str, reply: ModelReply, request: Mapping[str, Any]) -> Iterator[bytes]:
    if (request.get("stream_options") or {}).get("include_usage"):
        yield _event({**_envelope(kind, request, []), "usage": _openai_usage(reply)})
    yield b"data: [DONE]\n\n"


# ------------------------------------------------------------------------------------------------ Anthropic

_STOP_REASONS: Mapping[str, str] = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


def _anthropic_request(body: Mapping[str, Any]) -> RequestView:
    messages: list[dict[str, Any]] = []
    system = _blocks_text(body.get("system"))
    if system:
        messages.append({"role": "system", "content": system})
    for message in body.get("messages") or ():
        messages.extend(_openai_messages(message))
    return RequestView(
        messages=messages,
        tools=tuple(str(tool.get("name")) for tool in body.get("tools") or ()),
        stop=tuple(body.get("stop_sequences") or ()),
        body=body,
    )


def _openai_messages(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    blocks: list[Any] = content if isinstance(content, list) else [{"type": "text", "text": content}]
    for block in blocks:
        if block.get("type") == "tool_result":
            text = _blocks_text(block.get("content"))
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
    text = _blocks_text(blocks)
    calls = [
        {"id": b["id"], "function": {"name": b["name"], "arguments": encode_json(b["input"]).decode()}}
        for b in blocks
        if b.get("type") == "tool_use"
    ]
    if text or calls:
        yield {"role": message.get("role"), "content": text, **({"tool_calls": calls} if calls else {})}


def _blocks_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text") or "" for block in content or () if block.get("type") == "text")


def _anthropic_usage(reply: ModelReply) -> dict[str, int]:
    usage = reply.usage
    fresh = max(usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens, 0)
    return {
        "input_tokens": fresh,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }


def _anthropic_blocks(reply: ModelReply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": "c2lnbmVk"})
    if reply.text or not reply.tool_calls:
        blocks.append({"type": "text", "text": reply.text})
    for call in reply.tool_calls:
        try:
            given = decode_json(call.text)
        except ValueError:
            given = {}
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
    return blocks


def _anthropic_body(reply: ModelReply, request: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": "scripted",
        "type": "message",
        "role": "assistant",
        "model": request.get("model"),
        "content": _anthropic_blocks(reply),
        "stop_reason": _STOP_REASONS.get(reply.finish_reason, "end_turn"),
        "usage": _anthropic_usage(reply),
    }


def _anthropic_events(reply: ModelReply, request: Mapping[str, Any], sizes: Sequence[int]) -> Iterator[bytes]:
    whole = _anthropic_body(reply, request)
    started = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield _event({"type": "message_start", "message": started}, "message_start")
    yield _event({"type": "ping"}, "ping")
    texts = iter(call.text for call in reply.tool_calls)
    for index, block in enumerate(whole["content"]):
        empty, deltas = _growing(block, texts, sizes)
        yield _event({"type": "content_block_start", "index": index, "content_block": empty}, "content_block_start")
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
        yield _event({"type": "content_block_stop", "index": index}, "content_block_stop")
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": ending, "usage": whole["usage"]}, "message_delta")
    yield _event({"type": "message_stop"}, "message_stop")


def _growing(
    block: dict[str, Any], arguments: Iterator[str], sizes: Sequence[int]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts, and the deltas that fill it. Arguments are streamed as the model wrote them."""
    if block["type"] == "text":
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"], sizes)]
        return {**block, "text": ""}, deltas
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"], sizes)]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(next(arguments), sizes)]
    return {**block, "input": {}}, deltas


PROTOCOLS: Mapping[str, Protocol] = {
    "/v1/chat/completions": Protocol(_openai_request, _chat_body, _chat_events),
    "/v1/completions": Protocol(_openai_request, _completion_body, _completion_events),
    "/v1/messages": Protocol(_anthropic_request, _anthropic_body, _anthropic_events),
}
"""Every endpoint of the scripted server by its path."""
