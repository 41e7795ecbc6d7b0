"""The Anthropic client against real loopback HTTP: OpenAI-shaped history in, blocks on the wire, and back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from closeout.errors import BadRequest, ContextOverflow, ServerFailed, StreamDropped
from closeout.messages import Constraint, Delta, Message, ModelRequest, ToolCall, ToolSpec, Usage
from closeout.models.anthropic import AnthropicClient
from closeout.models.base import assistant_message
from closeout.models.retry import RetryPolicy
from raw_server import END, http, raw_server, sse

TOOLS = (ToolSpec("lookup", "Looks a key up.", {"type": "object", "properties": {"key": {"type": "string"}}}),)
SYSTEM, USER = Message(role="system", content="Be short."), Message(role="user", content="What is k1?")
MARK = {"cache_control": {"type": "ephemeral"}}


def client(url: str, **options: Any) -> AnthropicClient:
    return AnthropicClient("m", url, "secret", **{"retry": RetryPolicy(retries=0), **options})


def request(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest(messages=messages or (SYSTEM, USER), **fields)


def message(*blocks: dict, stop: str = "end_turn", **usage: int) -> dict:
    return {
        "type": "message", "role": "assistant", "model": "m", "content": list(blocks), "stop_reason": stop,
        "usage": usage or {"input_tokens": 10, "output_tokens": 2},
    }  # fmt: skip


HI = http(message({"type": "text", "text": "hi"}))


def assistant(text: str, *calls: tuple[str, str, str], **more: Any) -> Message:
    made = [{"id": i, "type": "function", "function": {"name": name, "arguments": args}} for i, name, args in calls]
    return Message({"role": "assistant", "content": text, **({"tool_calls": made} if made else {}), **more})


async def sent(*messages: Message, **fields: Any) -> dict:
    """The body of one request, cache marks off unless asked for."""
    options = {"cache": fields.pop("cache", False)}
    async with raw_server(HI) as seen:
        await client(seen.url, **options).complete(request(*messages, **fields))
    return seen.sent[0]


# ------------------------------------------------------------------------------------------------ requests


async def test_headers_path_and_options():
    async with raw_server(HI) as seen:
        await client(f"{seen.url}/v1", cache=False).complete(
            request(
                tools=TOOLS,
                tool_choice="required",
                stop=("\nObs",),
                temperature=0.5,
                max_tokens=9,
                extra_body={"top_k": 3},
            )
        )
    head = seen.heads[0].lower()
    assert head.startswith("post /v1/messages http/1.1")
    assert "x-api-key: secret" in head
    assert "anthropic-version: 2023-06-01" in head
    assert seen.sent[0] == {
        "model": "m", "max_tokens": 9, "temperature": 0.5, "stop_sequences": ["\nObs"],
        "tool_choice": {"type": "any"}, "top_k": 3,
        "tools": [{"name": "lookup", "description": "Looks a key up.",
                   "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}}}],
        "system": [{"type": "text", "text": "Be short."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "What is k1?"}]}],
    }  # fmt: skip


async def test_roles_alternate_results_join_and_calls_become_blocks():
    body = await sent(
        USER,
        assistant("Both.", ("c:1", "lookup", '{"key": "k1"}'), ("c2", "lookup", '{"key": "k2"}')),
        Message(role="tool", tool_call_id="c:1", content="one"),
        Message(role="tool", tool_call_id="c2", content="two"),
        Message(role="user", content="Go on."),
        Message(role="system", content="Last turn."),
        tools=TOOLS,
    )
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == [
        {"type": "text", "text": "Both."},
        {"type": "tool_use", "id": "c_1", "name": "lookup", "input": {"key": "k1"}},
        {"type": "tool_use", "id": "c2", "name": "lookup", "input": {"key": "k2"}},
    ]
    assert body["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "c_1", "content": "one"},
        {"type": "tool_result", "tool_use_id": "c2", "content": "two"},
        {"type": "text", "text": "Go on."},
        {"type": "text", "text": "Last turn."},
    ]


async def test_what_the_api_refuses_is_not_sent():
    body = await sent(USER, assistant("  \n"), Message(role="user", content=""), assistant("x", ("", "f", "{broken")))
    assert [block for turn in body["messages"] for block in turn["content"]] == [
        {"type": "text", "text": "What is k1?"},
        {"type": "text", "text": "x"},
        {"type": "tool_use", "id": "call", "name": "f", "input": {"arguments": "{broken"}},
    ]


async def test_tools_that_the_history_used_are_declared_when_none_are_offered():
    body = await sent(USER, assistant("", ("c1", "lookup", "{}")), Message(role="tool", tool_call_id="c1", content="x"))
    assert [tool["name"] for tool in body["tools"]] == ["lookup"]
    assert body["tool_choice"] == {"type": "none"}


async def test_images_go_as_sources():
    body = await sent(
        Message(role="user", content=[
            {"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        ])
    )  # fmt: skip
    assert [block.get("source") for block in body["messages"][0]["content"]] == [
        None,
        {"type": "base64", "media_type": "image/png", "data": "AAAA"},
        {"type": "url", "url": "https://x/y.png"},
    ]


async def test_a_schema_constrains_the_output():
    body = await sent(constraint=Constraint("json_schema", {"type": "object"}))
    assert body["output_config"] == {"format": {"type": "json_schema", "schema": {"type": "object"}}}


async def test_a_prompt_is_a_user_message():
    async with raw_server(HI) as seen:
        await client(seen.url, cache=False).complete(ModelRequest(prompt="6 * 7 ="))
    assert seen.sent[0]["messages"] == [{"role": "user", "content": [{"type": "text", "text": "6 * 7 ="}]}]


# ------------------------------------------------------------------------------------------------ cache marks


def marks(body: dict) -> list[str]:
    blocks = [*body.get("system", ()), *(block for turn in body["messages"] for block in turn["content"])]
    return [block.get("text") or block.get("content") or block["id"] for block in blocks if block.get("cache_control")]


async def test_cache_marks_follow_the_system_prompt_and_the_last_message():
    assert marks(await sent(SYSTEM, USER, assistant("a"), Message(role="user", content="b"), cache=True)) == [
        "Be short.",
        "b",
    ]


async def test_a_request_has_at_most_four_cache_marks_at_its_breakpoints():
    messages = [Message(role=("user", "assistant")[i % 2], content=f"m{i}") for i in range(9)]
    assert marks(await sent(*messages, breakpoints=(2, 99, -1), cache=True)) == ["m2"]
    assert marks(await sent(*messages, breakpoints=(0, 2, 4, 6, 8), cache=True)) == ["m2", "m4", "m6", "m8"]


async def test_thinking_alone_carries_no_mark():
    signed = [{"type": "thinking", "thinking": "t", "signature": "s"}]
    assert marks(await sent(USER, assistant("", reasoning_details=signed), breakpoints=(1,), cache=True)) == []


async def test_but_for_its_marks_each_body_extends_the_one_before():
    async with raw_server(HI) as seen:
        model, messages = client(seen.url), [SYSTEM, USER]
        for turn in range(3):
            messages.append(assistant_message(await model.complete(request(*messages, tools=TOOLS))))
            messages.append(Message(role="user", content=f"and k{turn}?"))
    bare = [body.replace(b',"cache_control":{"type":"ephemeral"}', b"") for body in seen.bodies]
    for before, after in pairwise(bare):
        assert after.startswith(before[:-2])


# ------------------------------------------------------------------------------------------------ replies


async def test_a_reply_with_everything_and_thinking_goes_back_signed():
    blocks = (
        {"type": "thinking", "thinking": "hm", "signature": "s1"},
        {"type": "redacted_thinking", "data": "xx"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "lookup", "input": {"key": "元"}},
    )
    usage = {"input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 3, "output_tokens": 7}
    async with raw_server(http(message(*blocks, stop="tool_use", **usage)), HI) as seen:
        model = client(seen.url, cache=False)
        reply = await model.complete(request(tools=TOOLS))
        await model.complete(
            request(USER, assistant_message(reply), Message(role="tool", tool_call_id="c1", content="1"))
        )
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("I look.", "hm", "tool_calls")
    assert reply.tool_calls == (ToolCall("lookup", '{"key":"元"}', "c1", text='{"key":"元"}'),)
    assert reply.usage == Usage(28, 7, cache_read_tokens=20, cache_write_tokens=3, requests=1)
    assert seen.sent[1]["messages"][1]["content"] == list(blocks)


@pytest.mark.parametrize(
    ("stop", "ours"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("tool_use", "tool_calls"), ("max_tokens", "length"),
     ("refusal", "content_filter"), ("model_context_window_exceeded", "context_full"), ("pause_turn", "pause_turn"),
     (None, "missing")],
)  # fmt: skip
async def test_stop_reasons(stop: Any, ours: str):
    async with raw_server(http(message({"type": "text", "text": "x"}, stop=stop))) as seen:
        assert (await client(seen.url).complete(request())).finish_reason == ours


def events(*middle: dict, stop: str | None = "tool_use", over: bool = True) -> list[dict]:
    start = {"input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 0, "output_tokens": 1}
    ending = [{"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 9}}] if stop else []
    return [
        {"type": "message_start", "message": {"model": "m", "usage": start}},
        {"type": "ping"},
        *middle,
        *ending,
        *([{"type": "message_stop"}] if over else []),
    ]


def delta(index: int, kind: str, **fields: str) -> dict:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def block(index: int, kind: str, **fields: Any) -> dict:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


STREAM = events(
    block(0, "thinking", thinking="", signature=""),
    delta(0, "thinking_delta", thinking="h"),
    delta(0, "thinking_delta", thinking="m"),
    delta(0, "signature_delta", signature="s1"),
    block(1, "text", text=""),
    delta(1, "text_delta", text="I look."),
    block(2, "tool_use", id="c1", name="lookup", input={}),
    delta(2, "input_json_delta", partial_json=""),
    delta(2, "input_json_delta", partial_json='{"key":'),
    delta(2, "input_json_delta", partial_json='"k1"}'),
    {"type": "content_block_stop", "index": 2},
)


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_numbers_of_a_whole_input_keep_their_digits(streamed: bool) -> None:
    amount = 12345678901234567.89
    block = {"type": "tool_use", "id": "t1", "name": "pay", "input": {"amount": amount, "of": [1, "a"]}}
    if streamed:
        stop = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
        start = {"type": "content_block_start", "index": 0, "content_block": block}
        answer: Any = sse(start, stop, {"type": "message_stop"}, end=END)
        answer = [piece.replace(b"1.2345678901234568e+16", b"12345678901234567.8900") for piece in answer]
    else:
        answer = http(message(block, stop="tool_use")).replace(b"1.2345678901234568e+16", b"12345678901234567.8900")
    async with raw_server(answer) as seen:
        reply = await client(seen.url).complete(request(), on_delta=(lambda _: None) if streamed else None)
    (call,) = reply.tool_calls
    assert call.arguments == '{"amount":12345678901234567.8900,"of":[1,"a"]}'


async def test_a_stream_shows_each_piece_and_gives_the_whole():
    shown: list[Delta] = []
    async with raw_server(sse(*STREAM, end=END)) as seen:
        reply = await client(seen.url).complete(request(tools=TOOLS), on_delta=shown.append)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("I look.", "hm", "tool_calls")
    assert reply.tool_calls == (ToolCall("lookup", '{"key":"k1"}', "c1", text='{"key":"k1"}'),)
    assert reply.usage == Usage(25, 9, cache_read_tokens=20, requests=1)
    assert reply.attached["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "s1"}
    assert "".join(d.text for d in shown if d.kind == "tool_arguments") == '{"key":"k1"}'
    assert seen.sent[0]["stream"] is True


async def test_a_stream_that_breaks_off_is_dropped_and_counts_as_usage():
    async with raw_server(sse(*events(block(0, "text", text="a"), stop=None, over=False))) as seen:
        with pytest.raises(StreamDropped) as raised:
            await client(seen.url).complete(request(), on_delta=lambda _: None)
    assert raised.value.usage == Usage(25, 1, cache_read_tokens=20, requests=1)


async def test_an_error_event_is_its_kind():
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    async with raw_server(sse(*events(stop=None, over=False), error, end=END)) as seen:
        with pytest.raises(ServerFailed, match="Overloaded"):
            await client(seen.url).complete(request(), on_delta=lambda _: None)


async def test_enough_cuts():
    async with raw_server(sse(*STREAM)) as seen:
        reply = await client(seen.url).complete(request(), on_delta=lambda d: d.kind == "tool_name")
    assert (reply.text, reply.finish_reason, reply.usage.input_tokens) == ("I look.", "cut", 25)


# ------------------------------------------------------------------------------------------------ adaptations


async def test_the_models_own_limit_is_learned_from_its_refusal():
    words = "max_tokens: 16384 > 4096, which is the maximum allowed number of output tokens for m"
    refusal = http({"type": "error", "error": {"type": "invalid_request_error", "message": words}}, status=400)
    async with raw_server(refusal, HI) as seen:
        model = client(seen.url)
        await model.complete(request())
        await model.complete(request(max_tokens=9))
    assert [body["max_tokens"] for body in seen.sent] == [16384, 4096, 9]


async def test_sampling_that_newer_models_refuse_is_left_out():
    words = "`temperature` is deprecated for this model."
    refusal = http({"type": "error", "error": {"type": "invalid_request_error", "message": words}}, status=400)
    async with raw_server(refusal, HI) as seen:
        await client(seen.url).complete(request(temperature=0.0))
    assert ["temperature" in body for body in seen.sent] == [True, False]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", ContextOverflow),
        ("messages: text must be non-empty", BadRequest),
    ],
)
async def test_refusals(words: str, kind: type[Exception]):
    answer = http({"type": "error", "error": {"type": "invalid_request_error", "message": words}}, status=400)
    async with raw_server(answer) as seen:
        with pytest.raises(kind):
            await client(seen.url, max_tokens=1).complete(request())
    assert len(seen.bodies) == 1


async def test_a_stream_cut_inside_an_emoji_is_joined():
    stream = events(
        block(0, "thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="\ud83d"),
        delta(0, "thinking_delta", thinking="\ude00"),
        block(1, "text", text=""),
        delta(1, "text_delta", text="a\ud83d"),
        delta(1, "text_delta", text="\ude00"),
        block(2, "tool_use", id="c1", name="lookup", input={}),
        delta(2, "input_json_delta", partial_json='{"key":"\ud83d'),
        delta(2, "input_json_delta", partial_json='\ude00"}'),
    )
    async with raw_server(sse(*stream, end=END)) as seen:
        reply = await client(seen.url).complete(request(tools=TOOLS), on_delta=lambda _: None)
    assert (reply.reasoning, reply.text, reply.tool_calls[0].text) == ("😀", "a😀", '{"key":"😀"}')
    assert reply.attached["content"][0]["thinking"] == "😀"


async def test_a_tool_that_the_server_runs_itself_is_not_a_call():
    server_tool = {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {"query": "k1"}}
    result = {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": []}
    stream = events(
        {"type": "content_block_start", "index": 0, "content_block": {**server_tool, "input": {}}},
        delta(0, "input_json_delta", partial_json='{"query":"k1"}'),
        {"type": "content_block_start", "index": 1, "content_block": result},
        block(2, "text", text=""),
        delta(2, "text_delta", text="Found."),
        stop="end_turn",
    )
    async with raw_server(sse(*stream, end=END)) as seen:
        streamed = await client(seen.url).complete(request(tools=TOOLS), on_delta=lambda _: None)
    async with raw_server(http(message(server_tool, result, {"type": "text", "text": "Found."}))) as seen:
        whole = await client(seen.url).complete(request(tools=TOOLS))
    for reply in (streamed, whole):
        assert (reply.tool_calls, reply.text, reply.finish_reason) == ((), "Found.", "stop")


async def test_fields_of_a_wrong_type_are_left_out():
    wrong = [
        {"type": "message_start", "message": "x"},
        {"type": "content_block_start", "index": 0, "content_block": ["x"]},
        {"type": "content_block_delta", "index": 0, "delta": "x"},
        {"type": "message_delta", "delta": ["x"], "usage": "x"},
    ]
    stream = events(*wrong, block(1, "text", text=""), delta(1, "text_delta", text="hi"), stop="end_turn")
    async with raw_server(sse(*stream, end=END)) as seen:
        streamed = await client(seen.url).complete(request(), on_delta=lambda _: None)
    async with raw_server(http(message({"type": {"x": 1}}, {"type": "text", "text": "hi"}))) as seen:
        whole = await client(seen.url).complete(request())
    assert (streamed.text, whole.text) == ("hi", "hi")
