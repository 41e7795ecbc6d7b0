"""The proxy in front of servers that fail in every way that `closeout.testing` knows, whole and streamed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import ClientError, web

from closeout.journal.events import Repaired
from closeout.testing import MISBEHAVIOURS, always, call, once
from closeout.testing.misbehaviour import REPLY_FAULTS, UNFINISHED
from closeout.testing.odd_forms import ODD_FORMS
from closeout.testing.rejections import REJECTIONS
from closeout.testing.script import say
from serving import listening
from test_proxy import Proxied, proxied

TEXT = "The value of k1 is 42, which is what was asked for."
SCRIPT = [call("lookup", key="k1"), say(TEXT)]
SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "lookup", "parameters": SCHEMA}}]
MESSAGE_TOOLS: Any = [{"name": "lookup", "description": "", "input_schema": SCHEMA}]
FORMATS = pytest.mark.parametrize("format", ["chat", "messages"])
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

# The client gets these statuses as they are, and repeats the request itself.
STATUSES = ("rate_limited", "server_error", "overloaded", "html_error")
FREE = {"malformed", "wrong_types", "wrong_dialect", *ODD_FORMS}
FREE.update(name for name, each in REJECTIONS.items() if each.holds_call)
# Text that only the client can judge, servers that are slow, and Mistral's parts, which its own clients want back.
LEFT_TO_CLIENTS = {"non_answer", "missing_box", "slow", "hang", "content_parts"}
FAULTS = sorted({*MISBEHAVIOURS} - LEFT_TO_CLIENTS)
ON_TEXT = {name for name, form in ODD_FORMS.items() if form.on == "text"}


async def ask_chat(client: openai.AsyncOpenAI, messages: list[Any], *, stream: bool) -> tuple[str, list[Any], str]:
    """The text, the calls and the finish reason that a client of Chat Completions reads."""
    request: Any = {"model": "m", "messages": messages, "tools": CHAT_TOOLS}
    if not stream:
        choice = (await client.chat.completions.create(**request)).choices[0]
        calls = [(each.id, each.function) for each in choice.message.tool_calls or ()]  # type: ignore[union-attr]
        called = [(call_id, function.name, function.arguments) for call_id, function in calls]
        return choice.message.content or "", called, choice.finish_reason
    text, found, finish = "", dict[int, list[str]](), ""
    events: AsyncIterator[Any] = await client.chat.completions.create(**request, stream=True)
    async for event in events:
        delta = event.choices[0].delta
        text += delta.content or ""
        for piece in delta.tool_calls or ():
            parts = found.setdefault(piece.index, ["", "", ""])
            parts[0] += piece.id or ""
            parts[1] += piece.function.name or ""
            parts[2] += piece.function.arguments or ""
        finish = event.choices[0].finish_reason or finish
    return text, [tuple(parts) for parts in found.values()], finish


async def chat_loop(server: Proxied, *, stream: bool) -> str | None:
    """A strict agent: it makes valid calls, and takes a finished text for the answer. None if it got none."""
    messages: list[Any] = [{"role": "user", "content": "What is k1?"}]
    async with server.openai() as client:
        for _ in range(6):
            try:
                text, calls, finish = await ask_chat(client, messages, stream=stream)
            except openai.APIError:
                continue
            if not calls:
                return text if finish == "stop" else None
            said = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
            messages.append({"role": "assistant", "content": text, "tool_calls": said})
            for call_id, name, arguments in calls:
                assert (name, json.loads(arguments)) == ("lookup", {"key": "k1"})
                messages.append({"role": "tool", "tool_call_id": call_id, "content": "value of k1"})
    return None


async def messages_loop(server: Proxied, *, stream: bool) -> str | None:
    messages: list[Any] = [{"role": "user", "content": "What is k1?"}]
    request: Any = {"model": "m", "max_tokens": 1000, "messages": messages, "tools": MESSAGE_TOOLS}
    async with server.anthropic() as client:
        for _ in range(6):
            try:
                if stream:
                    async with client.messages.stream(**request) as events:
                        message: Any = await events.get_final_message()
                else:
                    message = await client.messages.create(**request)
            except (anthropic.APIError, AssertionError):  # its stream helper asserts that a message has begun
                continue
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                text = "".join(block.text for block in message.content if block.type == "text")
                return text if message.stop_reason == "end_turn" else None
            messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
            results = []
            for block in calls:
                assert (block.name, block.input) == ("lookup", {"key": "k1"})
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": "value of k1"})
            messages.append({"role": "user", "content": results})
    return None


async def answer_through(server: Proxied, format: str, *, stream: bool) -> str | None:  # noqa: A002
    return await (messages_loop if format == "messages" else chat_loop)(server, stream=stream)


def kind_of(format: str) -> str:  # noqa: A002
    return "anthropic" if format == "messages" else "openai"


@FORMATS
@STREAMED
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_costs_at_most_one_request(home: Path, fault: str, format: str, stream: bool) -> None:  # noqa: A002
    at = 2 if fault in ON_TEXT else 1
    async with proxied(home, SCRIPT, misbehave=once(fault, at), kind=kind_of(format)) as server:
        assert await answer_through(server, format, stream=stream) == TEXT
        # Arguments that are an object cannot be malformed: they are empty.
        is_free = fault in FREE and not (fault == "malformed" and format == "messages" and not stream)
        assert len(server.model.requests) == (2 if is_free else 3)


@FORMATS
@STREAMED
@pytest.mark.parametrize("fault", [*UNFINISHED, "dropped"])
async def test_half_an_answer_is_completed(home: Path, fault: str, format: str, stream: bool) -> None:  # noqa: A002
    async with proxied(home, SCRIPT, misbehave=once(fault, 2), kind=kind_of(format)) as server:
        assert await answer_through(server, format, stream=stream) == TEXT
        assert len(server.model.requests) == 3


@FORMATS
@STREAMED
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_that_stays_never_ends_in_half_an_answer(
    home: Path,
    fault: str,
    format: str,  # noqa: A002
    stream: bool,
) -> None:
    async with proxied(home, SCRIPT, misbehave=always(fault), kind=kind_of(format)) as server:
        body = {"model": "m", "max_tokens": 1000, "messages": [{"role": "user", "content": "What is k1?"}]}
        tools = MESSAGE_TOOLS if format == "messages" else CHAT_TOOLS
        path = "messages" if format == "messages" else "chat/completions"
        request = {**body, "tools": tools, "stream": stream}
        try:
            async with server.http.post(f"{server.url}/v1/{path}", json=request) as response:
                text = await response.text()
        except ClientError:  # the connection breaks
            text = ""
        finished = any(f'"{word}"' in text for word in ("stop", "end_turn"))
        assert fault in FREE or fault in REPLY_FAULTS or not finished, text
        assert Counter(server.model.bodies).most_common(1)[0][1] <= 3


# ------------------------------------------------------------------------------------------------ odd forms of replies

ARGUMENTS = '{"key": "k1"}'
ODD_CALLS: dict[str, dict[str, Any]] = {
    "id": {"tool_calls": [{"id": None, "type": "function", "function": {"name": "lookup", "arguments": ARGUMENTS}}]},
    "arguments": {
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "lookup", "arguments": {"key": "k1"}}}]
    },
    "type": {"tool_calls": [{"id": "c", "function": {"name": "lookup", "arguments": ARGUMENTS}}]},
    "function_call": {"function_call": {"name": "lookup", "arguments": ARGUMENTS}},
    "refusal": {"refusal": "I will not."},
}


@asynccontextmanager
async def answering(bodies: Sequence[Any], home: Path, status: int = 200) -> AsyncIterator[tuple[Proxied, list[Any]]]:
    """The proxy in front of a server that sends these bodies one after the other, the last one again and again."""
    received: list[Any] = []

    async def model(request: web.Request) -> web.StreamResponse:
        received.append(await request.json())
        body = bodies[min(len(received), len(bodies)) - 1]
        if not isinstance(body, list):
            return web.json_response(body, status=body.get("status", status))
        events = [b"data: %b\n\n" % json.dumps(event).encode() for event in body]
        return web.Response(body=b"".join([*events, b"data: [DONE]\n\n"]), content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/{path:.*}", model)
    async with listening(app) as port, proxied(home, SCRIPT) as server:
        server.proxy.upstream.base = f"http://127.0.0.1:{port}/v1"
        yield server, received


def completion(message: dict[str, Any], finish: str | None = "stop", *, stream: bool = False) -> Any:
    whole = {"id": "r", "object": "chat.completion", "created": 0, "model": "m"}
    if not stream:
        return {**whole, "choices": [{"index": 0, "message": {"content": None, **message}, "finish_reason": finish}]}
    whole["object"] = "chat.completion.chunk"
    calls = [{"index": n, **each} for n, each in enumerate(message.get("tool_calls", ()))]
    delta = {**message, "tool_calls": calls} if calls else message
    ends = [{"index": 0, "delta": {}, "finish_reason": finish}]
    return [{**whole, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, {**whole, "choices": ends}]


@STREAMED
@pytest.mark.parametrize("fault", ODD_CALLS)
async def test_a_reply_in_an_odd_form_reaches_every_client(home: Path, fault: str, stream: bool) -> None:
    bodies = [completion(ODD_CALLS[fault], stream=stream)]
    async with answering(bodies, home) as (server, received), server.openai() as client:
        text, calls, finish = await ask_chat(client, [{"role": "user", "content": "What is k1?"}], stream=stream)
        (events,) = await server.records()
        assert [event.where for event in events if isinstance(event, Repaired)] == ["reply"]
    assert len(received) == 1
    if fault == "refusal":
        assert (text, calls, finish) == ("I will not.", [], "stop")
        return
    ((call_id, name, arguments),) = calls
    assert call_id
    assert (name, json.loads(arguments), finish) == ("lookup", {"key": "k1"}, "tool_calls")


async def test_new_ids_fit_every_server_and_differ(home: Path) -> None:
    call_without_id = {"type": "function", "function": {"name": "lookup", "arguments": ARGUMENTS}}
    bodies = [completion({"tool_calls": [call_without_id, call_without_id]})]
    async with answering(bodies, home) as (server, _), server.openai() as client:
        ids = [each[0] for _ in range(2) for each in (await ask_chat(client, [], stream=False))[1]]
    assert len(set(ids)) == 4
    assert all(len(each) == 9 and each.isalnum() for each in ids)


@STREAMED
async def test_calls_of_a_reply_without_a_finish_reason_are_made(home: Path, stream: bool) -> None:
    made = {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": ARGUMENTS}}
    bodies = [completion({"tool_calls": [made]}, None, stream=stream)]
    async with answering(bodies, home) as (server, received), server.openai() as client:
        _, calls, finish = await ask_chat(client, [], stream=stream)
    assert (calls, finish, len(received)) == ([("c", "lookup", ARGUMENTS)], "tool_calls", 1)


@STREAMED
async def test_a_model_whose_calls_are_rejected_twice_gets_its_tools_as_text(home: Path, stream: bool) -> None:
    async with proxied(home, SCRIPT, misbehave=once("rejected_vllm", times=2)) as server:
        assert await chat_loop(server, stream=stream) == TEXT
        sent = [received.json for received in server.model.requests]
    assert ["tools" in each for each in sent] == [True, True, False, False]
    assert "could not be read" in sent[1]["messages"][-1]["content"]


async def test_an_error_that_stays_is_an_error_for_the_client(home: Path) -> None:
    async with proxied(home, SCRIPT, misbehave=always("rejected_tgi")) as server, server.openai() as client:
        with pytest.raises(openai.InternalServerError, match="could not read its model's call"):
            await ask_chat(client, [{"role": "user", "content": "What is k1?"}], stream=False)
        assert len(server.model.requests) == 3
