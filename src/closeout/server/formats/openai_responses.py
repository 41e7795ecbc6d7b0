"""OpenAI's Responses as a request format of the proxy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from closeout.messages import Message, ModelReply, ModelRequest, Repair, ToolCall, ToolSpec, Usage
from closeout.server.api_errors import ApiError
from closeout.server.formats.client_history import repair_chat
from closeout.server.formats.format import Format, RequestTools, Writer
from closeout.server.formats.shared_fields import (
    list_of_objects,
    new_id,
    offered_tools,
    output_text,
    plain_text,
    sampling,
    text_or_parts,
    tool_choice,
    tool_spec,
    untranslatable,
)
from closeout.server.governing import arguments_text
from closeout.server.sse import event_bytes

__all__ = ["Responses", "responses_usage"]


class Responses(Format):
    """OpenAI's Responses. The proxy keeps no responses: `previous_response_id` and `background` are refused."""

    path = "responses"

    def tools(self, body: Mapping[str, Any]) -> RequestTools:
        return offered_tools(body, _read_tool)

    def mended(self, body: dict[str, Any]) -> tuple[dict[str, Any], list[Repair]]:
        return body, repair_chat(self._conversation(body))[1]

    def messages(self, body: Mapping[str, Any]) -> list[Message]:
        return list(map(Message, repair_chat(self._conversation(body))[0]))

    def _conversation(self, body: Mapping[str, Any]) -> list[Message]:
        for name in ("previous_response_id", "background", "conversation"):
            if body.get(name):
                raise ApiError(
                    400, f"The proxy keeps no responses: send the whole conversation, no {name}.", param=name
                )
        instructions = body.get("instructions")
        found = [Message(role="system", content=instructions)] if isinstance(instructions, str) else []
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else list_of_objects(given, "input")
        for item in items:
            _add_item(found, item)
        return found

    def request(self, body: Mapping[str, Any], tools: RequestTools) -> ModelRequest:
        return ModelRequest(
            messages=self.messages(body),
            tools=tools.functions,
            tool_choice=tool_choice(body),
            **sampling(body, "max_output_tokens"),
        )

    def whole(self, body: Mapping[str, Any], reply: ModelReply) -> dict[str, Any]:
        writer = _ResponsesWriter(body)
        for _ in (*writer.text(reply.text), *writer.finish(reply)):
            pass
        return writer.response

    def writer(self, body: Mapping[str, Any]) -> Writer:
        return _ResponsesWriter(body)


def _read_tool(tool: Mapping[str, Any]) -> ToolSpec | None:
    kind = tool.get("type")
    if kind != "function":
        raise ApiError(400, f"The proxy takes function tools, not {kind!r:.80}.", param="tools")
    return tool_spec(tool.get("name"), tool.get("description"), tool.get("parameters"))


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
            text = output if isinstance(output, str) else plain_text(output)
            messages.append(Message(role="tool", tool_call_id=str(item.get("call_id")), content=text))
            within = list_of_objects(output, "input") if isinstance(output, list) else []
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
        return plain_text(content)
    return text_or_parts([_input_part(part) for part in list_of_objects(content, "input")])


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
    raise untranslatable(kind, "input")


class _ResponsesWriter(Writer):
    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body)
        self._number = 0
        self._text: list[str] = []
        self._output: list[dict[str, Any]] = []
        self._message: int | None = None
        self.response: dict[str, Any] = {
            "id": new_id("resp_"),
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
            item = {"id": new_id("msg_"), "type": "message", "role": "assistant", "status": "in_progress"}
            yield self._add({**item, "content": []})
            yield self._event("response.content_part.added", **self._place(), part=output_text(""))
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
            yield self._event("response.content_part.done", **self._place(), part=output_text(text))
            yield self._done(self._message, content=[output_text(text)])
        for call in reply.tool_calls:
            yield from self._call(call)
        cut = not reply.finished
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
        item = {"id": new_id("fc_"), "type": "function_call", "call_id": call.id, "name": call.name}
        yield self._add({**item, "arguments": "", "status": "in_progress"})
        index, text = len(self._output) - 1, arguments_text(call)
        place = {"item_id": item["id"], "output_index": index}
        yield self._event("response.function_call_arguments.delta", **place, delta=text)
        yield self._event("response.function_call_arguments.done", **place, arguments=text, name=call.name)
        yield self._done(index, arguments=text)

    def _done(self, index: int, **changes: Any) -> bytes:
        item = self._output[index] = {**self._output[index], **changes, "status": "completed"}
        return self._event("response.output_item.done", output_index=index, item=item)


def responses_usage(usage: Usage) -> dict[str, Any]:
    """Return the usage object of Responses."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }
