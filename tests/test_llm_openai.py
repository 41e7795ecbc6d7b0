"""The OpenAI-compatible client against real loopback HTTP: what it sends, and every way that servers answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closeout.errors import BadRequest, ContextOverflow, ModelNotFound, ModelTimeout, ServerFailed, StreamDropped
from closeout.messages import (
    Capabilities,
    Constraint,
    Delta,
    Message,
    ModelReply,
    ModelRequest,
    ToolCall,
    ToolSpec,
    Usage,
)
from closeout.models.base import assistant_message
from closeout.models.openai import OpenAIClient, OpenAIStream, read_completion, read_usage
from closeout.models.retry import RetryPolicy
from closeout.models.streaming import ReplyBuilder
from raw_server import END, HOLD, chat, http, raw_server, sse

ONCE = RetryPolicy(retries=0)
TOOLS = (ToolSpec("lookup", "Looks a key up.", {"type": "object", "properties": {"key": {"type": "string"}}}),)
USER = Message(role="user", content="What is k1?")


def request(**fields: Any) -> ModelRequest:
    return ModelRequest(**{"messages": (USER,), **fields})


def client(url: str, **options: Any) -> OpenAIClient:
    return OpenAIClient("m", url, **{"retry": ONCE, **options})


async def reply_to(*answers: Any, on_delta: Any = None, **options: Any) -> ModelReply:
    async with raw_server(*answers) as seen:
        return await client(seen.url, **options).complete(request(tools=TOOLS), on_delta=on_delta)


def piece(content: str | None = None, finish: str | None = None, **delta: Any) -> dict:
    whole = delta if content is None else {"content": content, **delta}
    return {"model": "m", "choices": [{"index": 0, "delta": whole, "finish_reason": finish}]}


# ------------------------------------------------------------------------------------------------ what is sent


async def test_a_request_carries_what_was_asked_for_and_nothing_else():
    async with raw_server(http(chat())) as seen:
        await client(f"{seen.url}/v1/", api_key="secret").complete(request())
        await client(f"{seen.url}/v1").complete(
            request(tools=TOOLS, tool_choice="required", stop=("\nObservation:",), temperature=0.5, top_p=0.9,
                    max_tokens=99, extra_body={"seed": 7})
        )  # fmt: skip
    assert "POST /v1/chat/completions HTTP/1.1" in seen.heads[0]
    assert "Authorization: Bearer secret" in seen.heads[0]
    assert "Authorization" not in seen.heads[1]
    assert seen.sent[0] == {"model": "m", "messages": [{"role": "user", "content": "What is k1?"}]}
    assert seen.sent[1] == {
        "model": "m", "temperature": 0.5, "top_p": 0.9, "max_tokens": 99, "stop": ["\nObservation:"],
        "tool_choice": "required", "seed": 7,
        "tools": [{"type": "function", "function": {
            "name": "lookup", "description": "Looks a key up.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}}}],
        "messages": [{"role": "user", "content": "What is k1?"}],
    }  # fmt: skip


async def test_a_prompt_goes_to_the_completions_endpoint():
    answer = {
        "choices": [{"text": " 42", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    async with raw_server(http(answer)) as seen:
        reply = await client(f"{seen.url}/v1").complete(ModelRequest(prompt="6 * 7 =", stop=("\n",), tools=TOOLS))
    assert "POST /v1/completions" in seen.heads[0]
    assert seen.sent == [{"model": "m", "stop": ["\n"], "prompt": "6 * 7 ="}]
    assert (reply.text, reply.usage) == (" 42", Usage(3, 1, requests=1))


async def test_each_body_extends_the_one_before_byte_for_byte():
    async with raw_server(http(chat())) as seen:
        model, messages = client(seen.url), [USER]
        for turn in range(4):
            reply = await model.complete(request(messages=tuple(messages), tools=TOOLS, temperature=0.0))
            messages += [assistant_message(reply), Message(role="user", content=f"and k{turn}? 元")]
    for before, after in zip(seen.bodies, seen.bodies[1:], strict=False):
        assert before.endswith(b"]}")
        assert after.startswith(before[:-2] + b",")


async def test_a_message_is_encoded_once_for_all_requests():
    message = Message(role="user", content="x")
    async with raw_server(http(chat())) as seen:
        await client(seen.url).complete(request(messages=(message,)))
        encoded = message._wire
        await client(seen.url).complete(request(messages=(message,)))
    assert encoded == b'{"role":"user","content":"x"}'
    assert message._wire is encoded


async def test_lone_surrogates_and_control_characters_are_sent_as_valid_json():
    async with raw_server(http(chat())) as seen:
        await client(seen.url).complete(request(messages=(Message(role="user", content="a\ud800b\x00\ud83d\ude00"),)))
    assert seen.sent[0]["messages"][0]["content"] == "a\ufffdb\x00😀"


async def test_defaults_of_the_client_hold_where_a_request_does_not_say():
    async with raw_server(http(chat())) as seen:
        model = client(seen.url, temperature=0.3, max_tokens=5, extra_body={"seed": 1})
        await model.complete(request())
        await model.complete(request(temperature=0.9, extra_body={"seed": 2}))
    assert [(body["temperature"], body["max_tokens"], body["seed"]) for body in seen.sent] == [(0.3, 5, 1), (0.9, 5, 2)]


# ------------------------------------------------------------------------------------------------ whole replies


async def test_a_reply_with_everything():
    body = chat(
        None,
        reasoning_content="hm",
        tool_calls=[{"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"key": "k1"}'}}],
    )
    reply = await reply_to(http(body))
    assert reply == ModelReply(
        "",
        "hm",
        (ToolCall("lookup", '{"key": "k1"}', "c1", text='{"key": "k1"}'),),
        finish_reason="tool_calls",
        usage=Usage(10, 2, requests=1),
        model="m",
    )


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": "a", "reasoning": "b"}, ("a", "b", ())),
        ({"content": None, "refusal": "No."}, ("No.", "", ())),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}, "x", {"type": "text"}]},
         ("x", "t", ())),
        ({"content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
         ("", "", (("f", '{"a":1}', "call_0"),))),
        ({"content": "", "tool_calls": [{"id": None, "function": {"name": "f", "arguments": None}}, "junk", None]},
         ("", "", (("f", "", "call_0"),))),
        ({"content": None, "function_call": {"name": "f", "arguments": "{}"}}, ("", "", (("f", "{}", "call_0"),))),
        ({"content": 5, "tool_calls": "junk"}, ("", "", ())),
        ({}, ("", "", ())),
    ],
)  # fmt: skip
def test_messages_in_every_variant(message: dict, expected: tuple):
    reply = read_completion({"choices": [{"message": message, "finish_reason": "stop"}]})
    calls = tuple((call.name, call.text, call.id) for call in reply.tool_calls)
    assert (reply.text, reply.reasoning, calls) == expected
    assert reply.finish_reason == ("tool_calls" if calls else "stop")


@pytest.mark.parametrize(
    ("given_reason", "ours"),
    [("stop", "stop"), ("length", "length"), ("max_tokens", "length"), ("content_filter", "content_filter"),
     ("eos", "stop"), ("STOP", "stop"), (None, "missing"), (3, "missing"), ("", "missing"),
     ("insufficient_system_resource", "insufficient_system_resource"),
     ("function_call_filter: MALFORMED_FUNCTION_CALL", "malformed_call")],
)  # fmt: skip
def test_finish_reasons(given_reason: Any, ours: str):
    reply = read_completion({"choices": [{"message": {"content": "x"}, "finish_reason": given_reason}]})
    assert reply.finish_reason == ours


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {"prompt_tokens_details": {"cached_tokens": 5}},
            Usage(9, 4, cache_read_tokens=5, requests=1),
        ),
        ({"prompt_cache_hit_tokens": 6}, Usage(9, 4, cache_read_tokens=6, requests=1)),
        ({"cached_tokens": 7}, Usage(9, 4, cache_read_tokens=7, requests=1)),
        (
            {"cache_read_input_tokens": 2, "cache_creation_input_tokens": 3},
            Usage(9, 4, cache_read_tokens=2, cache_write_tokens=3, requests=1),
        ),
        (
            {"prompt_tokens_details": None, "cost": 0.25},
            Usage(9, 4, requests=1, cost_usd=0.25),
        ),
        (
            {"prompt_tokens": None, "input_tokens": 9, "cost": True},
            Usage(9, 4, requests=1),
        ),
        (
            {"prompt_tokens": 10**400, "input_tokens": 9, "cost": 10**400},
            Usage(9, 4, requests=1),
        ),
        ({"cost": float("inf")}, Usage(9, 4, requests=1)),
        (
            {"prompt_tokens_details": {"cached_tokens": 5000}, "cache_creation_input_tokens": 7},
            Usage(9, 4, cache_read_tokens=9, requests=1),
        ),
        (
            {"prompt_tokens": -1, "completion_tokens": "4"},
            Usage(0, 0, requests=1),
        ),
    ],
)
def test_usage_under_every_name(usage: dict, expected: Usage):
    assert read_usage({"usage": {"prompt_tokens": 9, "completion_tokens": 4, **usage}}) == expected


def test_llama_cpp_counts_its_cache_beside_the_usage():
    assert read_usage({"usage": {"prompt_tokens": 9, "completion_tokens": 4}, "timings": {"cache_n": 8}}) == Usage(
        9, 4, cache_read_tokens=8, requests=1
    )


async def test_a_prompt_without_a_count_that_can_be_is_estimated_by_length():
    body = chat("x" * 40) | {"usage": {"prompt_tokens": 10**15, "completion_tokens": 7}}
    usage = (await reply_to(http(body))).usage
    assert (usage.input_tokens > 0, usage.output_tokens) == (True, 7)


async def test_a_server_that_counts_nothing_is_estimated_by_length():
    body = chat("x" * 40)
    del body["usage"]
    usage = (await reply_to(http(body))).usage
    assert usage.output_tokens == 11
    assert usage.input_tokens > 20


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (http(b""), ServerFailed, "an empty reply"),
        (http(b"\x00\xff{", content_type="application/json"), ServerFailed, "not a reply"),
        (http("[1, 2]"), ServerFailed, "not a reply"),
        (http('{"choices": []}'), ServerFailed, "Check base_url"),
        (http('{"choices": [{"message": null, "text": null}]}'), ServerFailed, "Check base_url"),
        (http("<html><title>nginx</title>", content_type="text/html"), ServerFailed, "HTML page, 'nginx'"),
        (http({"error": {"message": "prompt is too long"}}), ContextOverflow, "longer than the model's context"),
        (http({"error": {"message": "no", "code": 400}}), BadRequest, "no"),
        (http("404 page not found", 404, "text/plain"), ModelNotFound, "base_url, which usually ends in /v1"),
        (http("", 307, Location="/x"), BadRequest, "set base_url"),
        (http({"choices": [{"message": {"content": "x"}, "finish_reason": "abort"}]}), StreamDropped, "gave up"),
        (http({"choices": [{"message": {"content": "x"}, "finish_reason": "error"}]}), ServerFailed, "in the middle"),
        (http("[" * 100_000), ServerFailed, "not a reply"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_responses_that_are_not_a_reply(answer: bytes, kind: type[Exception], words: str, stream: bool):
    with pytest.raises(kind, match=words) as raised:
        await reply_to(answer, on_delta=(lambda _: None) if stream else None)
    assert raised.value.usage.requests == 1


# ------------------------------------------------------------------------------------------------ streams


async def test_a_stream_shows_each_piece_and_gives_the_whole():
    shown: list[Delta] = []
    events = [
        piece(role="assistant", content=""), piece(reasoning_content="h"), piece(reasoning_content="m"),
        piece("a "), piece("元"),
        piece(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "lookup", "arguments": ""}}]),
        piece(tool_calls=[{"index": 0, "function": {"arguments": '{"key":'}}]),
        piece(tool_calls=[{"index": 1, "id": "c2", "function": {"name": "other", "arguments": "{}"}}]),
        piece(tool_calls=[{"index": 0, "function": {"arguments": '"k1"}'}}]),
        piece(finish="tool_calls"), {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 5}}, "[DONE]",
    ]  # fmt: skip
    reply = await reply_to(sse(*events, end=END), on_delta=shown.append)
    assert (reply.text, reply.reasoning) == ("a 元", "hm")
    assert (reply.finish_reason, reply.usage) == ("tool_calls", Usage(8, 5, requests=1))
    assert [(call.id, call.name, call.text) for call in reply.tool_calls] == [
        ("c1", "lookup", '{"key":"k1"}'), ("c2", "other", "{}"),
    ]  # fmt: skip
    assert [(d.kind, d.text, d.index) for d in shown] == [
        ("reasoning", "h", 0), ("reasoning", "m", 0), ("text", "a ", 0), ("text", "元", 0), ("tool_name", "lookup", 0),
        ("tool_arguments", '{"key":', 0), ("tool_name", "other", 1), ("tool_arguments", "{}", 1),
        ("tool_arguments", '"k1"}', 0),
    ]  # fmt: skip


async def test_a_stream_asks_for_usage():
    async with raw_server(sse(piece("x", "stop"), end=END)) as seen:
        await client(seen.url).complete(request(), on_delta=lambda _: None)
    assert seen.sent[0]["stream"] is True
    assert seen.sent[0]["stream_options"] == {"include_usage": True}


@settings(max_examples=15)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_any_cut_of_a_streams_bytes_gives_the_same_reply(sizes: list[int]):
    data = b"".join(
        b"data: %b\r\n\r\n" % line
        for line in (
            b'{"choices":[{"delta":{"content":"\xe5\x85\x83 a"}}]}',
            b'{"choices":[{"delta":{"content":"\\ud83d\\ude00"},"finish_reason":"stop"}]}',
            b"[DONE]",
        )
    )
    pieces, position, number = [], 0, 0
    while position < len(data):
        size = sizes[number % len(sizes)]
        pieces.append(b"%x\r\n%b\r\n" % (len(data[position : position + size]), data[position : position + size]))
        position, number = position + size, number + 1
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    reply = asyncio.run(reply_to([head, *pieces, END], on_delta=lambda _: None))
    assert (reply.text, reply.finish_reason) == ("元 a😀", "stop")


@pytest.mark.parametrize("end", [b"", END])
async def test_a_stream_without_done_is_whole_once_it_has_a_finish_reason(end: bytes):
    reply = await reply_to(sse(piece("all"), piece(finish="length"), end=end), on_delta=lambda _: None)
    assert (reply.text, reply.finish_reason) == ("all", "length")


async def test_a_stream_that_breaks_off_was_dropped_and_counts_as_usage():
    with pytest.raises(StreamDropped) as raised:
        await reply_to(sse(piece("x" * 80)), on_delta=lambda _: None)
    assert raised.value.usage.output_tokens == 20
    assert raised.value.usage.input_tokens > 0


@pytest.mark.parametrize("last", [[], ["[DONE]"]])
async def test_a_stream_that_ends_without_a_finish_reason_is_not_a_finished_reply(last: list[str]):
    reply = await reply_to(sse(piece("half"), *last, end=END), on_delta=lambda _: None)
    assert (reply.text, reply.finish_reason, reply.finished) == ("half", "missing", False)


async def test_a_dropped_stream_is_retried_and_reported():
    notes = []
    async with raw_server(sse(piece("half")), sse(piece("whole", "stop"), end=END)) as seen:
        model = client(seen.url, retry=RetryPolicy(first_wait=0.001))
        reply = await model.complete(request(), on_delta=lambda _: None, on_retry=notes.append)
    assert (reply.text, reply.usage.requests, len(notes)) == ("whole", 2, 1)
    assert isinstance(notes[0].error, StreamDropped)


async def test_an_error_event_ends_the_stream():
    with pytest.raises(ServerFailed, match="engine died"):
        await reply_to(
            sse(piece("x"), {"error": {"message": "engine died", "code": 500}}, end=END), on_delta=lambda _: None
        )


async def test_a_server_that_does_not_stream_is_read_all_the_same():
    for content_type in ("application/json", "text/plain", "text/event-stream"):
        shown: list[Delta] = []
        reply = await reply_to(http(chat("hello"), content_type=content_type), on_delta=shown.append)
        assert (reply.text, [delta.text for delta in shown]) == ("hello", ["hello"])


async def test_enough_closes_the_connection_and_says_cut():
    async with raw_server(sse(piece("Action: x"), *[piece("more")] * 50, end=b"10\r\n")) as seen:
        reply = await client(seen.url).complete(request(), on_delta=lambda delta: "Action" in delta.text)
    assert (reply.text, reply.finish_reason) == ("Action: x", "cut")
    assert reply.usage.output_tokens > 0


async def test_cancelling_a_stream_closes_its_connection_and_counts_as_usage():
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in sse(piece("x")):
            writer.write(part)
        await writer.drain()
        while await reader.read(4096):
            pass
        closed.set()
        writer.close()

    closed, begun = asyncio.Event(), asyncio.Event()
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        model = client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        task = asyncio.ensure_future(model.complete(request(), on_delta=lambda _: begun.set()))
        await asyncio.wait_for(begun.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(closed.wait(), 60)
    assert model.usage == Usage(requests=1)


@pytest.mark.parametrize(
    "deltas",
    [
        # no index at all; each call with its id
        [{"id": "a", "function": {"name": "f", "arguments": "{"}}, {"function": {"arguments": "}"}},
         {"id": "b", "function": {"name": "g", "arguments": "[]"}}],
        # index 0 for all, told apart by id
        [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}},
         {"index": 0, "id": "b", "function": {"name": "g", "arguments": "[]"}}],
        # name and id repeated with every piece
        [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}},
         {"index": 0, "id": "a", "function": {"name": "f", "arguments": "}"}},
         {"index": 1, "id": "b", "function": {"name": "g", "arguments": "[]"}}],
        # interleaved, arguments null at first
        [{"index": 0, "id": "a", "function": {"name": "f", "arguments": None}},
         {"index": 1, "id": "b", "function": {"name": "g"}},
         {"index": 1, "function": {"arguments": "[]"}}, {"index": 0, "function": {"arguments": "{}"}}],
        # indexes that begin at 1
        [{"index": 1, "id": "a", "function": {"name": "f", "arguments": "{}"}},
         {"index": 2, "id": "b", "function": {"name": "g", "arguments": "[]"}}],
    ],
)  # fmt: skip
def test_call_deltas_in_every_variant(deltas: list[dict]):
    builder = ReplyBuilder()
    stream = OpenAIStream(builder, lambda _: None)
    for delta in deltas:
        stream.take(piece(tool_calls=[delta]))
    reply = builder.reply(usage=Usage())
    assert [(call.id, call.name, call.text) for call in reply.tool_calls] == [("a", "f", "{}"), ("b", "g", "[]")]


NAMES = [
    "choices", "message", "delta", "content", "tool_calls", "function", "index", "usage", "id", "name", "arguments",
    "finish_reason", "text", "reasoning",
]  # fmt: skip


def _containers(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)


@settings(max_examples=60)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=4), _containers, max_leaves=20))
def test_no_json_makes_the_readers_raise_anything_unforeseen(value: Any):
    read_completion(value)
    if isinstance(value, dict):
        OpenAIStream(ReplyBuilder(), lambda _: None).take(value)


# ------------------------------------------------------------------------------------------------ reasoning


HISTORY = (USER, Message(role="assistant", content="x", reasoning_content="why"), USER)


@pytest.mark.parametrize(("option", "sent"), [("auto", "why"), (True, "why"), (False, None)])
async def test_reasoning_is_sent_back_unless_disabled(option: Any, sent: str | None):
    async with raw_server(http(chat())) as seen:
        await client(seen.url, send_reasoning=option).complete(request(messages=HISTORY))
    assert seen.sent[0]["messages"][1].get("reasoning_content") == sent


async def test_reasoning_goes_back_under_the_name_that_it_came_under():
    async with raw_server(http(chat("x", reasoning="hm"))) as seen:
        model = client(seen.url)
        reply = await model.complete(request())
        await model.complete(request(messages=(USER, assistant_message(reply), USER)))
    assert seen.sent[1]["messages"][1] == {"role": "assistant", "content": "x", "reasoning": "hm"}


async def test_a_server_that_refuses_reasoning_is_not_sent_it_again():
    refusal = http({"error": {"message": "Unrecognized field: reasoning_content", "param": "messages.1"}}, status=400)
    async with raw_server(refusal, http(chat())) as seen:
        model = client(seen.url)
        assert (await model.complete(request(messages=HISTORY))).text == "hi"
        await model.complete(request(messages=HISTORY))
    assert ["reasoning_content" in body["messages"][1] for body in seen.sent] == [True, False, False]


async def test_a_server_that_demands_reasoning_gets_it():
    words = "The `reasoning_content` in the thinking mode must be passed back to the API."
    async with raw_server(http({"error": {"message": words}}, status=400), http(chat())) as seen:
        assert (await client(seen.url, send_reasoning=False).complete(request(messages=HISTORY))).text == "hi"
    assert ["reasoning_content" in body["messages"][1] for body in seen.sent] == [False, True]


# ------------------------------------------------------------------------------------------------ adaptations


@pytest.mark.parametrize(
    ("field", "error"),
    [
        ({"temperature": 0.2}, {"message": "Unsupported value: 'temperature' does not support 0.2 with this model.",
                                "param": "temperature", "code": "unsupported_value"}),
        ({"stop": ("x",)}, {"message": "Unsupported parameter: 'stop' is not supported.", "param": "stop"}),
        ({"top_p": 0.5}, {"message": "unknown field `top_p`", "param": None}),
    ],
)  # fmt: skip
async def test_a_parameter_that_the_server_refuses_is_left_out_from_then_on(field: dict, error: dict):
    async with raw_server(http({"error": error}, status=400), http(chat())) as seen:
        model = client(seen.url)
        reply = await model.complete(request(**field))
        await model.complete(request(**field))
    name = next(iter(field))
    assert [name in body for body in seen.sent] == [True, False, False]
    assert reply.text == "hi"
    assert model.usage.requests == 3


async def test_the_limit_changes_its_name_where_the_model_wants_the_other():
    words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    async with raw_server(http({"error": {"message": words, "param": "max_tokens"}}, status=400), http(chat())) as seen:
        model = client(seen.url)
        await model.complete(request(max_tokens=9))
        await model.complete(request(max_tokens=9))
    assert [body.get("max_completion_tokens") for body in seen.sent] == [None, 9, 9]
    assert [body.get("max_tokens") for body in seen.sent] == [9, None, None]


async def test_a_server_without_streaming_is_asked_without():
    refusal = http({"error": {"message": "stream is not supported", "param": "stream"}}, status=400)
    async with raw_server(refusal, http(chat("whole"))) as seen:
        assert (await client(seen.url).complete(request(), on_delta=lambda _: None)).text == "whole"
    assert "stream" not in seen.sent[1]


async def test_a_refusal_that_no_change_helps_is_final_and_not_searched_again():
    refusal = http({"error": {"message": "Invalid value for temperature: -1", "param": "temperature"}}, status=400)
    async with raw_server(refusal) as seen:
        model = client(seen.url)
        for _ in range(2):
            with pytest.raises(BadRequest):
                await model.complete(request(temperature=-1.0))
    assert ["temperature" in body for body in seen.sent] == [True, False, True]


# ------------------------------------------------------------------------------------------------ kinds of servers


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
WANTED = {"type": "json_schema", "json_schema": {"name": "reply", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize(
    ("server", "constraint", "expected"),
    [
        ("openai", Constraint("json_schema", SCHEMA), {"response_format": WANTED}),
        ("vllm", Constraint("json_schema", SCHEMA), {"response_format": WANTED}),
        ("vllm", Constraint("grammar", "root ::= x"), {"structured_outputs": {"grammar": "root ::= x"}}),
        ("vllm", Constraint("regex", "a+"), {"structured_outputs": {"regex": "a+"}}),
        ("sglang", Constraint("grammar", "root ::= x"), {"ebnf": "root ::= x"}),
        ("sglang", Constraint("regex", "a+"), {"regex": "a+"}),
        ("llama.cpp", Constraint("grammar", "root ::= x"), {"grammar": "root ::= x"}),
        ("llama.cpp", Constraint("regex", "a+"), {}),
        ("openai", Constraint("grammar", "root ::= x"), {}),
    ],
)
async def test_a_constraint_as_each_server_takes_it(server: Any, constraint: Constraint, expected: dict):
    async with raw_server(http(chat())) as seen:
        await client(seen.url, server=server).complete(request(constraint=constraint))
    assert {k: v for k, v in seen.sent[0].items() if k not in {"model", "messages"}} == expected


async def test_the_kind_of_server_is_asked_once_for_a_grammar():
    listed = http({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]})

    async with raw_server(listed, http(chat())) as seen:
        model = client(f"{seen.url}/v1")
        for _ in range(2):
            await model.complete(request(constraint=Constraint("grammar", "root ::= x")))
    assert [head.split()[1] for head in seen.heads] == ["/v1/models", "/v1/chat/completions", "/v1/chat/completions"]
    assert b'"structured_outputs"' in seen.bodies[1]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (http({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}), (True, True, 4096)),
        (http({"data": [{"id": "x", "owned_by": "llamacpp", "meta": {"n_ctx": 2048}}]}), (True, True, 2048)),
        (http({"data": [{"id": "x"}, {"id": "y"}]}), (False, False, None)),
        (http("not found", 404, "text/plain"), (False, False, None)),
        (http("junk"), (False, False, None)),
        (http({"data": ["junk", None]}), (False, False, None)),
    ],
)
async def test_discovery_learns_what_a_server_says_of_itself(answer: bytes, expected: tuple):
    async with raw_server(answer) as seen:
        found = await client(f"{seen.url}/v1").discover()
    assert (found.completions, found.grammar, found.max_context) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (http({"data": [{"id": "m", "max_model_len": 4096}]}), 4096),
        (http({"data": [{"id": "m", "meta": {"n_ctx": 2048}}]}), 2048),
        (http({"data": [{"id": "x"}, {"id": "m", "context_length": 131072}]}), 131072),
        (http({"data": [{"id": "m", "context_window": 8192}]}), 8192),
        (http({"data": [{"id": "m", "max_model_len": "long"}]}), None),
        (http("not found", 404, "text/plain"), None),
        (http({"error": "no key"}, 401), None),
        (http("junk"), None),
        (b"", None),
    ],
)
async def test_the_context_is_asked_for_once_whatever_the_server_says(
    answer: bytes, expected: int | None, monkeypatch: pytest.MonkeyPatch
):
    if not answer:  # nothing comes, and that is waited for
        monkeypatch.setattr("closeout.models.openai.CONTEXT_SECONDS", 0.2)
    async with raw_server(answer) as seen:
        model = client(f"{seen.url}/v1")
        assert [await model.context_length() for _ in range(3)] == [expected] * 3
    assert [head.split()[1] for head in seen.heads] == ["/v1/models"]
    assert model.capabilities == Capabilities(), "what a server was asked for is no part of what is known without"


async def test_discovery_asks_only_once():
    async with raw_server(http({"data": [{"id": "m", "owned_by": "vllm"}]})) as seen:
        model = client(f"{seen.url}/v1")
        await model.discover()
        assert await model.context_length() is None
    assert len(seen.heads) == 1


async def test_an_unreachable_server_has_no_context_and_is_waited_for_only_once():
    model = OpenAIClient("m", "http://127.0.0.1:9/v1")
    assert [await model.context_length() for _ in range(2)] == [None, None]


async def test_the_context_of_known_models_is_not_asked_for():
    from closeout.models.anthropic import AnthropicClient

    contexts = [
        await made.context_length() for made in (OpenAIClient("gpt-5-2025-08-07"), AnthropicClient("claude-haiku-4-5"))
    ]
    assert contexts == [272_000, 200_000]
    assert await OpenAIClient("gpt-unheard-of").context_length() is None
    assert await AnthropicClient("claude-haiku-4-5", "http://127.0.0.1:9").context_length() is None
    assert await OpenAIClient("m", "http://127.0.0.1:9", capabilities=Capabilities(max_context=9)).context_length() == 9


async def test_discovery_keeps_what_only_the_user_knows():
    async with raw_server(http({"data": [{"id": "m", "owned_by": "vllm"}]})) as seen:
        model = OpenAIClient(
            "m", f"{seen.url}/v1", "k", capabilities=Capabilities(images=True, preferred_dialect="mcp_xml")
        )
        found = await model.discover()
    assert (found.images, found.preferred_dialect, found.grammar) == (True, "mcp_xml", True)


async def test_discovery_keeps_what_a_refusal_has_taught():
    refusal = http({"error": {"message": '"auto" tool choice requires --enable-auto-tool-choice to be set'}}, 400)
    async with raw_server(refusal, http({"data": [{"id": "m", "owned_by": "vllm"}]})) as seen:
        model = client(f"{seen.url}/v1")
        with pytest.raises(BadRequest):
            await model.complete(request(tools=TOOLS))
        found = await model.discover()
    assert (found.native_tools, found.grammar) == (False, True)


def test_openais_own_host_is_known():
    model = OpenAIClient("gpt-5", api_key="k")
    assert model.capabilities == Capabilities(json_schema=True, images=True, known=True, max_context=272_000)
    assert (model.name, model.base_url) == ("openai:gpt-5", "https://api.openai.com/v1")
    body = model._body(request(max_tokens=5, messages=HISTORY), stream=False)
    assert b'"max_completion_tokens":5' in body
    assert b"why" not in body


# ------------------------------------------------------------------------------------------------ halves, and the end


def call_piece(arguments: str, **function: str) -> dict:
    return piece(tool_calls=[{"index": 0, "id": "c1", "function": {"arguments": arguments, **function}}])


async def test_a_stream_cut_inside_an_emoji_is_joined():
    """In text, reasoning and arguments. A half that stays alone becomes U+FFFD."""
    shown: list[Delta] = []
    stream = sse(
        piece(reasoning_content="a\ud83d"), piece(reasoning_content="\ude00"),
        piece("b\ud83d"), piece("\ude00c\ude00"), piece("\ud83d"),
        call_piece('{"key": "\ud83d', name="look\ud83d"), call_piece('\ude00"}'),
        piece(finish="stop"), "[DONE]", end=END,
    )  # fmt: skip
    async with raw_server(stream) as seen:
        reply = await client(seen.url).complete(request(tools=TOOLS), on_delta=shown.append)
    assert (reply.reasoning, reply.text) == ("a😀", "b😀c\ufffd\ufffd")
    assert (reply.tool_calls[0].name, reply.tool_calls[0].text) == ("look\ufffd", '{"key": "😀"}')
    assert all(delta.text.encode() for delta in shown)


async def test_half_an_emoji_in_a_whole_reply_is_replaced():
    reply = await reply_to(http(chat("a\ud83d\ude00\ud83d")))
    assert reply.text == "a😀\ufffd"


@given(text=st.text(st.characters(categories=("L", "So", "Cs")), max_size=12), cut=st.integers(1, 4))
def test_however_a_text_is_cut_the_builder_returns_it_joined(text: str, cut: int):
    units = text.encode("utf-16-le", "surrogatepass")
    pieces = [units[i : i + 2 * cut].decode("utf-16-le", "surrogatepass") for i in range(0, len(units), 2 * cut)]
    shown: list[str] = []
    builder = ReplyBuilder(lambda delta: shown.append(delta.text))
    for each in pieces:
        builder.add_text(each)
    whole = builder.reply(usage=Usage()).text
    assert whole == units.decode("utf-16-le", "replace")
    assert whole.startswith("".join(shown))


async def test_a_stream_that_stays_open_after_its_finish_reason_is_complete(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("closeout.models.http.FINISH_SECONDS", 0.1)
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}

    async def held(*events: dict) -> ModelReply:
        async with raw_server([*sse(*events), HOLD]) as seen:
            reply = await client(seen.url, timeout=30).complete(request(), on_delta=lambda _: None)
            await asyncio.wait_for(seen.hung_up.wait(), 60)
            return reply

    reply = await held(piece("hi"), piece(finish="stop"))
    assert (reply.text, reply.finish_reason, reply.usage.requests) == ("hi", "stop", 1)
    reply = await held(piece("hi"), piece(finish="stop"), usage)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (7, 3)


def test_a_reason_that_comes_with_every_piece_does_not_end_the_stream():
    """Some servers send a reason before the end, or "null" as a text: github.com/lhenault/simpleAI/issues/39."""
    for reason, complete in (("stop", [True, False, False]), ("null", [False, False, False])):
        reader = OpenAIStream(ReplyBuilder(), lambda name: None)
        seen = []
        for text in "abc":
            reader.take(piece(text, finish=reason))
            seen.append(reader.complete)
        assert seen == complete
        reader.take(piece(finish="stop"))
        reader.done = True
        assert (reader.builder.text, reader.builder.finish_reason, reader.complete) == ("abc", "stop", True)


async def test_a_stream_that_stays_open_before_its_finish_reason_times_out(skip_time: Callable[[float], None]):
    async with raw_server([*sse(piece("hi")), HOLD]) as seen:
        with pytest.raises(ModelTimeout):
            await client(seen.url, timeout=300).complete(request(), on_delta=lambda _: skip_time(301))


async def test_what_follows_done_is_ignored():
    stream = sse(piece("hi"), piece(finish="stop"), "[DONE]", piece("more"), "{broken", {"error": "late"}, end=END)
    for pieces in (stream, [stream[0], b"".join(stream[1:-1]), END]):
        async with raw_server(pieces) as seen:
            reply = await client(seen.url).complete(request(), on_delta=lambda _: None)
        assert reply.text == "hi"


@pytest.mark.parametrize("kind", ["grammar", "json_schema"])
async def test_a_constraint_that_the_server_cannot_enforce_is_reported(kind: str):
    """A server of no known kind takes no grammar. One that refuses `response_format` gets the request without it."""
    constraint = Constraint(kind, {"type": "object"} if kind == "json_schema" else 'root ::= "a"')
    refusal = http({"error": {"message": "response_format is not supported", "param": "response_format"}}, 400)

    def answer(number: int, seen: Any) -> bytes:
        head = seen.heads[number]
        if head.startswith("GET"):
            return http({"data": []})
        return refusal if "response_format" in seen.sent[number] else http(chat())

    async with raw_server(answer) as seen:
        reply = await client(seen.url).complete(request(constraint=constraint))
    (warning,) = reply.warnings
    assert warning.endswith(f"cannot enforce a {kind.replace('_', ' ')}: the replies of m are not constrained.")


async def test_a_constraint_that_the_server_enforces_is_not_reported():
    async with raw_server(http(chat())) as seen:
        llama = client(seen.url, server="llama.cpp")
        reply = await llama.complete(request(constraint=Constraint("grammar", 'root ::= "a"')))
    assert (seen.sent[0]["grammar"], reply.warnings) == ('root ::= "a"', ())
